"""Gives tasks of Celery that have waited in Lisa to Celery's own broker when they are due."""

import logging
import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from celery import Celery
from kombu.entity import Exchange, Queue, binding
from kombu.exceptions import OperationalError
from kombu.pools import producers

from lisa_common.celery_task import TOPIC, unpack
from lisa_common.errors import InvalidInput
from lisa_common.model.delivery import Delivery
from lisa_consumer.events import delivery_event
from lisa_consumer.handling.wishes import RateLimited
from lisa_consumer.settings import ConsumerSettings
from lisa_consumer.worker.worker import Worker

__all__ = ["forwarder"]

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
        policy = self._app.conf.task_publish_retry_policy
        try:
            with self._pool.acquire(block=True) as producer:
                # What has expired is for a worker to see, which stores the result; the broker would drop it.
                producer.publish(
                    body,
                    **options,
                    expiration=left_s if left_s > 0 else None,
                    retry=True,
                    retry_policy=policy,
                    confirm_timeout=_CONFIRM_S,
                )
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
