"""Many callers of one producer share calls and connections, and get the results of their own messages only."""

import asyncio
import ctypes
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import Closed, InvalidInput, NotConfirmed, OutcomeUnknown, Unreachable
from lisa_common.protocol.call import command
from lisa_producer import (
    AsyncProducer,
    CancelOutcome,
    Confirm,
    Producer,
    ProducerSettings,
    RescheduleOutcome,
    SendOutcome,
)
from lisa_producer.request_queue import RequestQueue
from support import Server, wait_until, wait_until_async
from support.proxy import Proxy

Producers = Callable[..., Any]


@pytest.fixture
def server(own_server: Callable[..., Server]) -> Server:
    """A server of the test's own, to count and pause clients."""
    return own_server()


@pytest.fixture(autouse=True)
async def _threads() -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(320))


@contextmanager
def _held(server: Server) -> Iterator[None]:
    """The server pauses writes meanwhile."""
    with server.client() as client:
        client.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
        try:
            yield
        finally:
            client.execute_command("CLIENT", "UNPAUSE")


def _shared(producer: Any) -> Any:
    """What the calls of a process share, or those of an event loop."""
    coalescer = getattr(producer, "_blocking", producer)._coalescer
    return next(iter(coalescer._states.values())) if hasattr(coalescer, "_states") else coalescer._of_loops.get()


def _queues(producer: Any) -> list[RequestQueue]:
    shared = _shared(producer)
    queues = shared.queues if hasattr(shared, "queues") else shared._queues
    return [queue for queue in list(queues.values()) if isinstance(queue, RequestQueue)]


def _waiting(producer: Any) -> int:
    return sum(len(queue.pending) for queue in _queues(producer))


async def _queued(producer: Any, messages: int) -> None:
    await wait_until_async(lambda: _waiting(producer) == messages, what=f"{messages} messages to wait")


async def _first(producer: Any, server: Server) -> "asyncio.Future[Any]":
    """A send under way at the paused server."""
    sending = asyncio.ensure_future(producer.send("orders", b"first", id="first", delay=60))
    with server.client() as client:
        await wait_until_async(lambda: client.info("clients")["blocked_clients"] > 0, what="a send under way")
    return sending


async def test_callers_share_calls_and_connections(producers: Producers, server: Server, prefix: str) -> None:
    """300 concurrent callers need at most four connections, and far fewer calls than messages."""
    producer = producers(server.url, max_connections=4)
    await producer.send("orders", b"x", delay=60)
    with server.client() as client:
        before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
        sent = await asyncio.gather(*(producer.send("orders", b"x", id=f"m{n}", delay=60) for n in range(300)))
        calls = client.info("commandstats")["cmdstat_evalsha"]["calls"] - before
        mine = [each for each in client.client_list() if each["name"] == "lisa-producer"]
        assert client.zcard(f"{prefix}:{{orders}}:waiting") == 301
    assert [(result.id, result.outcome, result.position) for result in sent] == [
        (f"m{n}", SendOutcome.SENT, 0) for n in range(300)
    ]
    assert calls < 150
    assert len(mine) <= 4


async def test_each_caller_has_its_own_result(producers: Producers, server: Server) -> None:
    """Each message of a shared call is SENT, a DUPLICATE or refused, independently of the others."""
    producer = producers(server.url)
    await producer.send("orders", b"x", delay=60)
    with _held(server):
        first = await _first(producer, server)
        again = [asyncio.ensure_future(producer.send("orders", b"x", id="one", delay=60)) for _ in range(2)]
        await _queued(producer, 2)
        bad = await asyncio.gather(
            producer.send("orders", b"x", ttl=-1), producer.send("or ders", b"x"), return_exceptions=True
        )
    assert [type(error) for error in bad] == [InvalidInput, InvalidInput]
    assert (await first).outcome is SendOutcome.SENT
    assert sorted([(await sending).outcome for sending in again]) == [SendOutcome.DUPLICATE, SendOutcome.SENT]


async def test_a_missing_confirmation_is_reported_to_its_sender_only(producers: Producers, server: Server) -> None:
    """Each error names one id; a caller without a confirmation gets no error."""
    producer = producers(server.url)
    confirm = Confirm(replicas=1, timeout=0.01)
    ids = [f"m{n}" for n in range(5)]
    plain, *errors = await asyncio.gather(
        producer.send("orders", b"x", id="plain", delay=60),
        *(producer.send("orders", b"x", id=id, delay=60, confirm=confirm) for id in ids),
        return_exceptions=True,
    )
    assert plain.outcome is SendOutcome.SENT
    assert [type(error) for error in errors] == [NotConfirmed] * 5
    assert [error.ids for error in errors] == [(id,) for id in ids]


async def test_a_lost_reply_affects_only_the_messages_of_its_call(producers: Producers, server: Server) -> None:
    """Messages that may be sent twice are retried; the others fail."""
    async with Proxy(server.port) as proxy:
        producer = producers(proxy.url)
        await producer.send("orders", b"x", delay=60)
        proxy.lose_reply_to(b"may-not")
        results = await asyncio.gather(
            producer.send("orders", b"x", id="before", delay=60),
            *(producer.send("orders", b"may-not") for _ in range(3)),
            *(producer.send("orders", b"may", id=f"m{n}", delay=60) for n in range(3)),
            return_exceptions=True,
        )
    unknown = [result for result in results[1:4] if isinstance(result, BaseException)]
    assert unknown
    assert {type(error) for error in unknown} == {OutcomeUnknown}
    assert not [result for result in (results[0], *results[4:]) if isinstance(result, BaseException)]


@pytest.mark.parametrize("patience_s", [0.0, 0.5])
async def test_nobody_is_patient_for_longer_than_promised(
    producers: Producers, server: Server, patience_s: float
) -> None:
    """Callers that wait behind failed calls do not restart their patience."""
    producer = producers(server.url, patience_s=patience_s, batch_messages=2)
    await producer.send("orders", b"x", delay=60)
    server.stop()
    began = time.monotonic()
    errors = await asyncio.gather(
        *(producer.send("orders", b"x", id=f"m{n}", delay=60) for n in range(100)), return_exceptions=True
    )
    assert {type(error) for error in errors} <= {Unreachable, OutcomeUnknown}
    assert len({id(error) for error in errors}) == 100
    assert time.monotonic() - began < 20  # 50 batches with a patience each would take 25 s


async def test_queued_messages_are_sent_when_the_server_is_back(
    producers: Producers, own_server: Callable[..., Server], prefix: str
) -> None:
    """Each message is sent once, as it has an id (promise 6)."""
    server = own_server(appendonly="yes")
    producer = producers(server.url)
    await producer.send("orders", b"x", delay=60)
    await asyncio.to_thread(server.stop)
    sending = [asyncio.ensure_future(producer.send("orders", b"x", id=f"m{n}", delay=60)) for n in range(50)]
    await _queued(producer, 49)
    await asyncio.to_thread(server.start)
    assert {result.outcome for result in await asyncio.gather(*sending)} == {SendOutcome.SENT}
    with server.client() as client:
        assert client.zcard(f"{prefix}:{{orders}}:waiting") == 51


async def test_finding_and_changing_are_shared_too(producers: Producers, server: Server) -> None:
    """200 concurrent callers get their own answers over four connections."""
    producer = producers(server.url, max_connections=4)
    await asyncio.gather(*(producer.send("orders", b"x", id=f"m{n}", delay=60) for n in range(200)))
    found = await asyncio.gather(*(producer.find("orders", f"m{n}") for n in range(200)))
    assert [message.id for message in found] == [f"m{n}" for n in range(200)]
    moved = await asyncio.gather(*(producer.reschedule("orders", f"m{n}", delay=90) for n in range(201)))
    assert moved == [RescheduleOutcome.RESCHEDULED] * 200 + [RescheduleOutcome.UNKNOWN]
    ended = await asyncio.gather(*(producer.cancel("orders", f"m{n}") for n in range(201)))
    assert ended == [CancelOutcome.CANCELLED] * 200 + [CancelOutcome.UNKNOWN]
    with server.client() as client:
        assert len([each for each in client.client_list() if each["name"] == "lisa-producer"]) <= 4


async def test_closing_leaves_nobody_waiting(producers: Producers, server: Server) -> None:
    """Queued calls end with Closed; calls under way end either way."""
    producer = producers(server.url)
    await producer.send("orders", b"x", delay=60)
    with _held(server):
        first = await _first(producer, server)
        others = [asyncio.ensure_future(producer.send("orders", b"x", id=f"m{n}", delay=60)) for n in range(5)]
        await _queued(producer, 5)
        await producer.close()
        async with asyncio.timeout(60):
            errors = await asyncio.gather(*others, return_exceptions=True)
    assert {type(error) for error in errors} == {Closed}
    await asyncio.wait([first], timeout=60)
    assert first.done()
    first.exception()


@pytest.fixture
async def tasks(server: Server, prefix: str) -> Any:
    """The asyncio producer."""
    async with AsyncProducer(settings=ProducerSettings(redis_url=server.url, prefix=prefix)) as producer:
        await producer.send("orders", b"x", delay=60)
        yield producer


async def test_a_cancelled_task_sends_nothing_more_and_costs_nobody_a_message(
    tasks: AsyncProducer, server: Server, prefix: str
) -> None:
    """The task's call was unshared, queued, or shared."""
    with _held(server):
        first = await _first(tasks, server)
        others = [asyncio.create_task(tasks.send("orders", b"x", id=f"m{n}", delay=60)) for n in range(4)]
        await _queued(tasks, 4)
        others[1].cancel()
        first.cancel()
        await asyncio.wait([first, others[1]])
        with server.client() as client:
            await wait_until_async(lambda: client.info("clients")["blocked_clients"] > 0, what="the shared call")
        others[2].cancel()
        late = asyncio.create_task(tasks.send("orders", b"x", id="late", delay=60))
        await _queued(tasks, 1)
    assert (await late).outcome is SendOutcome.SENT
    assert (await others[0]).outcome is (await others[3]).outcome is SendOutcome.SENT
    assert (first.cancelled(), others[1].cancelled(), others[2].cancelled()) == (True, True, True)
    with server.client() as client:
        assert client.zscore(f"{prefix}:{{orders}}:waiting", "m1") is None


@pytest.fixture
def threads(server: Server, prefix: str) -> Iterator[Producer]:
    """The blocking producer."""
    with Producer(settings=ProducerSettings(redis_url=server.url, prefix=prefix)) as producer:
        producer.send("orders", b"x", delay=60)
        yield producer


class _Sender(Thread):
    """A thread that sends one message."""

    def __init__(self, producer: Producer, id: str) -> None:
        super().__init__(daemon=True)
        self._producer = producer
        self._id = id
        self.ended: Any = None
        self.start()

    def run(self) -> None:
        try:
            self.ended = self._producer.send("orders", b"x", id=self._id, delay=60).outcome
        except BaseException as error:  # noqa: BLE001 - it is what the test is about
            self.ended = error

    def interrupt(self) -> None:
        """Raises KeyboardInterrupt in the thread, as Ctrl-C does in a main thread."""
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident or 0), ctypes.py_object(KeyboardInterrupt))


@pytest.mark.parametrize("interrupted", ["unshared", "leads", "follows"])
def test_an_interrupted_thread_leaves_nobody_waiting(threads: Producer, server: Server, interrupted: str) -> None:
    """Another thread takes the lead, and repeats the messages of the shared call, as they have ids."""
    with _held(server):
        first = _Sender(threads, "first")
        with server.client() as client:
            wait_until(lambda: client.info("clients")["blocked_clients"] > 0, what="a send under way")
        others = []
        for n in range(4):
            others.append(_Sender(threads, f"m{n}"))
            wait_until(lambda: _waiting(threads) == len(others))
        victim = {"unshared": first, "leads": others[0], "follows": others[2]}[interrupted]
        victim.interrupt()
    senders = [first, *others]
    for sender in senders:
        sender.join(60)
        assert not sender.is_alive()
    assert {sender.ended for sender in senders if sender is not victim} == {SendOutcome.SENT}
    assert not _queues(threads)
    assert threads.send("orders", b"x", delay=60).outcome is SendOutcome.SENT


def test_a_forked_child_does_not_wait_for_its_parents_threads(threads: Producer, server: Server) -> None:
    """The parent's threads have a call under way and queued ones; the child has neither."""
    with _held(server):
        senders = [_Sender(threads, f"m{n}") for n in range(3)]
        wait_until(lambda: _waiting(threads) == 2)
        child = multiprocessing.get_context("fork").Process(
            target=lambda: threads.send("orders", b"x", id="child", delay=60)
        )
        child.start()
    child.join(60)
    assert child.exitcode == 0
    for sender in senders:
        sender.join(60)
    assert [sender.ended for sender in senders] == [SendOutcome.SENT] * 3


async def test_a_call_waits_for_a_connection(server: Server) -> None:
    """With more callers than connections, all are served, and no connection is closed."""
    async with AsyncConnection(server.url, max_connections=4) as connection:
        await asyncio.gather(*(connection.execute([command("PING")]) for _ in range(4)))
        with server.client() as client:
            before = {each["id"] for each in client.client_list()}
        await asyncio.gather(*(connection.execute([command("ECHO", str(n))]) for n in range(500)))
        with server.client() as client:
            connections = [each for each in client.client_list() if each["name"] == "lisa"]
    assert len(connections) <= 4
    assert before & {each["id"] for each in connections}
