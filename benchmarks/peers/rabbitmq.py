"""RabbitMQ, by way of pika: a queue whose messages die into the one that is read, for each delay in seconds.

A queue drops what has outlived its time to live only at its head, so that messages of different delays may not share
one.
"""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pika

from benchmarks.peers.driver import HOST, PORT, Message, Send
from benchmarks.stamps import Recorder, due_of

_READY = "ready"
_AT_ONCE = 100


def _channel() -> Any:
    channel = pika.BlockingConnection(pika.ConnectionParameters(HOST, PORT)).channel()
    channel.queue_declare(_READY, durable=True)
    return channel


@asynccontextmanager
async def producer() -> AsyncIterator[Send]:
    """Publishes persistent messages, each with the time to live that is its delay."""
    channel = _channel()
    declared = set()

    def waiting(delay_s: float) -> str:
        name = f"waiting-{round(delay_s)}"
        if name not in declared:
            declared.add(name)
            arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": _READY}
            channel.queue_declare(name, durable=True, arguments=arguments)
        return name

    async def send(messages: Sequence[Message]) -> None:
        for body, due_s in messages:
            delay_s = max(0.0, due_s - time.time())
            properties = pika.BasicProperties(delivery_mode=2, expiration=str(round(delay_s * 1000)))
            channel.basic_publish("", waiting(delay_s), body.encode(), properties)

    yield send
    channel.connection.close()


def work() -> None:
    """Handles until it is ended, and acks in batches."""
    record = Recorder()

    def handle(channel: Any, method: Any, _: Any, body: bytes) -> None:
        record(due_of(body))
        if method.delivery_tag % _AT_ONCE == 0:
            channel.basic_ack(method.delivery_tag, multiple=True)

    channel = _channel()
    channel.basic_qos(prefetch_count=5 * _AT_ONCE)
    channel.basic_consume(_READY, handle)
    channel.start_consuming()
