"""A send whose reply is lost, and whose message is cancelled or purged before the producer repeats it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from lisa_consumer import Consumer
from lisa_manager import Admin
from lisa_producer import AsyncProducer, CancelOutcome, Message, Producer, SendOutcome, State
from support import Server, wait_until_async
from support.proxy import Proxy
from support.running import managed

_WAY_S = 0.2
"""Longer than a repeat takes to the server: what is withdrawn sooner than that is not promised."""

Send = Callable[[str, Sequence[str]], Awaitable[list[SendOutcome]]]
"""Sends messages of these ids to a URL."""


async def _one(url: str, ids: Sequence[str]) -> list[SendOutcome]:
    with Producer(url) as producer:
        return [(await asyncio.to_thread(producer.send, "orders", "x", id=ids[0], delay=600)).outcome]


async def _one_async(url: str, ids: Sequence[str]) -> list[SendOutcome]:
    async with AsyncProducer(url) as producer:
        return [(await producer.send("orders", "x", id=ids[0], delay=600)).outcome]


async def _shared(url: str, ids: Sequence[str]) -> list[SendOutcome]:
    """Callers that share a call: those behind the first."""
    async with AsyncProducer(url) as producer:
        first = [producer.send("orders", "x", delay=600)]
        sent = await asyncio.gather(*first, *(producer.send("orders", "x", id=id, delay=600) for id in ids))
        return [each.outcome for each in sent[1:]]


async def _many(url: str, ids: Sequence[str]) -> list[SendOutcome]:
    with Producer(url) as producer:
        messages = [Message(body="x", id=id, delay=600) for id in ids]
        report = await asyncio.to_thread(producer.send_many, "orders", messages)
        return [result.outcome for result in report.results]


@pytest.mark.parametrize("send", [_one, _one_async, _shared, _many], ids=["send", "async", "shared", "send_many"])
@pytest.mark.parametrize("window_ms", [300_000, 0], ids=["window", "no window"])
async def test_a_repeat_does_not_undo_a_cancel(own_server: Callable[..., Server], send: Send, window_ms: int) -> None:
    """It is the send of the message that was cancelled; a later send of the id is another one."""
    server, ids = own_server(), ["lost-1", "lost-2"]
    with Admin(server.url) as admin:
        admin.set_policy("orders", dedup_window_ms=window_ms)
        await _one(server.url, ["other"])  # so that the server has the script
        async with Proxy(server.port) as proxy:
            cancelled: dict[str, CancelOutcome] = {}

            async def cancel() -> None:
                await asyncio.sleep(_WAY_S)
                cancelled.update(await asyncio.to_thread(admin.cancel, "orders", ids))

            proxy.at_loss = cancel
            proxy.lose_reply_to(b"lost-1")
            outcomes = await send(proxy.url, ids)
            assert proxy.lost == 1
            assert set(outcomes) == {SendOutcome.DUPLICATE}
        assert [cancelled[id] for id in ids[: len(outcomes)]] == [CancelOutcome.CANCELLED] * len(outcomes)
        assert [admin.find("orders", id) for id in ids] == [None, None]
        with Producer(server.url) as producer:
            assert producer.send("orders", "x", id="lost-1", delay=600).outcome is SendOutcome.SENT


async def test_a_repeat_does_not_undo_a_purge(own_server: Callable[..., Server]) -> None:
    """A consumer rejects the message, and an operator purges it."""
    server = own_server()
    with Admin(server.url) as admin, Consumer("orders", "billing", url=server.url) as consumer:
        await asyncio.to_thread(consumer.read)
        await _one(server.url, ["other"])

        def purge() -> None:
            time.sleep(_WAY_S)
            consumer.reject(*consumer.read(wait=30))
            assert admin.purge_all("orders").done == 1

        async with Proxy(server.port) as proxy, AsyncProducer(proxy.url) as producer:
            proxy.at_loss = lambda: asyncio.to_thread(purge)
            proxy.lose_reply_to(b"lost-1")
            assert (await producer.send("orders", "x", id="lost-1")).outcome is SendOutcome.DUPLICATE
        assert admin.find("orders", "lost-1") is None


async def test_a_repeat_of_a_cancelled_message_needs_no_room(own_server: Callable[..., Server]) -> None:
    """It adds nothing, so a topic that is full meanwhile does not refuse it: `QueueFull` says that nothing was done."""
    server = own_server()
    with Admin(server.url) as admin, Producer(server.url) as other:
        admin.set_policy("orders", max_messages=1)
        await _one(server.url, ["first"])
        admin.cancel("orders", ["first"])

        def replace() -> None:
            time.sleep(_WAY_S)
            admin.cancel("orders", ["lost-1"])
            other.send("orders", "x", delay=600)

        async with Proxy(server.port) as proxy:
            proxy.at_loss = lambda: asyncio.to_thread(replace)
            proxy.lose_reply_to(b"lost-1")
            assert await _one_async(proxy.url, ["lost-1"]) == [SendOutcome.DUPLICATE]


@pytest.mark.parametrize("send", [_one, _one_async, _shared, _many], ids=["send", "async", "shared", "send_many"])
async def test_a_repeat_across_a_reshard_does_not_undo_a_cancel(own_server: Callable[..., Server], send: Send) -> None:
    """The shard where the message was cancelled takes no new ones by then, but knows it."""
    server, ids = own_server(), ["lost-1", "lost-2"]
    with Admin(server.url) as admin:
        await _one(server.url, ["other"])
        async with Proxy(server.port) as proxy:

            def reshard() -> None:
                time.sleep(_WAY_S)
                admin.reshard("orders", 3)
                assert CancelOutcome.CANCELLED in admin.cancel("orders", ids).values()

            proxy.at_loss = lambda: asyncio.to_thread(reshard)
            proxy.lose_reply_to(b"lost-1")
            assert set(await send(proxy.url, ids)) == {SendOutcome.DUPLICATE}
            assert proxy.lost == 1
        assert [admin.find("orders", id) for id in ids] == [None, None]
        with Producer(server.url) as producer:
            assert producer.send("orders", "x", id="lost-1", delay=600).outcome is SendOutcome.SENT


@pytest.mark.parametrize("id", ["lost-1", None], ids=["chosen id", "generated id"])
async def test_a_repeat_does_not_double_what_was_rescheduled_and_handled(
    own_server: Callable[..., Server], id: str | None
) -> None:
    """An operator has it delivered at once: it is acked long before the producer could expect that."""
    server = own_server()
    with Admin(server.url) as admin, Consumer("orders", "billing", url=server.url) as consumer:
        admin.set_policy("orders", dedup_window_ms=0)
        await _one(server.url, ["other"])
        await asyncio.to_thread(consumer.read)
        admin.cancel("orders", ["other"])

        def handle() -> None:
            time.sleep(_WAY_S)
            [message] = admin.messages("orders", State.WAITING).messages
            admin.reschedule("orders", [message.id])
            consumer.ack(*consumer.read(wait=30))

        async with managed(server.url, "lisa"), Proxy(server.port) as proxy, AsyncProducer(proxy.url) as producer:
            proxy.at_loss = lambda: asyncio.to_thread(handle)
            proxy.lose_reply_to(b"the body")
            await producer.send("orders", "the body", id=id, delay=600)
            assert proxy.lost == 1
        assert admin.sizes("orders")[0].stored == 0


async def test_a_repeat_does_not_double_what_was_aged_out(own_server: Callable[..., Server]) -> None:
    """A consumer rejects the message, and the topic keeps no garbage."""
    server = own_server()
    with Admin(server.url) as admin, Consumer("orders", "billing", url=server.url) as consumer:
        admin.set_policy("orders", garbage_max_messages=0)
        await asyncio.to_thread(consumer.read)
        await _one(server.url, ["other"])

        async def reject() -> None:
            await asyncio.sleep(_WAY_S)
            await asyncio.to_thread(lambda: consumer.reject(*consumer.read(wait=30)))
            await wait_until_async(lambda: admin.find("orders", "lost-1") is None)

        async with managed(server.url, "lisa"), Proxy(server.port) as proxy, AsyncProducer(proxy.url) as producer:
            proxy.at_loss = reject
            proxy.lose_reply_to(b"lost-1")
            assert (await producer.send("orders", "x", id="lost-1")).outcome is SendOutcome.DUPLICATE
        assert admin.find("orders", "lost-1") is None


async def test_a_cancel_before_the_send_does_not_count(own_server: Callable[..., Server]) -> None:
    """A send whose first try never arrived is stored by the repeat, though the id was cancelled just before."""
    server = own_server()
    with Admin(server.url) as admin, Producer(server.url) as before:
        before.send("orders", "x", id="lost-1", delay=600)
        assert admin.cancel("orders", ["lost-1"]) == {"lost-1": CancelOutcome.CANCELLED}
        async with Proxy(server.port) as proxy, AsyncProducer(proxy.url) as producer:
            tries: list[Any] = []

            async def drop(data: bytes) -> bytes | None:
                if b"lost-1" in data and not tries:
                    tries.append(data)
                    return None
                return data

            proxy.change_request = drop
            sending = asyncio.create_task(producer.send("orders", "x", id="lost-1", delay=600))
            await wait_until_async(lambda: tries)
            proxy.reset()
            assert (await sending).outcome is SendOutcome.SENT
