"""Both producers: stored messages, results, refused input."""

import itertools
import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import InvalidInput
from lisa_common.model.policy import Policy
from lisa_common.protocol.scripts import load
from lisa_manager import AsyncAdmin
from lisa_producer import AsyncProducer, CancelOutcome, Message, PartialSend, RescheduleOutcome, SendOutcome, State
from support import keys_left
from support.housekeeping import server_ms
from support.plain import node_of

Producers = Callable[..., Any]


async def test_a_message_due_now_is_ready_at_once(producer: Any) -> None:
    """Without a delay the message is in the ready stream when the send returns; no manager is needed."""
    result = await producer.send("orders", {"order": 7}, headers={"trace": "abc"})
    found = await producer.find("orders", result.id)
    assert (result.outcome, result.position, result.due_ms) == (SendOutcome.SENT, 0, found.due_ms)
    assert (found.state, found.attempts) == (State.READY, 0)
    assert (found.record.body, found.record.headers) == (b'{"order":7}', {"trace": "abc"})


@pytest.mark.parametrize("delay", [900, 900.0, timedelta(minutes=15)])
async def test_a_delay_counts_from_the_servers_time(producer: Any, connection: AsyncConnection, delay: Any) -> None:
    """The due time is the server's time at the send plus the delay; until then the message waits."""
    before = await server_ms(connection)
    result = await producer.send("orders", b"x", delay=delay)
    assert before <= result.due_ms - 900_000 <= await server_ms(connection)
    assert (await producer.find("orders", result.id)).state is State.WAITING


async def test_an_absolute_time_is_rounded_up(producer: Any) -> None:
    """A time is rounded up to the millisecond; a past one means now."""
    later = datetime.now(UTC).replace(microsecond=1_001) + timedelta(hours=1)
    result = await producer.send("orders", b"x", at=later)
    assert result.due_ms == math.floor(later.timestamp()) * 1000 + 2
    past = await producer.send("orders", b"x", at=datetime(2001, 9, 9, tzinfo=UTC), ttl=60)
    assert past.due_ms > result.due_ms - 3_700_000
    assert (await producer.find("orders", past.id)).state is State.READY


@pytest.mark.parametrize(
    ("body", "stored"),
    [
        (b"\x00\xff\r\n", b"\x00\xff\r\n"),
        (b"", b""),
        ("näh", "näh".encode()),
        ({"a": [1, None, "ü"]}, '{"a":[1,null,"ü"]}'.encode()),
        (None, b"null"),
    ],
)
async def test_bodies_are_stored_byte_for_byte(producer: Any, body: Any, stored: bytes) -> None:
    """Bytes and text are stored unchanged, any other value as JSON (promise 10)."""
    result = await producer.send("orders", body, delay=60)
    assert (await producer.find("orders", result.id)).record.body == stored


async def test_limits_travel_with_the_message(producer: Any, declare: Callable[..., Policy]) -> None:
    """A message's own limits are stored; the lower of two ttls counts."""
    declare(ttl_ms=5_000, priority=3)
    await producer.send("orders", b"x", id="own", delay=60, ttl=2, max_retries=0, priority=9)
    await producer.send("orders", b"x", id="policy", delay=60, ttl=10)
    own = (await producer.find("orders", "own")).record
    policy = (await producer.find("orders", "policy")).record
    assert (own.ttl_ms, own.max_retries, own.priority) == (2_000, 0, 9)
    assert (policy.ttl_ms, policy.max_retries, policy.priority) == (5_000, None, 3)


async def test_an_id_is_sent_once(producer: Any) -> None:
    """A second send of an id writes nothing and reports a duplicate; the first message stands (promise 6)."""
    first = await producer.send("orders", b"first", id="order-7", delay=60)
    second = await producer.send("orders", b"second", id="order-7")
    found = await producer.find("orders", "order-7")
    assert (first.outcome, second.outcome, second.duplicate) == (SendOutcome.SENT, SendOutcome.DUPLICATE, True)
    assert (found.record.body, found.due_ms) == (b"first", first.due_ms)


async def test_cancel_returns_the_outcome(producer: Any) -> None:
    """A cancel removes a waiting or ready message and frees its id; other ids are unknown."""
    await producer.send("orders", b"x", id="waiting", delay=60)
    await producer.send("orders", b"x", id="ready")
    for id in ("waiting", "ready"):
        assert await producer.cancel("orders", id) is CancelOutcome.CANCELLED
        assert await producer.find("orders", id) is None
        assert await producer.cancel("orders", id) is CancelOutcome.UNKNOWN
    assert (await producer.send("orders", b"again", id="waiting")).outcome is SendOutcome.SENT


async def test_reschedule_moves_waiting_messages(producer: Any, connection: AsyncConnection) -> None:
    """A waiting message gets its new due time, counted from now; a ready one does not change."""
    await producer.send("orders", b"x", id="waiting", delay=60)
    await producer.send("orders", b"x", id="ready")
    before = await server_ms(connection)
    assert await producer.reschedule("orders", "waiting", delay=5) is RescheduleOutcome.RESCHEDULED
    assert before <= (await producer.find("orders", "waiting")).due_ms - 5_000 <= await server_ms(connection)
    assert await producer.reschedule("orders", "ready", delay=5) is RescheduleOutcome.READY
    assert await producer.reschedule("orders", "nobody", delay=5) is RescheduleOutcome.UNKNOWN


BAD = [
    ({"topic": ""}, "topic"),
    ({"topic": "a b"}, "topic"),
    ({"topic": "x" * 129}, "topic"),
    ({"topic": ["orders"]}, "topic"),
    ({"id": ""}, "id"),
    ({"id": "a\nb"}, "id"),
    ({"id": "x" * 201}, "id"),
    ({"id": "generated~"}, "id"),
    ({"delay": -1}, "delay"),
    ({"delay": math.nan}, "delay"),
    ({"delay": math.inf}, "delay"),
    ({"delay": 11 * 366 * 86_400}, "delay"),
    ({"delay": timedelta(days=-1)}, "delay"),
    ({"delay": "5"}, "delay"),
    ({"delay": 1, "at": datetime(2030, 1, 1, tzinfo=UTC)}, "delay"),
    ({"at": datetime(2030, 1, 1)}, "at"),  # noqa: DTZ001 - naive on purpose
    ({"at": datetime(2090, 1, 1, tzinfo=UTC)}, "at"),
    ({"ttl": 0}, "ttl"),
    ({"ttl": -5}, "ttl"),
    ({"max_retries": -1}, "max_retries"),
    ({"max_retries": 1_001}, "max_retries"),
    ({"priority": 256}, "priority"),
    ({"priority": True}, "priority"),
    ({"headers": {"a": 1}}, "headers"),
    ({"headers": {"a": "x" * 20_000}}, "headers"),
    ({"body": {1, 2}}, "body"),
    ({"body": math.nan}, "body"),
    ({"body": "\udc80"}, "body"),
    ({"body": b"x" * (1024 * 1024 + 1)}, "body"),
]


@pytest.mark.parametrize(("bad", "field"), BAD, ids=lambda value: None if isinstance(value, str) else repr(value)[:40])
async def test_bad_input_is_refused_before_anything_is_written(
    producer: Any, client: redis.Redis, prefix: str, bad: dict[str, Any], field: str
) -> None:
    """The error names the field, the value and the limit, and not even the topic is declared (promise 13)."""
    with pytest.raises(InvalidInput) as caught:
        await producer.send(**{"topic": "orders", "body": b"x"} | bad)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field} ")
    assert keys_left(client, prefix) == []


async def test_asking_declares_nothing(producer: Any, client: redis.Redis, prefix: str) -> None:
    """Finding or cancelling a message in an unknown topic does not create the topic."""
    assert await producer.find("nowhere", "x") is None
    assert await producer.cancel("nowhere", "x") is CancelOutcome.UNKNOWN
    assert await producer.reschedule("nowhere", "x", delay=1) is RescheduleOutcome.UNKNOWN
    assert (await producer.send_many("nowhere", [])).sent == 0
    assert keys_left(client, prefix) == []


async def test_every_message_of_many_gets_a_result(producers: Producers, client: redis.Redis, prefix: str) -> None:
    """Results come in the order of the messages, over all batches; invalid messages do not stop the others."""
    producer = producers(batch_messages=2)
    messages = [
        Message(body=b"0", id="a", delay=60),
        Message(body=b"1", delay=-1),
        Message(body=b"2", id="a"),
        Message(body=10**5_000, id="c"),
        Message(body=b"4", delay=60),
    ]
    with pytest.raises(PartialSend) as caught:
        await producer.send_many("orders", messages)
    report = caught.value.report
    assert [result.position for result in report.results] == [0, 1, 2, 3, 4]
    assert [result.outcome.value for result in report.results] == ["sent", "failed", "duplicate", "failed", "sent"]
    assert (report.sent, report.duplicates, report.failed) == (2, 1, 2)
    assert isinstance(report.first_error, InvalidInput)
    assert report.first_error is report.results[1].error
    assert client.zcard(f"{prefix}:{{orders}}:waiting") == 2


async def test_results_may_go_to_a_callback(producers: Producers) -> None:
    """With a callback for results, no exception is raised for failed messages, and the report keeps no results."""
    told: list[int] = []
    report = await producers(batch_messages=3).send_many(
        "orders",
        [Message(body=b"x", delay=n - 1) for n in range(7)],
        on_result=lambda result: told.append(result.position),
    )
    assert (told, report.results) == ([0, 1, 2, 3, 4, 5, 6], [])
    assert (report.sent, report.failed) == (6, 1)


async def test_results_may_go_to_a_callback_batch_by_batch(producers: Producers) -> None:
    """Each batch with all its results, refused messages included; no exception, and nothing is kept."""
    told: list[list[int]] = []
    report = await producers(batch_messages=3).send_many(
        "orders",
        [Message(body=b"x", delay=n - 1) for n in range(7)],
        on_batch=lambda results: told.append([result.position for result in results]),
    )
    assert (told, report.results) == ([[0, 1, 2], [3, 4, 5], [6]], [])
    assert (report.sent, report.failed) == (6, 1)


async def test_messages_are_taken_a_batch_at_a_time(producers: Producers, client: redis.Redis, prefix: str) -> None:
    """At most one batch is in memory: earlier messages are sent before the next one is read."""
    held = []

    def messages() -> Iterator[Message]:
        for n in range(10):
            held.append(n - client.zcard(f"{prefix}:{{orders}}:waiting"))
            yield Message(body=b"x", delay=60)

    await producers(batch_messages=4).send_many("orders", messages())
    assert held == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]


async def test_bytes_close_a_batch_too(producers: Producers, client: redis.Redis, prefix: str) -> None:
    """A batch of large bodies is sent below the limit of messages, and within the limit of bytes."""
    waiting = []

    def messages() -> Iterator[Message]:
        for _ in range(4):
            waiting.append(client.zcard(f"{prefix}:{{orders}}:waiting"))
            yield Message(body=b"x" * 400, delay=60)

    await producers(batch_bytes=1_024).send_many("orders", messages())
    assert waiting == [0, 0, 2, 2]


async def test_no_call_exceeds_the_bytes_of_a_batch(producers: Producers, client: redis.Redis, prefix: str) -> None:
    """A message that does not fit into a call goes with the next one; one beyond the limit goes alone."""
    sizes = (100, 1_000, 300, 300, 300, 5_000)
    node = node_of(client, f"{prefix}:{{orders}}:closed")
    producer = producers(batch_bytes=1_024)
    # Loads the script.
    await producer.send("orders", b"x", delay=60)
    with node.monitor() as monitor:
        await producer.send_many("orders", [Message(body=b"x" * size, delay=60) for size in sizes])
        node.publish(prefix, "end")
        # Sentinels publish, too.
        seen = list(itertools.takewhile(lambda command: command != f"PUBLISH {prefix} end", _commands(monitor)))
    calls = [command for command in seen if command.startswith("EVALSHA") and f"{prefix}:{{orders}}:closed" in command]
    assert [command.count(" +60000 ") for command in calls] == [1, 1, 3, 1]


def _commands(monitor: Any) -> Iterator[str]:
    for seen in monitor.listen():
        if seen["client_type"] != "lua":
            yield seen["command"]


async def test_messages_may_come_asynchronously(sender: AsyncProducer) -> None:
    """The asyncio producer takes an asynchronous iterable as well."""

    async def messages() -> Any:
        for n in range(3):
            yield Message(body={"n": n}, delay=60)

    assert (await sender.send_many("orders", messages())).sent == 3


async def test_a_replacement_follows_what_was_sent_before_it(
    producers: Producers, admin: AsyncAdmin, client: redis.Redis
) -> None:
    """Also where the server has forgotten one of the two scripts, and that call is made once more."""
    await admin.create_topic("orders", shards=2)
    producer = producers(batch_messages=1)
    await producer.send("orders", b"x", id="known", if_exists="replace", delay=60)
    client.script_flush()
    client.script_load(load("replace").text)
    report = await producer.send_many(
        "orders",
        [Message(body=b"v1", id="a", delay=60), Message(body=b"v2", id="a", if_exists="replace", delay=60)],
    )
    assert [result.outcome.value for result in report.results] == ["sent", "replaced"]
    assert (await producer.find("orders", "a")).record.body == b"v2"
