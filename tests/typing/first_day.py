"""A user's own project as its type checker sees it: bodies, hooks, batches, the test kit. Never run."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, TypedDict, assert_type
from uuid import UUID

from pydantic import BaseModel

from lisa_consumer import AsyncConsumer, BatchFailed, Consumer, Delivery, Reject, Snooze, Worker
from lisa_manager import DeadLetter
from lisa_producer import AsyncProducer, Producer, SendResult
from lisa_testing import Lisa, make_delivery

__all__ = ["consume", "consume_async", "produce", "produce_async", "try_out"]


class Order(BaseModel):
    """A body as a pydantic model."""

    id: UUID
    total: Decimal


@dataclass
class Payment:
    """A body as a dataclass."""

    order: UUID
    amount: Decimal


class Visit(TypedDict):
    """A body as a dictionary."""

    page: str


worker = Worker(group="billing")


@worker.on_start
async def _connect() -> None: ...


@worker.on_stop
def _disconnect() -> None: ...


@worker.use
async def _timed(delivery: Delivery, call_next: Callable[[Delivery], Awaitable[None]]) -> None:
    await call_next(delivery)


@worker.on("orders", body=Order, concurrency=4, timeout=timedelta(seconds=30))
async def _close_unpaid(delivery: Delivery) -> None:
    order: Order = delivery.value
    if delivery.is_last_attempt:
        assert_type(delivery.max_retries, int | None)
        raise Reject(f"{order.total} at the last attempt")
    raise Snooze(timedelta(hours=8), "it is night")


@worker.on("visits.*", body=Visit)
def _visit(delivery: Delivery) -> str:
    visit: Visit = delivery.value
    return visit["page"]


@worker.on("pages", batch=100, within=0.2)
async def _index(deliveries: list[Delivery]) -> None:
    raise BatchFailed([(deliveries[0], Reject("empty"))])


def produce(producer: Producer) -> None:
    """Any of these can be a body."""
    assert_type(producer.send("orders", Order(id=UUID(int=7), total=Decimal(1)), delay=900), SendResult)
    producer.send("payments", Payment(UUID(int=7), Decimal(1)))
    producer.send("visits.eu", Visit(page="home"))


async def produce_async(producer: AsyncProducer) -> None:
    """In asyncio, too."""
    assert_type(await producer.send("payments", Payment(UUID(int=7), Decimal(1))), SendResult)


def consume() -> None:
    """The type of the body is that of `value`."""
    with Consumer("billing", "orders", body=Order) as consumer:
        for delivery in consumer.read(wait=1):
            order: Order = delivery.value
            consumer.ack(delivery)
            assert_type(order.total, Decimal)


async def consume_async() -> None:
    """In asyncio, too."""
    async with AsyncConsumer("billing", "payments", body=Payment) as consumer:
        for delivery in await consumer.read(wait=1):
            payment: Payment = delivery.value
            await consumer.ack(delivery)
            assert_type(payment.amount, Decimal)


async def try_out(lisa: Lisa, producer: Producer) -> None:
    """The fixture of a test."""
    lisa.attach(producer, worker)
    lisa.assert_sent("orders", id="order-7", delay=timedelta(minutes=15), body={"order": 7}, count=1)
    assert_type(lisa.advance(hours=2), int)
    assert_type(lisa.drain(worker).handled, list[Delivery])
    assert_type((await lisa.drain_async(worker)).failed, list[tuple[Delivery, BaseException]])
    assert_type(lisa.garbage("orders"), list[DeadLetter])
    lisa.fail_once(worker, "orders", ConnectionError("no bank"), after=True, times=2)
    assert_type(make_delivery("orders", {"order": 7}, attempt=3).json(), Any)
