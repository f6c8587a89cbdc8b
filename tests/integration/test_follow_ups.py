"""`Delivery.then`: a message that is sent with the ack of a delivery, or not at all."""

import asyncio
import logging
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import redis

from lisa_common.model.keys import ShardKeys
from lisa_common.model.policy import Policy
from lisa_consumer import AckOutcome, ConsumerSettings, Delivery, InvalidInput, Reject, Worker
from lisa_manager import AsyncAdmin
from lisa_producer import AsyncProducer, Message, SendOutcome, State
from lisa_testing import make_delivery
from support import Server, wait_until_async
from support.commands import Commands
from support.proxy import Proxy
from support.running import Handled, managed, new_worker, working


async def test_a_loop_runs_until_its_handler_ends_it(
    redis_url: str, prefix: str, sender: AsyncProducer, caplog: pytest.LogCaptureFixture
) -> None:
    """Each round has the id of the first; a send of that id is a duplicate all the time."""
    worker = new_worker(redis_url, prefix)
    rounds: list[int] = []
    outcomes = set()

    @worker.on("orders")
    async def poll(delivery: Delivery) -> None:
        rounds.append(delivery.json())
        outcomes.add((await sender.send("orders", 0, id="poll")).outcome)
        if rounds[-1] < 5:
            delivery.then(rounds[-1] + 1, delay=0.01 * (rounds[-1] % 2))

    async with managed(redis_url, prefix), working(worker):
        await sender.send("orders", 1, id="poll")
        await wait_until_async(lambda: len(rounds) == 5)
    assert rounds == [1, 2, 3, 4, 5]
    assert outcomes == {SendOutcome.DUPLICATE}
    found = await sender.find("orders", "poll")
    assert found is not None
    assert found.state is State.FINISHED
    odd = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert not [record for record in odd if record.name.startswith("lisa_consumer")]


async def test_a_failed_handler_sends_nothing(redis_url: str, prefix: str, sender: AsyncProducer) -> None:
    """Its next attempt decides anew; a rejected message has no successor."""
    worker, attempts = new_worker(redis_url, prefix), list[tuple[int, bytes]]()

    @worker.on("orders")
    def fail(delivery: Delivery) -> None:
        attempts.append((delivery.attempt, delivery.body))
        delivery.then("next", delay=600)
        if delivery.attempt == 1:
            raise OSError("away")
        if delivery.id == "rejected":
            raise Reject("never")

    async with managed(redis_url, prefix), working(worker):
        await sender.send("orders", "first", id="failed")
        await sender.send("orders", "first", id="rejected")
        await wait_until_async(lambda: len(attempts) == 4, timeout=30)
    failed, rejected = await sender.find("orders", "failed"), await sender.find("orders", "rejected")
    assert failed is not None
    assert failed.record is not None
    assert rejected is not None
    assert (failed.state, failed.record.body, failed.attempts) == (State.WAITING, b"next", 0)
    assert rejected.state is State.GARBAGE


async def test_deliveries_of_a_batch_have_their_own(redis_url: str, prefix: str, sender: AsyncProducer) -> None:
    """Some of a batch are followed, others end."""
    worker, seen = new_worker(redis_url, prefix), list[str]()

    @worker.on("orders", batch=10, within=0.05)
    async def handle(deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            seen.append(delivery.id)
            if delivery.id in ("m1", "m3"):
                delivery.then("next", delay=600)

    async with managed(redis_url, prefix), working(worker):
        await sender.send_many("orders", [Message(body=str(n), id=f"m{n}") for n in range(5)])
        await wait_until_async(lambda: len(seen) == 5)
    found = {f"m{n}": await sender.find("orders", f"m{n}") for n in range(5)}
    assert [id for id, each in found.items() if each and each.state is State.WAITING] == ["m1", "m3"]


async def test_a_consumer_acks_with_what_follows(consumers: Callable[..., Any], sender: AsyncProducer) -> None:
    """Several deliveries of one call, in their order; with options of a send."""
    consumer = consumers()
    await sender.send_many("orders", [Message(body="x", id=id) for id in "abc"])
    a, b, c = await consumer.read(3, wait=30)
    b.then({"n": 2}, delay=600, ttl=60, max_retries=1, priority=9, headers={"from": "b"}, key="k")
    c.then("other", id="d")
    assert (a.follow_up, b.follow_up.body) == (None, {"n": 2})
    await consumer.ack(a)
    assert await consumer.ack(a, b, c) == [AckOutcome.STALE, AckOutcome.ACKED, AckOutcome.ACKED]
    found = await sender.find("orders", "b")
    assert found is not None
    record = found.record
    assert record is not None
    assert (record.body, record.due_ms - record.sent_ms, record.ttl_ms) == (b'{"n":2}', 600_000, 60_000)
    assert (record.max_retries, record.priority, record.headers["from"], record.key) == (1, 9, "b", "k")
    (d,) = await consumer.read(3, wait=30)
    assert (d.id, d.body, d.attempt) == ("d", b"other", 1)
    assert await consumer.ack(b) == [AckOutcome.STALE]


async def test_a_repeated_ack_of_a_lost_reply_sends_once(own_server: Callable[..., Server]) -> None:
    """The worker repeats it: the message that follows is not acked with it, and does not come twice."""
    server = own_server()
    handled = Handled()
    async with Proxy(server.port) as proxy, AsyncProducer(server.url) as producer, managed(server.url, "lisa"):
        worker = Worker("billing", settings=ConsumerSettings(redis_url=proxy.url, block_s=0.1))

        @worker.on("orders")
        async def handle(delivery: Delivery) -> None:
            handled.append(delivery)
            if len(handled) < 3:
                if len(handled) == 2:
                    proxy.lose_reply_to(b"after-2")
                delivery.then(f"after-{len(handled)}")

        async with working(worker):
            await producer.send("orders", "after-0", id="loop")
            await wait_until_async(lambda: len(handled) == 3, timeout=30)
        assert proxy.lost == 1
        found = await producer.find("orders", "loop")
        assert found is not None
        assert found.state is State.FINISHED
    assert [delivery.body for delivery in handled] == [b"after-0", b"after-1", b"after-2"]
    assert [delivery.attempt for delivery in handled] == [1, 1, 1]


async def test_what_another_group_owes_fails_visibly(
    *,
    redis_url: str,
    prefix: str,
    sender: AsyncProducer,
    admin: AsyncAdmin,
    reading: Callable[..., Any],
    declare: Callable[..., Policy],
) -> None:
    """Its handler is tried again, and succeeds once the other group is done. That one leaves no tombstone behind."""
    declare("orders", backoff_base_ms=100, backoff_cap_ms=100)
    other, worker = reading("orders", group="audit"), new_worker(redis_url, prefix)
    await other.read()
    await reading("orders", group="billing").read()
    attempts: list[int] = []

    @worker.on("orders")
    async def handle(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        delivery.then("next", delay=600)

    async with managed(redis_url, prefix), working(worker):
        await sender.send("orders", "first", id="a")
        await wait_until_async(lambda: len(attempts) >= 2, timeout=20)
        found = await sender.find("orders", "a")
        assert found is not None
        [copy] = [copy for copy in found.copies if copy.group == "billing"]
        assert copy.failure is not None
        assert "another group still owes" in copy.failure.error
        await other.ack(*await other.read(wait=30))

        async def is_followed() -> bool:
            found = await sender.find("orders", "a")
            return bool(found and found.record and found.record.body == b"next")

        await wait_until_async(is_followed, timeout=20)
    assert not (await admin.check("orders")).findings


async def test_other_groups_keep_a_message_whose_promotion_was_lost(
    reading: Callable[..., Any], sender: AsyncProducer, client: redis.Redis, prefix: str
) -> None:
    """A server that was killed has lost that it was ready: what follows must not replace what they never got."""
    billing, audit = reading("orders", group="billing"), reading("orders", group="audit")
    for consumer in (billing, audit):
        await consumer.read()
    await sender.send("orders", "first", id="a")
    (delivery,) = await billing.read(wait=30)
    of = ShardKeys(prefix, "orders").of
    client.xack(of("ready"), "billing", delivery.entry.entry)
    client.xdel(of("ready"), delivery.entry.entry)
    client.delete(of("owed"))
    client.zadd(of("waiting"), {"a": delivery.entry.due_ms})
    delivery.then("next", delay=600)
    assert await billing.ack(delivery) == [AckOutcome.OWED]
    found = await sender.find("orders", "a")
    assert found is not None
    assert found.record is not None
    assert (found.state, found.record.body) == (State.WAITING, b"first")


async def test_a_cancel_of_what_is_handled_ends_the_loop(consumers: Callable[..., Any], sender: AsyncProducer) -> None:
    """The caller is told."""
    consumer = consumers()
    await sender.send("orders", "x", id="loop")
    (delivery,) = await consumer.read(wait=30)
    delivery.then("next")
    assert await sender.cancel("orders", "loop") == "delivered"
    assert await consumer.ack(delivery) == [AckOutcome.CANCELLED]
    assert await consumer.read() == []


async def test_a_topic_of_several_shards_keeps_the_id(
    consumers: Callable[..., Any], sender: AsyncProducer, admin: AsyncAdmin
) -> None:
    """Another id may belong to another shard, and is refused before anything is written; the same id never is."""
    await admin.set_policy("orders", shards=4)
    await sender.send_many("orders", [Message(body="x", id=f"m{n}") for n in range(8)])
    consumer, deliveries = consumers(), list[Delivery]()
    while len(deliveries) < 8:
        deliveries += await consumer.read(8, wait=5)
    for delivery in deliveries:
        with pytest.raises(InvalidInput, match="id must be omitted, as the topic has several shards; got 'm9'"):
            delivery.then("next", id="m9")
        delivery.then("next", id=delivery.id)
    assert await consumer.ack(*deliveries) == [AckOutcome.ACKED] * 8
    assert {(await sender.find("orders", f"m{n}")).state for n in range(8)} <= {State.READY}  # type: ignore[union-attr]


async def test_a_loop_outlives_a_reshard(
    consumers: Callable[..., Any], sender: AsyncProducer, commands: Commands
) -> None:
    """It goes on in its former shard; its id stays taken, and can be cancelled."""
    consumer = consumers()
    await sender.send("orders", "x", id="loop")
    (delivery,) = await consumer.read(wait=30)
    assert commands.manager("topic", "reshard", "orders", "--shards", "3").code == 0
    delivery.then("next", delay=600)
    assert await consumer.ack(delivery) == [AckOutcome.ACKED]
    assert (await sender.send("orders", "y", id="loop")).outcome is SendOutcome.DUPLICATE
    assert (await sender.send("orders", "z", id="loop", delay=0, if_exists="replace")).outcome is SendOutcome.REPLACED
    (delivery,) = await consumer.read(wait=30)
    assert delivery.body == b"z"
    delivery.then("next", delay=600)
    assert await consumer.ack(delivery) == [AckOutcome.ACKED]
    assert await sender.cancel("orders", "loop") == "cancelled"


class _Hex:
    """A codec."""

    def encode(self, value: Any) -> bytes:
        """A number in hexadecimal digits."""
        return f"{value:x}".encode()

    def decode(self, data: bytes) -> Any:
        """That number."""
        return int(data, 16)


async def test_the_codec_of_the_worker_encodes_it(redis_url: str, prefix: str, sender: AsyncProducer) -> None:
    """As it decodes what was delivered."""
    settings = ConsumerSettings(redis_url=redis_url, prefix=prefix, block_s=0.1)
    worker, values = Worker("billing", codec=_Hex(), settings=settings), list[int]()

    @worker.on("orders", body=int)
    async def handle(delivery: Delivery[int]) -> None:
        values.append(delivery.value)
        if len(values) < 2:
            delivery.then(255)

    async with managed(redis_url, prefix), working(worker):
        await sender.send("orders", "10", id="a")
        await wait_until_async(lambda: len(values) == 2)
    assert values == [16, 255]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"delay": -1}, "delay must be"),
        ({"id": "a~"}, "id must be"),
        ({"body": b"x" * 101}, "body must be"),
        ({"priority": 256}, "priority must be"),
        ({"headers": {"a": 1}}, "headers"),
        ({"at_local": "2030-01-01T00:00", "delay": 1, "tz": "UTC"}, "delay cannot be combined with at_local"),
    ],
)
async def test_bad_input_is_refused_when_it_is_given(
    reading: Callable[..., Any], sender: AsyncProducer, declare: Callable[..., Policy], options: Any, text: str
) -> None:
    """By the policy of the topic; the delivery can still be acked, and nothing follows."""
    declare("orders", max_body_bytes=100)
    await sender.send("orders", "x", id="a")
    consumer = reading("orders")
    (delivery,) = await consumer.read(wait=30)
    with pytest.raises(InvalidInput, match=text):
        delivery.then(**({"body": "y"} | options))
    assert delivery.follow_up is None
    assert await consumer.ack(delivery) == [AckOutcome.ACKED]


async def test_one_message_follows(reading: Callable[..., Any], sender: AsyncProducer) -> None:
    """A second call replaces the first, as where a handler tries again; a second id is refused."""
    await sender.send("orders", "x", id="a")
    consumer = reading("orders")
    (delivery,) = await consumer.read(wait=30)
    delivery.then("first")
    delivery.then("second")
    with pytest.raises(InvalidInput, match="one message follows"):
        delivery.then("third", id="b")
    await consumer.ack(delivery)
    (following,) = await consumer.read(wait=30)
    assert following.body == b"second"


def test_handlers_can_be_tested_without_a_server() -> None:
    """A delivery of the test kit shows what follows; one that was made by hand refuses."""
    delivery = make_delivery("orders", {"n": 1})
    delivery.then({"n": 2}, delay=60)
    assert delivery.follow_up == Message(body={"n": 2}, delay=60)
    with pytest.raises(InvalidInput, match="delivery must be one that a worker or a consumer has read"):
        delivery._replace(follow_ups=None).then("x")


async def test_after_the_ack_it_is_too_late(reading: Callable[..., Any], sender: AsyncProducer) -> None:
    """As in a task that outlives its handler: nothing would be sent, so `then` says so."""
    await sender.send("orders", "x", id="a")
    consumer = reading("orders")
    (delivery,) = await consumer.read(wait=30)
    assert await consumer.ack(delivery) == [AckOutcome.ACKED]
    with pytest.raises(InvalidInput, match="then must be called before the delivery is acked; got a call after"):
        delivery.then("next")


async def test_a_copy_in_another_process_refuses(reading: Callable[..., Any], sender: AsyncProducer) -> None:
    """Nothing there acks it, so what follows would be lost in silence."""
    await sender.send("orders", "x", id="a")
    consumer = reading("orders")
    (delivery,) = await consumer.read(wait=30)
    delivery.then("next", delay=600)
    copied = pickle.loads(pickle.dumps(delivery))  # noqa: S301 - our own data
    assert (copied.id, copied.body) == ("a", b"x")
    with pytest.raises(InvalidInput, match="delivery must be one that a worker or a consumer has read"):
        copied.then("other")
    await consumer.ack(delivery)
    found = await sender.find("orders", "a")
    assert found is not None
    assert found.record is not None
    assert found.record.body == b"next"


async def test_cancelled_tasks_leave_it_unsent(redis_url: str, prefix: str, sender: AsyncProducer) -> None:
    """A handler that a stop cuts short has not succeeded: its message comes again, nothing follows."""
    worker, begun = new_worker(redis_url, prefix, drain_s=0.1), asyncio.Event()

    @worker.on("orders")
    async def handle(delivery: Delivery) -> None:
        delivery.then("next", delay=600)
        begun.set()
        await asyncio.Event().wait()

    async with managed(redis_url, prefix), working(worker):
        await sender.send("orders", "first", id="a")
        await begun.wait()
    found = await sender.find("orders", "a")
    assert found is not None
    assert found.record is not None
    assert (found.state, found.record.body) == (State.READY, b"first")
