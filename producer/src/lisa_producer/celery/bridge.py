"""Sends what a Celery application wants to run later to Lisa, and cancels there what it revokes."""

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from celery import Celery
from celery.app.amqp import AMQP
from celery.app.control import Control
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.utils.functional import maybe_list
from kombu.utils.objects import cached_property

from lisa_common.celery_task import TOPIC
from lisa_common.errors import InvalidInput, Verbatim
from lisa_common.validation import Duration, check_name, duration_ms
from lisa_producer.celery.store import Store
from lisa_producer.celery.storing_publisher import StoringPublisher
from lisa_producer.settings import ProducerSettings

__all__ = ["bridge"]


def bridge(
    app: Celery,
    *,
    url: str | None = None,
    topic: str = TOPIC,
    beyond: Duration = 10,
    settings: ProducerSettings | None = None,
) -> None:
    """Makes Lisa keep the tasks of an application that are due later than `beyond` (seconds, or a timedelta) from now.

    All other tasks go to Celery's broker, as before. Call it where the application is made, in programs that send and
    in workers. `lisa_consumer.celery.forwarder` gives the tasks to Celery's broker when they are due. Without `url` or
    `settings`, the values of `ProducerSettings` come from the environment or `lisa.toml`. Raises InvalidInput.
    """
    check_name("topic", topic)
    least = timedelta(milliseconds=duration_ms("beyond", beyond))
    if not isinstance(app, Celery):
        raise InvalidInput("app", app, "an application of Celery")
    is_used = "amqp" in vars(app) or "control" in vars(app)
    if is_used or app.amqp_cls != Celery.amqp_cls or app.control_cls != Celery.control_cls:
        raise InvalidInput("app", Verbatim("one that has been used, or has classes of its own for these"), _NEW)
    store = Store(app, topic, url=url, settings=settings)
    app.amqp_cls = partial(_LaterAMQP, store, least)
    app.control_cls = partial(_RevokingControl, store)


_NEW = "a new application, without an `amqp` or a `control` of its own, and not bridged yet"


class _LaterAMQP(AMQP):  # type: ignore[misc] # Celery has no types
    """Stores the messages of tasks that are due later, once Celery has made and routed them."""

    def __init__(self, store: Store, least: timedelta, app: Celery) -> None:
        super().__init__(app)
        self._store = store
        self._least = least

    @cached_property
    def send_task_message(self) -> Any:
        """The function that publishes a message, with all signals."""
        send = super().send_task_message

        def send_or_store(producer: Any, name: str, message: Any, **options: Any) -> Any:
            due = self._due(message.headers.get("eta"))
            if due and due - datetime.now(UTC) > self._least:
                producer = StoringPublisher(self._store, producer, message.headers, due)
            return send(producer, name, message, **options)

        return send_or_store

    def _due(self, eta: str | None) -> datetime | None:
        # As workers read it: without a time zone, it is UTC.
        return maybe_make_aware(maybe_iso8601(eta), self.app.conf.timezone) if eta else None


class _RevokingControl(Control):  # type: ignore[misc]
    """Cancels in Lisa what is revoked on all workers."""

    def __init__(self, store: Store, app: Celery) -> None:
        super().__init__(app)
        self._store = store

    def revoke(self, task_id: Any, destination: Any = None, *args: Any, **options: Any) -> Any:
        """Tells workers to discard tasks; those that still wait in Lisa become `REVOKED` at once."""
        # The workers first: then a task that becomes due meanwhile is discarded there.
        replies = super().revoke(task_id, destination, *args, **options)
        if destination is None:
            for each in maybe_list(task_id):
                self._store.cancel(each)
        return replies
