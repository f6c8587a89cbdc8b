"""Handlers in processes: killed at their limit, replaced, and dead without harm to others."""

import asyncio
import functools
import inspect
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lisa_consumer import Delivery, InvalidInput, ProcessDied, Worker
from lisa_manager import AbortOutcome, AsyncAdmin
from lisa_producer import AsyncProducer, Found, State
from support import process_handlers
from support.processes import Programs
from support.programs import process_worker
from support.running import new_worker, working
from support.waiting import wait_until_async

Send = Callable[..., Any]


@pytest.fixture
def worker(redis_url: str, prefix: str) -> Worker:
    """A worker that does not run yet."""
    return new_worker(redis_url, prefix)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Where handlers write: process, message and attempt."""
    return tmp_path / "journal"


@pytest.fixture
def send(sender: AsyncProducer, journal: Path) -> Send:
    """Sends messages that say what to do, by their id and a deed."""

    async def send(id: str, do: str) -> None:
        await sender.send("orders", {"do": do, "journal": str(journal)}, id=id)

    return send


def _begun(journal: Path) -> list[list[str]]:
    return [line.split() for line in journal.read_text().splitlines()] if journal.exists() else []


async def _found(sender: AsyncProducer, id: str = "a") -> tuple[Found, str]:
    """A message, and the error of its failure."""
    found = await sender.find("orders", id)
    assert found
    error = next((copy.failure.error for copy in found.copies if copy.failure), "")
    return found, error


def _pid_of_other(journal: Path) -> int:
    return int(Path(f"{journal}.other").read_text())


def _is_alive(pid: int) -> bool:
    try:
        # A zombie has no command line.
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


async def test_a_handler_runs_in_another_process(
    worker: Worker, sender: AsyncProducer, send: Send, journal: Path
) -> None:
    """One for many messages, and none is left when the worker has ended."""
    worker.on("orders", run_in="process", concurrency=1, body=dict[str, Any])(process_handlers.typed)
    for number in range(10):
        await send(f"m{number}", "")
    await worker.serve(burst=True)
    [pid] = {int(line[0]) for line in _begun(journal)}
    assert pid != os.getpid()
    assert not _is_alive(pid)
    assert Counter(line[1] for line in _begun(journal)) == {f"m{number}": 1 for number in range(10)}
    assert (await _found(sender, "m9"))[0].state is State.FINISHED


@pytest.mark.parametrize("do", ["hang", "hang with another"])
async def test_it_is_killed_at_its_limit(
    *, worker: Worker, sender: AsyncProducer, send: Send, journal: Path, do: str
) -> None:
    """With what it has started; the failure says so and counts, and the next message is handled."""
    worker.on("orders", run_in="process", timeout=1, concurrency=1)(process_handlers.handle)
    await send("a", do)
    await send("b", "")
    await worker.serve(burst=True)
    found, error = await _found(sender)
    assert (found.state, found.attempts) == (State.RETRY, 1)
    assert error == "TimeoutError: the handler took longer than 1 s; its process was killed"
    pids = [int(line[0]) for line in _begun(journal)]
    if do != "hang":
        pids.append(_pid_of_other(journal))
    await wait_until_async(lambda: not any(map(_is_alive, pids)))
    assert (await _found(sender, "b"))[0].state is State.FINISHED


@pytest.mark.parametrize(
    ("do", "how"),
    [
        ("crash", "was killed by SIGSEGV"),
        ("kill", "was killed by SIGKILL"),
        ("exit", "ended by itself, with exit code 3"),
    ],
)
async def test_a_process_that_dies_fails_one_message(
    *, worker: Worker, sender: AsyncProducer, send: Send, do: str, how: str
) -> None:
    """Those beside it and after it are handled, at their first attempt."""
    worker.on("orders", run_in="process", concurrency=2, retry_on=(OSError,))(process_handlers.handle)
    for number in range(3):
        await send(f"m{number}", "")
    await send("a", do)
    for number in range(3, 6):
        await send(f"m{number}", "")
    await worker.serve(burst=True)
    found, error = await _found(sender)
    assert (found.state, found.attempts) == (State.RETRY, 1), "`retry_on` does not mean it"
    assert error == f"ProcessDied: the process of the handler {how}"
    assert {(await _found(sender, f"m{number}"))[0].state for number in range(6)} == {State.FINISHED}


async def test_a_process_that_dies_while_it_is_idle_harms_no_message(
    worker: Worker, sender: AsyncProducer, send: Send, journal: Path
) -> None:
    """As when the kernel kills it between two messages."""
    worker.on("orders", run_in="process", concurrency=1)(process_handlers.handle)
    async with working(worker):
        for number in range(3):
            await send(f"m{number}", "")

            async def is_done(id: str = f"m{number}") -> bool:
                return (await _found(sender, id))[0].state is State.FINISHED

            await wait_until_async(is_done, 30)
            os.kill(int(_begun(journal)[-1][0]), 9)
    assert len({line[0] for line in _begun(journal)}) == 3
    assert [line[2] for line in _begun(journal)] == ["1"] * 3


@pytest.mark.parametrize(
    ("do", "state", "attempts", "error"),
    [
        ("fail", State.RETRY, 1, "ValueError: no; caused by KeyError: 'why'"),
        ("reject", State.GARBAGE, 1, "never"),
        ("retry", State.RETRY, 1, "later"),
        ("snooze", State.RETRY, 0, "closed"),
        ("strange", State.GARBAGE, 1, "Strange: 7: odd"),
        ("group", State.GARBAGE, 1, "OSError: one | Strange: 8: two"),
        ("local", State.RETRY, 1, "RuntimeError: Local: hidden"),
        ("then", State.RETRY, 1, "InvalidInput: delivery must be one that a worker or a consumer has read, and acks"),
        ("yield", State.RETRY, 1, "TypeError: the work of a handler or middleware must be run or awaited before it"),
    ],
)
async def test_an_error_counts_as_in_the_worker(
    *, worker: Worker, sender: AsyncProducer, send: Send, do: str, state: State, attempts: int, error: str
) -> None:
    """By its class, with its causes and frames."""
    options: Any = {"reject_on": (process_handlers.Strange,)}
    worker.on("orders", run_in="process", **options)(process_handlers.handle)
    await send("a", do)
    await worker.serve(burst=True)
    found, text = await _found(sender)
    assert (found.state, found.attempts) == (state, attempts)
    assert text.startswith(error)
    [copy] = found.copies
    assert copy.failure
    if do in ("fail", "strange"):
        assert copy.failure.trace[-1].endswith("in _do")


async def test_a_batch_fails_by_parts(worker: Worker, sender: AsyncProducer, send: Send) -> None:
    """`BatchFailed` names deliveries that have travelled back."""
    worker.on("orders", run_in="process", batch=2, within=5)(process_handlers.batch)
    await send("a", "fail")
    await send("b", "")
    await worker.serve(burst=True)
    assert [(await _found(sender, id))[0].state for id in ("a", "b")] == [State.RETRY, State.FINISHED]


@pytest.mark.parametrize(
    ("settings", "do", "processes"),
    [({"process_messages": 2}, "", 3), ({"process_bytes": 200_000_000}, "grow", 6), ({}, "", 1)],
)
async def test_a_process_is_replaced(
    *,
    redis_url: str,
    prefix: str,
    sender: AsyncProducer,
    send: Send,
    journal: Path,
    settings: Any,
    do: str,
    processes: int,
) -> None:
    """After so many messages or bytes; no message fails by that."""
    worker = new_worker(redis_url, prefix, **settings)
    worker.on("orders", run_in="process", concurrency=1)(process_handlers.handle)
    for number in range(6):
        await send(f"m{number}", do)
    await worker.serve(burst=True)
    assert len({line[0] for line in _begun(journal)}) == processes
    assert [line[2] for line in _begun(journal)] == ["1"] * 6
    assert {(await _found(sender, f"m{number}"))[0].state for number in range(6)} == {State.FINISHED}


async def test_an_abort_kills_it(
    *, worker: Worker, sender: AsyncProducer, send: Send, journal: Path, admin: AsyncAdmin
) -> None:
    """What no thread allows."""
    worker.on("orders", run_in="process", concurrency=1)(process_handlers.handle)
    async with working(worker):
        await send("a", "hang")
        [[pid, *_]] = await wait_until_async(lambda: _begun(journal), 30)
        assert await admin.abort("orders", "a") is AbortOutcome.ABORTED
        await wait_until_async(lambda: not _is_alive(int(pid)))
        await send("b", "")
        await wait_until_async(lambda: len(_begun(journal)) == 2, 30)
    assert (await _found(sender))[0].state is State.GARBAGE


async def test_the_end_of_a_drain_kills_it_and_gives_its_message_back(
    *, redis_url: str, prefix: str, sender: AsyncProducer, send: Send, journal: Path
) -> None:
    """Without an attempt spent, and nothing left behind."""
    worker = new_worker(redis_url, prefix, drain_s=0.2)
    worker.on("orders", run_in="process", concurrency=1)(process_handlers.handle)
    async with working(worker):
        await send("a", "hang")
        [[pid, *_]] = await wait_until_async(lambda: _begun(journal), 30)
    assert not _is_alive(int(pid))
    found, _ = await _found(sender)
    assert (found.state, found.attempts) == (State.READY, 0)


async def test_middleware_surrounds_it_in_the_worker(worker: Worker, sender: AsyncProducer, send: Send) -> None:
    """Plain and asynchronous; it sees the error of the process."""
    seen = list[str]()

    @worker.use
    async def outer(delivery: Delivery, call_next: Any) -> None:
        try:
            await call_next(delivery)
        finally:
            seen.append("outer")

    @worker.use
    def inner(delivery: Delivery, call_next: Any) -> None:
        try:
            call_next(delivery)
        except ProcessDied as error:
            seen.append(str(error))

    worker.on("orders", run_in="process")(process_handlers.handle)
    await send("a", "exit")
    await worker.serve(burst=True)
    assert seen == ["the process of the handler ended by itself, with exit code 3", "outer"]
    assert (await _found(sender))[0].state is State.FINISHED


@pytest.fixture
def programs(redis_url: str, prefix: str, tmp_path: Path) -> Iterator[Programs]:
    """Programs on the server of the run."""
    started = Programs(redis_url, prefix, tmp_path)
    yield started
    started.kill()


async def _pid_of(journal: Path, id: str) -> int:
    """The process that handles a message, once it does."""
    lines = await wait_until_async(lambda: [line for line in _begun(journal) if line[1] == id], 30)
    return int(lines[-1][0])


@pytest.mark.parametrize("options", [(), ("--processes", "1")])
async def test_a_signal_to_all_processes_drains_the_worker(
    *, programs: Programs, sender: AsyncProducer, send: Send, journal: Path, options: tuple[str, ...]
) -> None:
    """As a service manager and a terminal send it: what a process handles then ends well."""
    worker = programs.worker(*options, target="support.programs.process_worker:worker")
    await send("a", "pause")
    child = await _pid_of(journal, "a")
    os.kill(child, signal.SIGINT)
    os.kill(child, signal.SIGTERM)
    assert await asyncio.to_thread(worker.stop) == 0
    assert (await _found(sender))[0].state is State.FINISHED, worker.log
    assert not _is_alive(child)


@pytest.mark.parametrize("do", ["hang", ""])
async def test_processes_end_when_their_worker_is_killed(
    *, programs: Programs, send: Send, journal: Path, do: str
) -> None:
    """Also one that is busy: another worker gets its message."""
    worker = programs.worker(target="support.programs.process_worker:worker")
    await send("a", do)
    child = await _pid_of(journal, "a")
    worker.kill()
    await wait_until_async(lambda: not _is_alive(child))


async def test_the_module_of_a_program_needs_a_guard(
    *, programs: Programs, sender: AsyncProducer, send: Send, tmp_path: Path, journal: Path
) -> None:
    """With it, its handlers run in processes; without it, the error says so, and no second worker reads."""
    text = inspect.getsource(process_worker).partition("if __name__")[0]
    for name, end in (("good", 'if __name__ == "__main__":\n    worker.run()\n'), ("bad", "worker.run()\n")):
        program = tmp_path / f"{name}.py"
        program.write_text(text + end)
        started = programs.start("python", str(program), environment={"PYTHONPATH": "."})
        await send(name, "")
        if name == "good":
            await _pid_of(journal, name)
        else:
            await asyncio.to_thread(started.wait_for, "ended by itself, with exit code 1")
            assert 'needs `if __name__ == "__main__":`' in started.log
        await asyncio.to_thread(started.stop)
    assert (await _found(sender, "bad"))[0].state is State.RETRY


async def _coroutine(_: Delivery) -> None: ...


@pytest.mark.parametrize(
    "handler",
    [lambda _: None, _coroutine, functools.partial(process_handlers.handle), Path, process_handlers.handle.__call__],
)
def test_a_handler_that_no_process_can_import_is_refused(worker: Worker, handler: Any) -> None:
    """When it is registered."""
    with pytest.raises(InvalidInput, match="handler must be"):
        worker.on("orders", run_in="process")(handler)
    assert worker.topics == []


async def test_a_function_that_its_module_does_not_have_is_refused_at_the_start(worker: Worker) -> None:
    """Not with each message."""
    worker.on("orders", run_in="process")(process_handlers.LOST)
    with pytest.raises(InvalidInput, match="handler must be what its module has by its name"):
        await worker.serve(burst=True)


def test_run_in_is_a_process_or_nothing(worker: Worker) -> None:
    """Other values are refused."""
    with pytest.raises(InvalidInput, match='run_in must be "process", or omitted; got'):
        worker.on("orders", run_in="thread")  # type: ignore[call-overload]
