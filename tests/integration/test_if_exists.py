"""`if_exists="replace"`: a send in place of a message that still waits."""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis

from lisa_common.client.connection import Connection
from lisa_common.model.keys import ShardKeys
from lisa_consumer import Consumer
from lisa_manager import Admin, AsyncAdmin
from lisa_producer import (
    AccessDenied,
    AsyncProducer,
    Confirm,
    InvalidInput,
    Message,
    NotConfirmed,
    OutcomeUnknown,
    PartialSend,
    Producer,
    ProducerSettings,
    QueueFull,
    SendOutcome,
    State,
)
from support import Server, idle
from support.commands import Commands
from support.proxy import Proxy
from support.queue import Queue, outgoing

SENT, REPLACED, DUPLICATE = SendOutcome.SENT, SendOutcome.REPLACED, SendOutcome.DUPLICATE


async def test_a_debounced_message_is_the_last_that_was_sent(producer: Any, consumers: Callable[..., Any]) -> None:
    """Each send puts off the work and renews it; the first with a delay that ends is delivered, once."""
    results = [
        await producer.send("orders", n, id="sync", delay=600 if n < 4 else 0, if_exists="replace") for n in range(5)
    ]
    assert [result.outcome for result in results] == [SENT, REPLACED, REPLACED, REPLACED, REPLACED]
    assert all(result.due_ms and not result.duplicate for result in results)
    consumer = consumers()
    (delivery,) = await consumer.read(10, wait=30)
    assert (delivery.id, delivery.json()) == ("sync", 4)
    late = await producer.send("orders", 5, id="sync", if_exists="replace")
    assert (late.outcome, late.due_ms) == (DUPLICATE, None)
    assert await consumer.ack(delivery) == ["acked"]


async def test_many_messages_may_replace(producer: Any) -> None:
    """The last of an id that replaces stands, whatever others there are."""
    await producer.send("orders", "0", id="a", delay=600)
    messages = [
        Message(body="1", id="a", delay=600, if_exists="replace"),
        Message(body="2", id="a", delay=600),
        Message(body="3", id="b", delay=600, if_exists="replace"),
        Message(body="4", id="a", delay=300, if_exists="replace"),
        Message(body="5", delay=600),
    ]
    report = await producer.send_many("orders", messages)
    outcomes = [result.outcome for result in report.results]
    assert outcomes == [REPLACED, DUPLICATE, SENT, REPLACED, SENT]
    assert (report.sent, report.replaced, report.duplicates, report.failed) == (2, 2, 1, 0)
    found = await producer.find("orders", "a")
    assert (found.record.body, found.due_ms) == (b"4", report.results[3].due_ms)


async def test_callers_share_calls_by_kind(sender: AsyncProducer) -> None:
    """Those that replace have a call of their own."""
    await sender.send("orders", "old", id="a", delay=600)
    sends = [sender.send("orders", str(n), id="a", delay=600, if_exists="replace") for n in range(20)]
    plain = [sender.send("orders", str(n), id="a", delay=600) for n in range(20)]
    replaced = await asyncio.gather(*sends, *plain)
    assert [result.outcome for result in replaced] == [REPLACED] * 20 + [DUPLICATE] * 20


def _retried_by_many(orders: Queue, client: redis.Redis, ids: Sequence[str]) -> None:
    """Messages that a hundred groups have to retry: a call does only some of them."""
    groups = [f"g{n}" for n in range(100)]
    orders.join(*groups)
    orders.send_all([outgoing(id) for id in ids])
    copies = [f"{group}/{id}" for group in groups for id in ids]
    client.zadd(orders.keys.of("retry"), dict.fromkeys(copies, orders.now_ms + 600_000))


def _calls(client: redis.Redis, command: str) -> int:
    stats: dict[str, Any] = client.info("commandstats")  # type: ignore[assignment]
    return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])


async def test_what_one_call_cannot_do_takes_several(producer: Any, orders: Queue, client: redis.Redis) -> None:
    """The last of an id that replaces stands all the same."""
    ids = [f"m{n}" for n in range(30)]
    _retried_by_many(orders, client, ids)
    messages = [Message(body=f"{n}", id=id, delay=600, if_exists="replace") for n in range(2) for id in ids]
    report = await producer.send_many("orders", messages)
    assert [result.outcome for result in report.results] == [REPLACED] * 60
    found = [await producer.find("orders", id) for id in ids]
    assert [(each.state, each.record.body) for each in found] == [(State.WAITING, b"1")] * 30


async def test_callers_of_what_takes_several_calls(sender: AsyncProducer, orders: Queue, client: redis.Redis) -> None:
    """Each is told its own end."""
    ids = [f"m{n}" for n in range(30)]
    _retried_by_many(orders, client, ids)
    sends = [sender.send("orders", id, id=id, delay=600, if_exists="replace") for id in ids]
    results = await asyncio.gather(*sends)
    assert [(result.id, result.outcome) for result in results] == [(id, REPLACED) for id in ids]


@pytest.mark.parametrize("many", [False, True], ids=["send", "send_many"])
async def test_each_of_several_calls_is_confirmed(
    own_server: Callable[..., Server], prefix: str, *, many: bool
) -> None:
    """The result says so of each message that no replica has, whichever call stored it."""
    server = own_server()
    ids = [f"m{n}" for n in range(30)]
    with server.client() as client, Connection(server.url) as connection:
        _retried_by_many(Queue(connection, ShardKeys(prefix, "orders")), client, ids)
        settings = ProducerSettings(redis_url=server.url, prefix=prefix)
        async with AsyncProducer(settings=settings, confirm=Confirm(replicas=1, timeout=0.001)) as producer:
            if many:
                messages = [Message(body=id, id=id, delay=600, if_exists="replace") for id in ids]
                with pytest.raises(PartialSend) as failed:
                    await producer.send_many("orders", messages)
                errors: list[Any] = [result.error for result in failed.value.report.results]
            else:
                sends = [producer.send("orders", id, id=id, delay=600, if_exists="replace") for id in ids]
                errors = await asyncio.gather(*sends, return_exceptions=True)
        assert [type(error) for error in errors] == [NotConfirmed] * 30
        assert _calls(client, "wait") >= 3
        assert client.zcard(ShardKeys(prefix, "orders").of("waiting")) == 30


async def test_a_retry_is_replaced(producer: Any, consumers: Callable[..., Any]) -> None:
    """It begins anew; the former delivery's ack is stale."""
    consumer = consumers()
    await producer.send("orders", "old", id="a")
    (former,) = await consumer.read(wait=30)
    await consumer.nack(former, delay=600)
    assert (await producer.send("orders", "new", id="a", if_exists="replace")).outcome is REPLACED
    assert await consumer.ack(former) == ["stale"]
    (delivery,) = await consumer.read(wait=30)
    assert (delivery.body, delivery.attempt) == (b"new", 1)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"id": "a", "if_exists": "skip"}, "if_exists must be 'replace' or omitted; got 'skip'"),
        ({"if_exists": "replace"}, "if_exists needs id"),
    ],
)
async def test_bad_input_is_refused(producer: Any, options: Any, text: str) -> None:
    """Before anything is written."""
    with pytest.raises(InvalidInput, match=text):
        await producer.send("orders", "x", **options)
    assert await producer.find("orders", "a") is None


@pytest.mark.parametrize("many", [False, True], ids=["send", "send_many"])
@pytest.mark.parametrize("later", ["cancel", "cancel and reshard", "replace"])
async def test_a_repeat_does_not_undo_what_came_later(
    own_server: Callable[..., Server], later: str, *, many: bool
) -> None:
    """The reply to a replacement is lost; before the producer repeats it, somebody cancels or replaces the message."""
    server = own_server()
    with Admin(server.url) as admin, Producer(server.url) as other:
        other.send("orders", "old", id="a", delay=600, if_exists="replace")
        async with Proxy(server.port) as proxy, AsyncProducer(proxy.url) as producer:

            def change() -> None:
                # Records tell the time in ms: what came later in the same ms as the first try does not look later.
                idle(0.02)
                if later != "replace":
                    admin.cancel("orders", ["a"])
                    if later != "cancel":
                        admin.reshard("orders", 3)
                        with Producer(server.url) as informed:
                            informed.send("orders", "x", id="closes the former shard", delay=600)
                else:
                    other.send("orders", "later", id="a", delay=900, if_exists="replace")

            proxy.at_loss = lambda: asyncio.to_thread(change)
            proxy.lose_reply_to(b"lost-1")
            message = Message(body="lost-1", id="a", delay=600, if_exists="replace")
            if many:
                (result,) = (await producer.send_many("orders", [message])).results
            else:
                result = await producer.send("orders", "lost-1", id="a", delay=600, if_exists="replace")
            assert proxy.lost == 1
        found = other.find("orders", "a")
        if later != "replace":
            assert (result.outcome, found) == (DUPLICATE, None)
        else:
            assert found is not None
            assert found.record is not None
            assert (result.outcome, found.record.body) == (REPLACED, b"later")


async def test_a_repeat_knows_its_own_message_wherever_that_is(own_server: Callable[..., Server]) -> None:
    """It was delivered and failed within a few ms: its attempts and the delay of its retry stay."""
    server = own_server()
    with Consumer("orders", "billing", url=server.url) as consumer:
        consumer.read()

        def fail() -> None:
            [delivery] = consumer.read(wait=30)
            consumer.nack(delivery, delay=60)

        for number in range(5):
            async with Proxy(server.port) as proxy, AsyncProducer(proxy.url) as producer:
                await producer.send("orders", "x", id="loads the script", delay=600, if_exists="replace")
                proxy.at_loss = lambda: asyncio.to_thread(fail)
                proxy.lose_reply_to(b"lost-1")
                result = await producer.send("orders", "lost-1", id=f"m{number}", if_exists="replace")
                found = await producer.find("orders", f"m{number}")
            assert found is not None
            assert (proxy.lost, result.outcome, found.state, found.attempts) == (1, REPLACED, State.RETRY, 1)


async def test_a_reshard_changes_nothing(producer: Any, commands: Commands, admin: AsyncAdmin) -> None:
    """A message is replaced in the former shard that holds it, by `send` and by `send_many`."""
    ids = [f"m{n}" for n in range(6)]
    await producer.send_many("orders", [Message(body="old", id=id, delay=600) for id in ids])
    assert commands.manager("topic", "reshard", "orders", "--shards", "3").code == 0
    first = await producer.send("orders", "new", id="m0", delay=900, if_exists="replace")
    more = [Message(body="new", id=id, delay=900, if_exists="replace") for id in (*ids[1:], "m6")]
    report = await producer.send_many("orders", more)
    assert [first.outcome, *(result.outcome for result in report.results)] == [REPLACED] * 6 + [SENT]
    [status] = [each for each in await admin.status() if each.topic == "orders"]
    assert status.waiting == 7
    found = [await producer.find("orders", id) for id in ids]
    assert {(each.state, each.record.body) for each in found} == {(State.WAITING, b"new")}


async def test_a_plain_send_beside_a_replacement_is_a_duplicate(
    producers: Callable[..., Any], sender: AsyncProducer, commands: Commands
) -> None:
    """Also where a former shard has the id, and the producer knows of the reshard."""
    await sender.send("orders", "old", id="a", delay=600)
    assert commands.manager("topic", "reshard", "orders", "--shards", "3").code == 0
    plain, replacing = Message(body="x", id="a"), Message(body="new", id="a", delay=900, if_exists="replace")
    report = await producers().send_many("orders", [plain, replacing])
    assert [result.outcome for result in report.results] == [DUPLICATE, REPLACED]


@pytest.mark.parametrize(("if_exists", "known"), [(None, DUPLICATE), ("replace", REPLACED)])
async def test_a_full_shard_refuses_only_new_messages(
    sender: AsyncProducer, admin: AsyncAdmin, if_exists: Any, known: SendOutcome
) -> None:
    """Callers share calls: those whose ids former shards know are told so, whatever becomes of the others."""
    await admin.create_topic("orders", shards=2)
    for id in ("a", "b", "c"):
        await sender.send("orders", "old", id=id, delay=600)
    await admin.reshard("orders", 1)
    await admin.set_policy("orders", max_messages=1)
    await sender.send("orders", "old", id="fills the shard", delay=600)
    sends = [sender.send("orders", "new", id=id, delay=900, if_exists=if_exists) for id in ("a", "b", "c", "new")]
    results: list[Any] = await asyncio.gather(*sends, return_exceptions=True)
    assert [result.outcome for result in results[:3]] == [known] * 3
    assert isinstance(results[3], QueueFull)


def test_each_message_in_a_former_shard_is_told_its_own_end(own_server: Callable[..., Server]) -> None:
    """One of two former shards refuses: what was replaced in the other is told so."""
    server = own_server()
    ids = [f"m{n}" for n in range(20)]
    with server.client() as client, Admin(server.url) as admin, Producer(server.url) as other:
        admin.create_topic("orders", shards=2)
        other.send_many("orders", [Message(body="old", id=id, delay=600) for id in ids])
        admin.reshard("orders", 1)
        permitted = ("lisa:topics", "lisa:{orders/0*")
        client.acl_setuser("jo", enabled=True, passwords=["+pw"], keys=permitted, channels=["*"], categories=["+@all"])
        with Producer(server.url.replace("://", "://jo:pw@")) as producer, pytest.raises(PartialSend) as failed:
            producer.send_many("orders", [Message(body="new", id=id, delay=600, if_exists="replace") for id in ids])
        results = failed.value.report.results
        assert {type(result.error) for result in results} == {AccessDenied, type(None)}
        assert {result.outcome for result in results if not result.error} == {REPLACED}
        found = {id: other.find("orders", id) for id in ids}
        replaced = {id for id, each in found.items() if each and each.record and each.record.body == b"new"}
        assert replaced == {result.id for result in results if not result.error}


@pytest.mark.parametrize("many", [False, True], ids=["send", "send_many"])
async def test_a_replacement_in_a_former_shard_is_not_repeated_blindly(
    own_server: Callable[..., Server], *, many: bool
) -> None:
    """Where the id may be forgotten meanwhile, a lost reply leaves the outcome open, as of any send."""
    server = own_server()
    with Admin(server.url) as admin, Producer(server.url) as other:
        admin.create_topic("orders", dedup_window_ms=0)
        other.send("orders", "old", id="a", delay=600)
        admin.reshard("orders", 3)
        async with Proxy(server.port) as proxy, AsyncProducer(proxy.url) as producer:
            proxy.lose_reply_to(b"lost-1")
            message = Message(body="lost-1", id="a", delay=60, if_exists="replace")
            if many:
                with pytest.raises(PartialSend) as failed:
                    await producer.send_many("orders", [message])
                assert isinstance(failed.value.report.results[0].error, OutcomeUnknown)
            else:
                with pytest.raises(OutcomeUnknown):
                    await producer.send("orders", "lost-1", id="a", delay=60, if_exists="replace")


def test_commands(commands: Commands, tmp_path: Path) -> None:
    """`send` says what it did; `load` counts; a bad value is refused."""
    sent = [
        commands.producer("send", "orders", body, "--id", "a", "--delay", "1h", "--if-exists", "replace")
        for body in ("1", "2")
    ]
    assert [(ran.code, ran.out.split(",")[0]) for ran in sent] == [(0, "sent a"), (0, "replaced a")]
    again = commands.producer("send", "orders", "3", "--id", "a", "--delay", "1h", "--if-exists", "replace", "--json")
    assert again.document["outcome"] == "replaced"
    refused = commands.producer("send", "orders", "3", "--id", "a", "--if-exists", "keep")
    assert (refused.code, "if_exists must be 'replace' or omitted; got 'keep'" in refused.err) == (2, True)
    path = tmp_path / "lines"
    line = {"topic": "orders", "body": "4", "id": "a", "delay": "2h"}
    path.write_text("\n".join(json.dumps(each) for each in (line | {"if_exists": "replace"}, line)))
    assert commands.producer("load", str(path)).out == "sent 0, duplicates 1, failed 0, replaced 1\n"
    assert commands.producer("load", str(path), "--json").document["replaced"] == 1
