"""An application of Celery with its bridge and its forwarder; each task that runs adds to a list in Redis."""

import os
import time
from typing import Any

import redis
from celery import Celery
from celery.app.task import Task
from kombu.entity import Exchange, Queue

from lisa_consumer.celery import forwarder as forwarder_of
from lisa_producer.celery import bridge

__all__ = ["app", "forwarder", "note", "total"]

_JOURNAL = os.environ["LISA_REDIS_URL"]

_SHORT = {
    "visibility_timeout": float(os.environ.get("SHOP_VISIBILITY", "0")),
    # By default, Celery looks every 100 s for what has outlasted the timeout, which is an hour.
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
}

app = Celery("shop", broker=os.environ["SHOP_BROKER"], backend=f"{_JOURNAL}/2")
app.conf.update(
    broker_transport_options=_SHORT if "SHOP_VISIBILITY" in os.environ else {},
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    task_queues=[
        Queue("celery", Exchange("celery"), routing_key="celery", max_priority=10),
        Queue("mail", Exchange("shop", type="topic"), routing_key="mail.#"),
    ],
    accept_content=["json", "yaml"],
    broker_connection_retry_on_startup=True,
)
if "SHOP_BEYOND" in os.environ:
    bridge(app, beyond=float(os.environ["SHOP_BEYOND"]))
forwarder = forwarder_of(app)


def _write(*values: object) -> None:
    with redis.Redis.from_url(_JOURNAL, protocol=2) as client:
        client.rpush("journal", "\t".join(map(str, values)))


@app.task(bind=True, max_retries=3, shared=False)
def note(self: Task, *words: Any, fail: int = 0, countdown: float = 1) -> str:
    """Notes that it ran: the words, the task's id, its retries, the moment, and how it came."""
    request = self.request
    info = request.delivery_info
    route = f"{info['exchange']}/{info['routing_key']}/{info.get('priority')}"
    _write(" ".join(map(str, words)), request.id, request.retries, time.time(), route, request.eta)
    if request.retries < fail:
        raise self.retry(countdown=countdown)
    return "-".join(map(str, words))


@app.task(shared=False)
def total(words: list[str]) -> str:
    """The body of a chord."""
    _write("+".join(sorted(words)), "", 0, time.time(), "", None)
    return "+".join(sorted(words))
