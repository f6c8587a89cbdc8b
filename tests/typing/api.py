"""The public API as its users' type checkers see it. Checked by mypy, never run."""

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from lisa_consumer import AckOutcome, AsyncConsumer, Consumer, Delivery, NackOutcome, Reject, Retry, Worker
from lisa_manager import (
    Admin,
    AsyncAdmin,
    BulkResult,
    GarbageFilter,
    GarbageList,
    GroupDebt,
    MessagePage,
    TopicSizes,
    TopicStatus,
    TopicTraffic,
)
from lisa_producer import (
    AsyncProducer,
    CancelOutcome,
    Confirm,
    Found,
    Message,
    Producer,
    RescheduleOutcome,
    SendOutcome,
    SendReport,
    SendResult,
    State,
)

__all__ = ["consume", "consume_async", "operate", "operate_async", "produce", "produce_async", "worker"]


def produce(producer: Producer) -> None:
    """The blocking producer."""
    with producer as entered:
        assert_type(entered, Producer)
    result = producer.send("orders", {"order": 7}, delay=900, id="order-7", ttl=3600, max_retries=3)
    assert_type(result, SendResult)
    assert_type(result.outcome, SendOutcome)
    assert_type(result.due_ms, int | None)
    producer.send("orders", b"x", delay=timedelta(minutes=15), priority=9, headers={"a": "b"})
    producer.send("orders", [1, None], at=datetime.now(UTC), confirm=Confirm(replicas=1, fsync=True, timeout=0.5))
    assert_type(producer.send_many("orders", _messages(), on_result=print), SendReport)
    report = producer.send_many("orders", _messages(), on_batch=lambda results: results.outcomes())
    assert_type(report.results[0], SendResult)
    assert_type(producer.cancel("orders", "order-7"), CancelOutcome)
    assert_type(producer.reschedule("orders", "order-7", delay=60), RescheduleOutcome)
    found = producer.find("orders", "order-7")
    assert_type(found, Found | None)
    if found:
        assert_type(found.state, State)
        assert_type(found.attempts, int)


async def produce_async(producer: AsyncProducer) -> None:
    """The asyncio producer."""
    async with producer as entered:
        assert_type(entered, AsyncProducer)
    assert_type(await producer.send("orders", "text"), SendResult)
    assert_type(await producer.send_many("orders", _messages()), SendReport)
    assert_type(await producer.send_many("orders", _messages_async()), SendReport)
    assert_type(await producer.find("orders", "order-7"), Found | None)


def _messages() -> Iterator[Message]:
    yield Message(body=1, delay=0.5)


async def _messages_async() -> AsyncIterator[Message]:
    yield Message(body=1, delay=0.5)


def consume(consumer: Consumer) -> None:
    """The blocking consumer."""
    deliveries = consumer.read(limit=10, wait=5, visibility=timedelta(seconds=3))
    assert_type(deliveries, list[Delivery])
    assert_type(deliveries[0].body, bytes)
    assert_type(deliveries[0].json(), Any)
    assert_type(deliveries[0].headers["a"], str)
    assert_type(consumer.ack(*deliveries), list[AckOutcome])
    assert_type(consumer.nack(deliveries[0], delay=1, error="no"), list[NackOutcome])
    assert_type(consumer.reject(deliveries[0], error="never"), list[NackOutcome])
    assert_type(consumer.extend(*deliveries, lease=2), list[bool])
    assert_type(consumer.release(*deliveries), int)


async def consume_async(consumer: AsyncConsumer) -> None:
    """The asyncio consumer."""
    deliveries = await consumer.read(wait=1)
    assert_type(deliveries, list[Delivery])
    assert_type(await consumer.ack(*deliveries), list[AckOutcome])


worker = Worker(group="billing", concurrency=32)


@worker.on("orders", timeout=timedelta(seconds=30))
async def _close_unpaid(delivery: Delivery) -> None:
    if delivery.attempt > 1:
        raise Reject("why")
    raise Retry("later", delay=1.5)


@worker.on("mails", "letters", concurrency=4)
def _send(delivery: Delivery) -> str:
    return delivery.text()


def operate(admin: Admin) -> None:
    """The blocking client of operators."""
    with admin as entered:
        assert_type(entered, Admin)
    assert_type(admin.sizes(), list[TopicSizes])
    assert_type(admin.status("orders"), list[TopicStatus])
    assert_type(admin.traffic("orders"), list[TopicTraffic])
    assert_type(admin.messages("orders", State.READY, group="billing", cursor=None), MessagePage)
    assert_type(admin.find("orders", "order-7"), Found | None)
    assert_type(admin.cancel("orders", ["order-7"]), dict[str, CancelOutcome])
    assert_type(admin.reschedule("orders", ["order-7"], delay=timedelta(hours=1)), dict[str, RescheduleOutcome])
    assert_type(admin.garbage("orders", GarbageFilter(reason="expired"), limit=5), GarbageList)
    assert_type(admin.replay("orders", ["order-7"]), BulkResult)
    assert_type(admin.groups("orders"), list[GroupDebt])


async def operate_async(admin: AsyncAdmin) -> None:
    """The asyncio client of operators."""
    async with admin as entered:
        assert_type(entered, AsyncAdmin)
    assert_type(await admin.sizes(), list[TopicSizes])
    assert_type(await admin.messages("orders", State.GARBAGE), MessagePage)
    assert_type(await admin.purge_all("orders", on_progress=print), BulkResult)
