"""Both producers with a server that is unreachable, denies access, confirms slowly, or loses a reply."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from threading import Thread
from typing import Any

import pytest

from lisa_common.errors import AccessDenied, InvalidInput, NotConfirmed, OutcomeUnknown, Refused, Unreachable
from lisa_common.model.keys import topics_key
from lisa_common.model.policy import Policy
from lisa_consumer import AsyncConsumer, ConsumerSettings
from lisa_manager import AsyncAdmin, ManagerSettings
from lisa_producer import (
    AsyncProducer,
    CancelOutcome,
    Confirm,
    Message,
    PartialSend,
    ProducerSettings,
    RescheduleOutcome,
    SendOutcome,
)
from support import Server, wait_until_async
from support.proxy import Proxy
from support.refusing import refusing
from support.waiting import idle_async

Producers = Callable[..., Any]
OwnServer = Callable[..., Server]


def _count(server: Server, prefix: str, name: str) -> int:
    with server.client() as client:
        return int({"ready": client.xlen, "waiting": client.zcard}[name](f"{prefix}:{{orders}}:{name}"))


async def test_an_absent_server_is_reported_after_the_producers_patience(
    producers: Producers, own_server: OwnServer
) -> None:
    """Each call tries for `patience_s`, then raises Unreachable: nothing was done."""
    server = own_server()
    server.stop()
    producer = producers(server.url, patience_s=0.3)
    began = time.monotonic()
    with pytest.raises(Unreachable, match=str(server.port)):
        await producer.send("orders", b"x")
    assert time.monotonic() - began < 20  # it tries for 30 s by default


async def test_many_messages_stop_at_an_absent_server(producers: Producers, own_server: OwnServer) -> None:
    """The unsent messages of the batch fail; later ones are not read."""
    server = own_server()
    producer = producers(server.url, patience_s=0.1, batch_messages=2)
    taken = []

    def messages() -> Iterator[Message]:
        for n in range(10):
            if n == 2:
                server.stop()
            taken.append(n)
            yield Message(body=b"x", id=f"m{n}", delay=60)

    with pytest.raises(PartialSend) as caught:
        await producer.send_many("orders", messages())
    report = caught.value.report
    assert (report.sent, report.failed, taken) == (2, 2, [0, 1, 2, 3])
    # The asyncio client may have written before it learnt that the connection was closed.
    assert isinstance(caught.value.__cause__, Unreachable | OutcomeUnknown)


async def test_a_send_survives_a_server_that_comes_back(
    producers: Producers, own_server: OwnServer, prefix: str
) -> None:
    """A send waits for the server within its patience; an absence between two sends has no effect."""
    server = own_server(appendonly="yes")
    producer = producers(server.url)
    await producer.send("orders", b"before", delay=60)
    await asyncio.to_thread(server.restart)
    await producer.send("orders", b"between", delay=60)
    await asyncio.to_thread(server.stop)
    starter = Thread(target=server.start)
    starter.start()
    await producer.send("orders", b"after", delay=60)
    starter.join()
    assert _count(server, prefix, "waiting") == 3


async def test_a_restart_under_many_messages_loses_and_doubles_nothing(
    producers: Producers, own_server: OwnServer, prefix: str
) -> None:
    """Sending resumes when the server is back: with chosen ids, each message is stored once (promise 6)."""
    server = own_server(appendonly="yes")
    starters = []

    def messages() -> Iterator[Message]:
        for n in range(900):
            if n in (350, 710):
                server.stop()
                starters.append(Thread(target=server.start))
                starters[-1].start()
            yield Message(body=b"x", id=f"m{n}", delay=60)

    report = await producers(server.url, batch_messages=100).send_many("orders", messages())
    for starter in starters:
        starter.join()
    assert (report.sent, report.duplicates, report.failed) == (900, 0, 0)
    assert _count(server, prefix, "waiting") == 900


async def test_a_lost_reply_of_a_generated_id_leaves_the_outcome_unknown(
    producers: Producers, own_server: OwnServer, prefix: str
) -> None:
    """A message due now may have been acked before a second try: it is not sent twice, and the call raises."""
    server = own_server()
    async with Proxy(server.port) as proxy:
        producer = producers(proxy.url)
        await producer.send("orders", b"first")
        proxy.lose_reply_to(b"EVALSHA")
        with pytest.raises(OutcomeUnknown):
            await producer.send("orders", b"second")
        assert proxy.lost == 1
        assert _count(server, prefix, "ready") == 2
        await producer.send("orders", b"third")
        assert _count(server, prefix, "ready") == 3


@pytest.mark.parametrize(
    ("options", "settings", "outcome"),
    [
        ({"id": "mine"}, {}, SendOutcome.DUPLICATE),
        ({"delay": 600}, {}, SendOutcome.SENT),
        ({}, {"at_least_once": True}, SendOutcome.SENT),
    ],
    ids=["chosen id", "generated id, due much later", "at least once"],
)
async def test_a_lost_reply_is_made_good_where_that_cannot_send_twice_or_may(
    producers: Producers,
    own_server: OwnServer,
    prefix: str,
    *,
    options: dict[str, Any],
    settings: dict[str, Any],
    outcome: SendOutcome,
) -> None:
    """The send is retried, and one message is stored (promise 6)."""
    server = own_server()
    async with Proxy(server.port) as proxy:
        producer = producers(proxy.url, **settings)
        # The first send declares the topic, by a script too.
        await producer.send("orders", b"x", id="first")
        proxy.lose_reply_to(b"EVALSHA")
        assert (await producer.send("orders", b"x", **options)).outcome is outcome
        assert proxy.lost == 1
        sent_later = "delay" in options
        assert (_count(server, prefix, "waiting"), _count(server, prefix, "ready")) == (sent_later, 2 - sent_later)


@pytest.mark.parametrize(
    ("options", "patience_s", "window_ms"),
    [({"id": "mine"}, 30, 49_000), ({"delay": 600}, 600, 300_000)],
    ids=["chosen id", "generated id, due much later"],
)
async def test_a_send_is_not_tried_for_longer_than_its_id_is_known(
    producers: Producers, own_server: OwnServer, prefix: str, *, options: Any, patience_s: int, window_ms: int
) -> None:
    """The call raises, as the last try could repeat a message that was handled and forgotten (promise 6)."""
    server = own_server()
    with server.client() as client:
        client.hset(topics_key(prefix), "orders", Policy.of({"dedup_window_ms": window_ms}).dump())
    async with Proxy(server.port) as proxy:
        producer = producers(proxy.url, patience_s=patience_s)
        await producer.send("orders", b"first", delay=60)
        proxy.lose_reply_to(b"EVALSHA")
        with pytest.raises(OutcomeUnknown):
            await producer.send("orders", b"second", **options)


async def test_a_cancel_whose_reply_is_lost_leaves_a_later_message_alone(
    producers: Producers, own_server: OwnServer, prefix: str
) -> None:
    """The first try has cancelled; the id belongs to another message when the server is reachable again."""
    server = own_server()
    async with Proxy(server.port) as proxy, _direct(server, prefix) as direct:
        producer = producers(proxy.url)
        await producer.send("orders", b"old", id="one", delay=60)
        assert await producer.cancel("orders", "none") is CancelOutcome.UNKNOWN  # the server has the script
        cancelling = await _cut_off(proxy, producer.cancel("orders", "one"))
        assert (await direct.send("orders", b"new", id="one", delay=60)).outcome is SendOutcome.SENT
        proxy.lead_to(server.port)
        with pytest.raises(OutcomeUnknown):
            await cancelling
        found = await direct.find("orders", "one")
        assert found
        assert found.record
        assert found.record.body == b"new"


@pytest.mark.parametrize("change", ["cancel", "reschedule"])
async def test_a_change_whose_reply_is_lost_is_unknown_though_the_server_is_away_then(
    producers: Producers, own_server: OwnServer, prefix: str, change: str
) -> None:
    """Later tries did nothing, but the first one may have."""
    server = own_server()
    async with Proxy(server.port) as proxy, _direct(server, prefix) as direct:
        changing = await _change_cut_off(proxy, producers(proxy.url, patience_s=0.5), change)
        with pytest.raises(OutcomeUnknown):
            await changing
        found = await direct.find("orders", "one")
        assert (found is None) == (change == "cancel")


@pytest.mark.parametrize("change", ["cancel", "reschedule"])
async def test_a_change_whose_reply_is_lost_does_not_pass_for_one_of_no_message(
    producers: Producers, own_server: OwnServer, prefix: str, change: str
) -> None:
    """The message is gone, by the first try, or because that made it due: "unknown" would tell its caller otherwise."""
    server = own_server()
    async with Proxy(server.port) as proxy, _direct(server, prefix) as direct:
        changing = await _change_cut_off(proxy, producers(proxy.url), change)
        await direct.cancel("orders", "one")
        proxy.lead_to(server.port)
        with pytest.raises(OutcomeUnknown):
            await changing


async def test_a_cancel_whose_reply_is_lost_does_not_pass_for_one_that_came_too_late(
    producers: Producers, own_server: OwnServer, prefix: str
) -> None:
    """One group has acked, so that the id stays known; the other's copy is cancelled, and "finished" would be wrong."""
    server = own_server()
    settings = ConsumerSettings(redis_url=server.url, prefix=prefix)
    async with (
        Proxy(server.port) as proxy,
        _direct(server, prefix) as direct,
        AsyncConsumer("orders", "billing", settings=settings) as billing,
        AsyncConsumer("orders", "audit", settings=settings) as audit,
    ):
        producer = producers(proxy.url)
        for consumer in (billing, audit):
            await consumer.read()
        await direct.send("orders", b"x", id="one")
        assert await producer.cancel("orders", "none") is CancelOutcome.UNKNOWN  # the server has the script
        await audit.ack(*await audit.read(wait=30))
        cancelling = await _cut_off(proxy, producer.cancel("orders", "one"))
        proxy.lead_to(server.port)
        with pytest.raises(OutcomeUnknown):
            await cancelling
        assert await billing.read() == []


async def test_a_reschedule_whose_reply_is_lost_leaves_a_later_message_alone(
    producers: Producers, own_server: OwnServer, prefix: str
) -> None:
    """A message that existed before the first try is rescheduled by a later try."""
    server = own_server()
    async with Proxy(server.port) as proxy, _direct(server, prefix) as direct:
        producer = producers(proxy.url)
        for id in ("one", "two"):
            await producer.send("orders", b"old", id=id, delay=60)
        assert await producer.reschedule("orders", "none", delay=90) is RescheduleOutcome.UNKNOWN
        # What was sent in the millisecond of the first try cannot be told from what was sent after it.
        await idle_async(0.05)
        moving = await _cut_off(proxy, producer.reschedule("orders", "two", delay=90))
        proxy.lead_to(server.port)
        assert await moving is RescheduleOutcome.RESCHEDULED

        moving = await _cut_off(proxy, producer.reschedule("orders", "one", delay=90))
        assert await direct.cancel("orders", "one") is CancelOutcome.CANCELLED
        new = await direct.send("orders", b"new", id="one", delay=60)
        proxy.lead_to(server.port)
        with pytest.raises(OutcomeUnknown):
            await moving
        found = await direct.find("orders", "one")
        assert found
        assert found.due_ms == new.due_ms


def _direct(server: Server, prefix: str) -> AsyncProducer:
    return AsyncProducer(settings=ProducerSettings(redis_url=server.url, prefix=prefix))


async def _cut_off(proxy: Proxy, call: Awaitable[Any]) -> "asyncio.Future[Any]":
    """A call whose reply is lost; the server is unreachable afterwards."""
    lost = proxy.lost
    proxy.lose_reply_to(b"EVALSHA")
    proxy.lead_to(1)
    calling = asyncio.ensure_future(call)
    await wait_until_async(lambda: proxy.lost > lost, what="a reply to be lost")
    return calling


async def _change_cut_off(proxy: Proxy, producer: AsyncProducer, change: str) -> "asyncio.Future[Any]":
    """The same of a cancel or a reschedule of the message `one`, which is sent first."""
    await producer.send("orders", b"x", id="one", delay=60)
    make = getattr(producer, change)
    options = {} if change == "cancel" else {"delay": 90}
    assert await make("orders", "none", **options) == "unknown"  # the server has the script
    return await _cut_off(proxy, make("orders", "one", **options))


async def test_a_batch_with_a_lost_reply_says_so_for_each_message(producers: Producers, own_server: OwnServer) -> None:
    """Generated ids that are due now: every message of the batch fails with OutcomeUnknown."""
    server = own_server()
    async with Proxy(server.port) as proxy:
        producer = producers(proxy.url)
        await producer.send("orders", b"x")
        proxy.lose_reply_to(b"EVALSHA")
        with pytest.raises(PartialSend) as caught:
            await producer.send_many("orders", [Message(body=b"x") for _ in range(3)])
        assert [type(result.error) for result in caught.value.report.results] == [OutcomeUnknown] * 3


async def test_scripts_are_loaded_again_after_a_flush(producers: Producers, own_server: OwnServer) -> None:
    """A server that lost its scripts gets them again (promise 14)."""
    server = own_server()
    producer = producers(server.url)
    await producer.send("orders", b"x", id="a")
    with server.client() as client:
        client.script_flush()
    assert (await producer.send("orders", b"x", id="b")).outcome is SendOutcome.SENT
    with server.client() as client:
        client.script_flush()
    assert (await producer.find("orders", "b")).record.body == b"x"


async def test_a_close_after_a_lost_reply_does_not_hide_it(
    producers: Producers, own_server: OwnServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The send may have been stored; the try that met the closed client is only the last one."""
    server = own_server()
    producer = producers(server.url, timeout_s=0.3, patience_s=60)
    await producer.send("orders", b"x", id="first", delay=900)
    caplog.clear()  # the first reply may be late, too
    server.freeze()
    sending = asyncio.ensure_future(producer.send("orders", b"x", id="a", delay=900))
    await wait_until_async(lambda: "trying again" in caplog.text)
    await producer.close()
    with pytest.raises(OutcomeUnknown):
        await sending
    server.thaw()


async def test_a_wrong_password_is_not_retried(producers: Producers, own_server: OwnServer) -> None:
    """AccessDenied is raised at once, and does not contain the password."""
    server = own_server()
    with server.client() as client:
        client.acl_setuser("jo", enabled=True, passwords=["+right"], keys=["*"], categories=["+@all"])
    producer = producers(server.url.replace("redis://", "redis://jo:secret@"), patience_s=60)
    with pytest.raises(AccessDenied) as caught:
        await producer.send("orders", b"x")
    assert "secret" not in str(caught.value)


async def test_a_full_server_refuses_a_send_whole(producers: Producers, own_server: OwnServer, prefix: str) -> None:
    """Without memory nothing of a message is written; with memory again, the same producer sends (promise 14)."""
    server = own_server()
    producer = producers(server.url, patience_s=0.1)
    await producer.send("orders", b"x", id="before", delay=60)
    with server.client() as client:
        client.config_set("maxmemory", "1mb")
        with pytest.raises(Refused, match="maxmemory"):
            await producer.send("orders", b"x", id="full", delay=60)
        client.config_set("maxmemory", "0")
    assert await producer.find("orders", "full") is None
    await producer.send("orders", b"x", id="full", delay=60)
    assert _count(server, prefix, "waiting") == 2


def _replicas(server: Server) -> int:
    with server.client() as client:
        info = client.info("replication")
    return sum(info[f"slave{n}"]["state"] == "online" for n in range(info["connected_slaves"]))


async def test_a_send_can_be_confirmed_by_replicas(producers: Producers, own_server: OwnServer, prefix: str) -> None:
    """With `confirm` a send returns once as many replicas have it; the error for fewer names their number."""
    server = own_server(repl_diskless_sync_delay="0")
    own_server(replicaof=f"127.0.0.1 {server.port}")
    await wait_until_async(lambda: _replicas(server) == 1)
    producer = producers(server.url, confirm=Confirm(replicas=1, timeout=60))
    assert (await producer.send("orders", b"x", id="a")).outcome is SendOutcome.SENT
    with pytest.raises(NotConfirmed, match=r"wanted 2 replicas, got 1 replicas") as caught:
        await producer.send("orders", b"x", id="b", confirm=Confirm(replicas=2, timeout=0.1))
    assert (caught.value.topic, caught.value.ids) == ("orders", ("b",))
    assert _count(server, prefix, "ready") == 2


async def test_a_duplicate_is_confirmed_as_what_it_repeats(producers: Producers, own_server: OwnServer) -> None:
    """A send retried over another connection is confirmed when replicas have the first try's write."""
    server = own_server(repl_diskless_sync_delay="0")
    replica = own_server(replicaof=f"127.0.0.1 {server.port}")
    await wait_until_async(lambda: _replicas(server) == 1)
    first, second = producers(server.url), producers(server.url, confirm=Confirm(replicas=1, timeout=60))
    await second.send("orders", b"x", id="before", delay=60)
    replica.freeze()
    await first.send("orders", b"x", id="mine", delay=60)
    with pytest.raises(NotConfirmed):
        await second.send("orders", b"x", id="mine", delay=60, confirm=Confirm(replicas=1, timeout=0.1))
    replica.thaw()
    assert (await second.send("orders", b"x", id="mine", delay=60)).outcome is SendOutcome.DUPLICATE


async def test_many_messages_are_confirmed_by_the_batch(producers: Producers, own_server: OwnServer) -> None:
    """An unconfirmed batch ends the send; its messages count as failed."""
    producer = producers(own_server().url, batch_messages=2)
    with pytest.raises(PartialSend) as caught:
        await producer.send_many(
            "orders", [Message(body=b"x") for _ in range(5)], confirm=Confirm(replicas=1, timeout=0.05)
        )
    report = caught.value.report
    assert (report.sent, report.failed) == (0, 2)
    assert isinstance(caught.value.__cause__, NotConfirmed)


async def test_a_send_can_be_confirmed_by_disks(producers: Producers, own_server: OwnServer) -> None:
    """With `fsync` this server's disk has it, too; a server without AOF or WAITAOF confirms nothing."""
    server, volatile = own_server(appendonly="yes", appendfsync="always"), own_server()
    confirm = Confirm(fsync=True, timeout=60)
    with server.client() as client:
        version = tuple(int(part) for part in client.info("server")["redis_version"].split(".")[:2])
    if version >= (7, 2):
        assert (await producers(server.url).send("orders", b"x", confirm=confirm)).outcome is SendOutcome.SENT
    with pytest.raises(NotConfirmed, match="fsync"):
        await producers(volatile.url).send("orders", b"x", confirm=confirm)


def test_a_confirmation_of_nothing_is_refused() -> None:
    """A confirmation needs replicas or fsync."""
    with pytest.raises(InvalidInput, match="replicas must be at least 1 without fsync; got 0"):
        Confirm()


async def test_a_lost_reply_is_not_forgotten_while_the_server_is_away(
    producers: Producers, own_server: OwnServer, prefix: str
) -> None:
    """The outcome stays unknown after tries that reached no server: Unreachable would mean that nothing was done."""
    server = own_server(appendonly="yes", appendfsync="always")
    async with Proxy(server.port) as proxy:
        producer = producers(proxy.url, patience_s=1)
        await producer.send("orders", b"x", id="first")
        proxy.lose_reply_to(b"EVALSHA")
        # No try after that reaches a server.
        proxy.lead_to(1)
        with pytest.raises(OutcomeUnknown):
            await producer.send("orders", b"x", id="mine", delay=60)
        assert proxy.lost == 1
    assert _count(server, prefix, "waiting") == 1


class _SecondLimits(list[str]):
    """The commands to refuse: that which sets the limits of a second shard."""

    count = 0

    def __contains__(self, name: object) -> bool:
        self.count += name == "HSETNX"
        return name == "HSETNX" and self.count > 1


async def test_limits_that_one_shard_refuses_are_no_part_of_a_send(own_server: OwnServer, prefix: str) -> None:
    """The message was not sent, so the error does not say that a part was done: a repeat sends it once."""
    server = own_server()
    async with (
        AsyncAdmin(settings=ManagerSettings(redis_url=server.url, prefix=prefix)) as admin,
        refusing(server.port, word=lambda _: "LOADING Redis is loading the dataset in memory") as proxy,
        AsyncProducer(settings=ProducerSettings(redis_url=proxy.url, prefix=prefix, patience_s=0)) as producer,
    ):
        await admin.create_topic("orders", shards=2, max_in_flight=10)
        proxy.refused = _SecondLimits()
        with pytest.raises(Refused):
            await producer.send("orders", b"x")
