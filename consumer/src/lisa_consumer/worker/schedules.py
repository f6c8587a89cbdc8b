"""Schedules that a worker declares with its handlers."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

from lisa_common.backoff import RECONNECT
from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import InvalidInput, LisaError
from lisa_common.logs import event
from lisa_common.model.schedule import Schedule
from lisa_common.model.schedule_input import stored_fields
from lisa_common.protocol.registry import Topics
from lisa_common.protocol.scheduling import announce, declare
from lisa_common.validation import Duration
from lisa_consumer.handling.handler import Handler

__all__ = ["DeclaresSchedules"]

logger = logging.getLogger(__name__)

H = TypeVar("H", bound=Handler)

Decorator = Callable[[H], H]

_OF_HANDLERS = ("concurrency", "timeout", "run_in", "backoff", "retry_on", "reject_on")


class DeclaresSchedules:
    """The part of a worker that declares schedules. Its class has `on`, as `Worker` does."""

    on: Any

    def __init__(self) -> None:
        super().__init__()
        self._schedules: list[Schedule] = []

    def every(
        self, period: Duration, *, name: str | None = None, topic: str | None = None, **options: Any
    ) -> Callable[[H], H]:
        """Registers a handler, and a schedule that sends it a message in every `period`, in seconds or as a timedelta.

            @worker.every(60)
            async def refresh(delivery): ...

        The schedule is named as the function, or `name`; its topic is called the same, or `topic`. `options` are those
        of `Admin.set_schedule` (body, catchup, overlap, max_retries, ...), and of `on` (concurrency, timeout, run_in,
        backoff, retry_on, reject_on). Any number of
        workers may declare it: it is written only where it differs, and one that an operator has paused stays so. A
        schedule that is no longer declared goes on until an operator deletes it. Raises InvalidInput.
        """
        if callable(period):
            raise InvalidInput("period", period, "a duration, as in @worker.every(60)")
        return self._declaration({"every": period} | options, name, topic)

    def cron(
        self, expression: str, *, tz: str = "UTC", name: str | None = None, topic: str | None = None, **options: Any
    ) -> Callable[[H], H]:
        """As `every`, by a cron expression in a time zone. Needs the extra `schedules`, else raises MissingCron."""
        if callable(expression):
            raise InvalidInput("expression", expression, 'a cron expression, as in @worker.cron("0 9 * * *")')
        return self._declaration({"cron": expression, "tz": tz} | options, name, topic)

    def add_schedule(self, topic: str, name: str, **fields: Any) -> None:
        """Declares a schedule of a topic that has a handler, as `every` and `cron` do; raises InvalidInput.

        The fields are those of `Admin.set_schedule`.
        """
        self._schedules.append(self._checked_schedule(topic, name, fields))

    def _checked_schedule(self, topic: str, name: str, fields: dict[str, Any]) -> Schedule:
        schedule = Schedule.of(stored_fields(fields) | {"topic": topic, "name": name})
        if any((each.topic, each.name) == (topic, name) for each in self._schedules):
            raise InvalidInput("schedule", name, "the name of one function only")
        return schedule.checked(time.time_ns() // 1_000_000)

    def _declaration(self, fields: dict[str, Any], name: str | None, of_topic: str | None) -> Decorator[Any]:
        of_handler = {option: fields.pop(option) for option in _OF_HANDLERS if option in fields}

        def decorate(handler: H) -> H:
            own = name if name is not None else getattr(handler, "__name__", "")
            topic = own if of_topic is None else of_topic
            schedule = self._checked_schedule(topic, own, fields)
            registered: H = self.on(topic, **of_handler)(handler)
            self._schedules.append(schedule)
            return registered

        return decorate

    async def _declare_schedules(self, connection: AsyncConnection, prefix: str) -> None:
        """Declares the schedules, again and again until the server takes them."""
        left, failures = self._schedules, 0
        while left := [each for each in left if not await _is_declared(connection, prefix, each, failures)]:
            failures += 1
            await asyncio.sleep(RECONNECT.compute(failures))


async def _is_declared(connection: AsyncConnection, prefix: str, schedule: Schedule, failures: int) -> bool:
    place = {"topic": schedule.topic, "schedule": schedule.name}
    topics = Topics(prefix)
    try:
        made = await connection.run(declare(topics, schedule))
        is_served = await connection.run(announce(topics, schedule.topic))
    except LisaError as error:
        log = logger.debug if failures else logger.warning
        fields = event("schedule_not_declared", **place, error=str(error))
        log("cannot declare schedule %s, retrying: %s", schedule.name, error, extra=fields)
        return False
    if made.changed:
        logger.info("declared schedule %s", schedule.name, extra=event("schedule_declared", **place))
    return is_served
