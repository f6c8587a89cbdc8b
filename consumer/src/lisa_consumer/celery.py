"""Gives tasks of Celery that have waited in Lisa, and those of beat, to Celery's own broker when they are due."""

import logging
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any
from uuid import NAMESPACE_OID, uuid5
from zlib import crc32

from celery import Celery
from celery.schedules import (
    crontab,
    maybe_schedule,
    schedule as Periodic,  # noqa: N812 - it is a class
)
from kombu.entity import Exchange, Queue, binding
from kombu.exceptions import OperationalError
from kombu.pools import producers
from kombu.utils.json import dumps, loads

from lisa_common.celery_task import TOPIC, unpack
from lisa_common.errors import InvalidInput
from lisa_common.model.delivery import Delivery
from lisa_consumer.events import delivery_event
from lisa_consumer.handling.wishes import RateLimited
from lisa_consumer.settings import ConsumerSettings
from lisa_consumer.worker.worker import Worker

__all__ = ["beat", "forwarder"]

logger = logging.getLogger(__name__)

_BROKER_AWAY_S = 2.0
"""How long a forwarder reads nothing after the broker could not be reached."""
_CONFIRM_S = 30.0


def forwarder(
    app: Celery,
    *,
    url: str | None = None,
    topic: str = TOPIC,
    group: str = "celery",
    settings: ConsumerSettings | None = None,
) -> Worker:
    """Returns a worker that publishes the tasks of an application as `lisa_producer.celery.bridge` has stored them.

    Each is acked once the broker has it: RabbitMQ by a publisher confirm, Redis by its reply. A forwarder that dies in
    between publishes again what it had begun. While the broker is away, tasks wait in Lisa, and no attempt is spent.
    """
    if not isinstance(app, Celery):
        raise InvalidInput("app", app, "an application of Celery")
    worker = Worker(group, url=url, settings=settings)
    worker.on(topic)(_Forwarder(app).forward)
    return worker


def beat(
    app: Celery,
    *,
    url: str | None = None,
    topic: str = "celery-beat",
    group: str = "celery",
    settings: ConsumerSettings | None = None,
) -> Worker:
    """Returns a worker that takes the place of Celery's beat: any number may run, and each tick is one task.

    It declares the entries of the application's `beat_schedule` as schedules of a topic, and publishes a task at each
    tick. Call it once `beat_schedule` is complete, and tasks are defined. A worker that dies between a publish and its
    ack repeats the task, with the same id. Raises InvalidInput for an entry that Lisa cannot keep.
    """
    if not isinstance(app, Celery):
        raise InvalidInput("app", app, "an application of Celery")
    app.finalize()
    worker = Worker(group, url=url, settings=settings)
    worker.on(topic)(_Forwarder(app).send_periodic)
    for name, entry in app.conf.beat_schedule.items():
        try:
            body = dumps({field: entry[field] for field in ("task", "args", "kwargs", "options") if entry.get(field)})
            worker.add_schedule(topic, _schedule_name(name), body=body, **_rhythm(app, entry["schedule"]))
        except (AttributeError, InvalidInput, LookupError, TypeError, ValueError) as error:
            raise InvalidInput(f"beat_schedule {name!r}", entry, f"an entry that Lisa can keep ({error})") from None
    return worker


def _schedule_name(name: str) -> str:
    """Returns the name of an entry as the name of a schedule; names that differ stay different."""
    plain = re.sub(r"[^A-Za-z0-9_.:-]+", "-", name)[:100]
    return name if name == plain else f"{plain}-{crc32(name.encode()):08x}"


def _rhythm(app: Celery, given: Any) -> dict[str, Any]:
    """Returns when an entry is due, as fields of a schedule. Raises InvalidInput."""
    schedule = maybe_schedule(given, app=app)
    if isinstance(schedule, crontab):
        fields = [
            "*" if set(values) == set(all_) else ",".join(map(str, sorted(values)))
            for values, all_ in (
                (schedule.minute, range(60)),
                (schedule.hour, range(24)),
                (schedule.day_of_month, range(1, 32)),
                (schedule.month_of_year, range(1, 13)),
                (schedule.day_of_week, range(7)),
            )
        ]
        if "*" not in (fields[2], fields[4]):
            # Celery wants both to fit; in cron, one is enough.
            raise InvalidInput("schedule", given, "a crontab with days of the month or of the week, not both")
        return {"cron": " ".join(fields), "tz": str(app.timezone)}
    if type(schedule) is Periodic:
        return {"every": schedule.run_every}
    raise InvalidInput("schedule", given, "seconds, a timedelta or a crontab")


class _Forwarder:
    def __init__(self, app: Celery) -> None:
        self._app = app

    @cached_property
    def _pool(self) -> Any:
        return producers[self._app.connection_for_write(transport_options={"confirm_publish": True})]

    def forward(self, delivery: Delivery) -> None:
        """Publishes the task of a message."""
        body, options = unpack(delivery.body)
        left_s = (options.pop("expires_at") or 0) - time.time()
        options["declare"] = list(map(_queue, options.pop("declare")))
        with self._producer(delivery) as producer:
            # What has expired is for a worker to see, which stores the result; the broker would drop it.
            producer.publish(
                body,
                **options,
                expiration=left_s if left_s > 0 else None,
                retry=True,
                retry_policy=self._app.conf.task_publish_retry_policy,
                confirm_timeout=_CONFIRM_S,
            )

    def send_periodic(self, delivery: Delivery) -> None:
        """Publishes the task of a tick, as Celery's beat does. A repeat has the same id."""
        entry = loads(delivery.text())
        options = {"task_id": str(uuid5(NAMESPACE_OID, f"{delivery.topic}/{delivery.id}")), **entry.get("options", {})}
        options["headers"] = {**options.get("headers", {}), "celery_beat_task": True}
        task = self._app.tasks.get(entry["task"])
        send = task.apply_async if task else partial(self._app.send_task, entry["task"])
        with self._producer(delivery) as producer:
            send(entry.get("args"), entry.get("kwargs"), producer=producer, **options)

    @contextmanager
    def _producer(self, delivery: Delivery) -> Iterator[Any]:
        """Yields a producer of kombu. While the broker is away, the delivery waits."""
        try:
            with self._pool.acquire(block=True) as producer:
                yield producer
        except OperationalError as error:
            logger.warning(
                "%r waits, as Celery's broker does not take it: %s",
                delivery,
                error,
                extra=delivery_event("celery_broker_away", delivery),
            )
            raise RateLimited(_BROKER_AWAY_S, str(error), here=True) from error


def _queue(stored: Mapping[str, Any]) -> Queue:
    return Queue(**dict(_entities(stored)))


def _entities(stored: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in stored.items():
        if name == "exchange" and value:
            yield name, Exchange(**value)
        elif name == "bindings":
            yield name, [binding(**dict(_entities(each))) for each in value or ()]
        else:
            yield name, value
