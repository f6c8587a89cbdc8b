"""Signal handlers that raise, as for Ctrl-C or a time limit, at the worst moments of a blocking call."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from lisa_common.client.connection import Connection
from lisa_common.errors import UnreadableReply
from lisa_common.protocol.call import command
from lisa_producer import Producer, SendOutcome, coalescing
from lisa_producer.coalescing import Coalescer
from lisa_producer.request_queue import RequestQueue
from support import Server, wait_until
from support.answering import answering_server


class Interrupt(BaseException):
    """What the signal handler raises."""


def _bulk(word: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(word), word)


def test_a_late_reply_reaches_no_other_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal ends the closing of a connection whose reply is late: nobody gets that connection."""
    over = threading.Event()

    def answer(words: list[Any]) -> bytes:
        if words[1] == b"first":
            over.wait(60)
        return _bulk(words[1])

    with answering_server(answer, "socket_timeout=0.6") as url, Connection(url, max_connections=1) as connection:
        connection.call(command("PING"))
        # Of this connection alone: the interpreter closes what former tests have left, whenever it collects it.
        [pooled] = connection._server._pools[os.getpid()].connections  # type: ignore[union-attr]
        _interrupt_once(monkeypatch, pooled, "disconnect")
        with pytest.raises(Interrupt):
            connection.call(command("ECHO", "first"))
        # Over the connection of the first call it would wait behind that.
        assert connection.call(command("ECHO", "second", repeatable=False)) == b"second"
        over.set()


def _interrupt_once(monkeypatch: pytest.MonkeyPatch, place: Any, name: str) -> None:
    """The next call of this function raises, as a signal handler may."""

    def interrupted(*_: Any, **__: Any) -> None:
        monkeypatch.undo()
        raise Interrupt

    monkeypatch.setattr(place, name, interrupted)


@pytest.mark.parametrize("is_kept", [False, True], ids=["gone", "kept"])
def test_a_send_follows_one_that_was_interrupted_at_its_end(
    own_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, *, is_kept: bool
) -> None:
    """The interrupted call has passed nothing on; also if its traceback keeps it alive, as at a prompt."""
    kept: list[BaseException] = []
    with Producer(own_server().url) as producer:
        _interrupt_once(monkeypatch, coalescing, "_end_unshared")
        try:
            producer.send("orders", b"1")
        except Interrupt as interrupt:
            kept += [interrupt] if is_kept else []
        assert producer.send("orders", b"2").outcome is SendOutcome.SENT


@pytest.mark.parametrize("name", ["_end_unshared", "_pass_lead"])
def test_waiting_threads_go_on_after_an_interrupt(
    own_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A call that they wait for ends without passing on the lead: one of them takes it."""
    server = own_server()
    with Producer(server.url) as producer, _sends_behind(server, producer, 4) as outcomes:
        _interrupt_once(monkeypatch, coalescing, name)
    assert outcomes == [SendOutcome.SENT] * 3


def test_who_is_passed_the_lead_as_it_checks_takes_it(
    own_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first caller that waits is elected by another one, just before it would have looked for itself."""
    server = own_server()
    check = Coalescer._check

    def check_late(coalescer: Coalescer, state: Any, pending: Any) -> None:
        queue = pending.queue
        if queue.pending and queue.pending[0] is pending:
            wait_until(lambda: queue.leader is pending, what="another caller to elect it")
        check(coalescer, state, pending)

    with (
        Producer(server.url) as producer,
        monkeypatch.context() as late,
        _sends_behind(server, producer, 3) as outcomes,
    ):
        _interrupt_once(monkeypatch, coalescing, "_pass_lead")
        late.setattr(Coalescer, "_check", check_late)
    assert outcomes == [SendOutcome.SENT] * 2


@contextmanager
def _sends_behind(server: Server, producer: Producer, count: int) -> Iterator[list[object]]:
    """So many threads send, and wait for the first of them, which the server answers when the block ends.

    Gives the outcomes of those that nothing interrupts, which are complete after the block.
    """
    outcomes: list[object] = []

    def send() -> None:
        with suppress(Interrupt):
            outcomes.append(producer.send("orders", b"1").outcome)

    threads = [threading.Thread(target=send) for _ in range(count)]
    with server.client() as client:
        producer.send("orders", b"0")
        client.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
        for thread in threads:
            thread.start()
        wait_until(lambda: _waiting(producer) == count - 1, what="the other threads to wait")
        yield outcomes
        client.execute_command("CLIENT", "UNPAUSE")
        for thread in threads:
            thread.join(60)


def _waiting(producer: Producer) -> int:
    [state] = producer._coalescer._states.values()
    return sum(len(queue.pending) for queue in state.queues.values() if isinstance(queue, RequestQueue))


class _SignallingLock:
    """A lock within which a signal comes, once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._has_come = False

    def __enter__(self) -> None:
        assert self._lock.acquire(timeout=30), "the signal handler waits for the call that it has interrupted"
        if not self._has_come:
            self._has_come = True
            signal.raise_signal(signal.SIGUSR1)

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_a_signal_handler_may_send_within_a_send(own_server: Callable[..., Server]) -> None:
    """Its call waits for nothing that the interrupted call of its thread holds."""
    sent: list[SendOutcome] = []
    with Producer(own_server().url) as producer:
        producer.send("t", "before")
        producer._coalescer._states[os.getpid()].lock = _SignallingLock()  # type: ignore[assignment] # as good as one
        before = signal.signal(signal.SIGUSR1, lambda *_: sent.append(producer.send("t", "of the handler").outcome))
        try:
            sent.append(producer.send("t", "of the program").outcome)
        finally:
            signal.signal(signal.SIGUSR1, before)
        sent.append(producer.send("t", "after").outcome)
    assert sent == [SendOutcome.SENT] * 3


def test_interrupts_use_up_no_connections(own_server: Callable[..., Server]) -> None:
    """After thousands of interrupts, at any moment of a call and of its end, all connections can be used at once."""
    program = Path(__file__).parent.parent / "support/programs/interrupted_calls.py"
    server = own_server()
    # A process of its own: signals interrupt its main thread wherever it is.
    with subprocess.Popen([sys.executable, program, server.url, "3000"], stdout=subprocess.PIPE) as process:
        with server.client() as client:
            wait_until(lambda: client.info("clients")["blocked_clients"] == 4 or process.poll() is not None, 200)
            client.rpush("list", *"1234")
        told, _ = process.communicate()
    assert sorted(re.findall(r"\[b'list', b'(\d)'\]", told.decode())) == [*"1234"], told


def test_a_kept_traceback_keeps_no_connection(
    own_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt keeps the last one, and with it all that the call had used."""
    kept = []
    with Connection(own_server().url, max_connections=1) as connection:
        connection.call(command("PING"))
        _interrupt_once(monkeypatch, connection._server._pools[os.getpid()], "keep")  # type: ignore[union-attr]
        with pytest.raises(Interrupt) as caught:
            connection.call(command("PING"))
        kept.append(caught.value)
        assert connection.call(command("ECHO", "word")) == b"word"


class TimeLimit(Exception):
    """What the signal handler of a task queue raises."""


def test_a_time_limit_within_a_reply_is_no_error_of_the_reply(redis_url: str) -> None:
    """It reaches the caller as it is; damaged data is an error of its call."""

    def interrupted(_: Any) -> None:
        raise TimeLimit

    def damaged(_: Any) -> None:
        raise KeyError("no such field")

    with Connection(redis_url) as connection:
        with pytest.raises(TimeLimit):
            connection.call(command("PING", decode=interrupted))
        with pytest.raises(UnreadableReply, match="no such field"):
            connection.call(command("PING", decode=damaged))
        assert connection.call(command("ECHO", "word")) == b"word"
