"""A first day with the worker: mistakes in its module, options of its command, its start and its end."""

import asyncio
import functools
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lisa_consumer import ConsumerSettings, Delivery, InvalidInput, Worker
from lisa_consumer.worker.load_worker import load_worker
from lisa_producer import AsyncProducer, Producer, ProducerSettings
from support import Server, wait_until, wait_until_async
from support.processes import Process
from support.running import Handled, hang, new_worker

BIN = Path(sys.executable).parent


class Started:
    """Programs in a directory of the test's own, each with its log."""

    def __init__(self, directory: Path, environment: dict[str, str], stack: ExitStack) -> None:
        self._directory = directory
        self._environment = environment
        self._stack = stack
        self._count = 0

    def write(self, name: str, text: str) -> None:
        """Writes a module."""
        (self._directory / name).write_text(text, "utf-8")

    def run(self, *command: str, **environment: str) -> Process:
        """Starts a program."""
        self._count += 1
        log = self._directory / f"{self._count}.log"
        process = Process(
            [str(BIN / command[0]), *command[1:]], self._environment | environment, log, cwd=self._directory
        )
        self._stack.callback(lambda: process.kill() if process.runs else None)
        return process


@pytest.fixture
def started(tmp_path: Path, redis_url: str, prefix: str) -> Iterator[Started]:
    """Starts programs on the server and prefix of the test."""
    environment = {**os.environ, "LISA_REDIS_URL": redis_url, "LISA_PREFIX": prefix, "PYTHONUNBUFFERED": "1"}
    with ExitStack() as stack:
        yield Started(tmp_path, environment, stack)


PRINTS = """
from lisa_consumer import Worker

worker = Worker({arguments})

@worker.on("orders"{options})
async def handle(delivery):
    print("handled", delivery.text(), flush=True)
"""


def _worker(arguments: str = "'billing'", options: str = "") -> str:
    return PRINTS.format(arguments=arguments, options=options)


def _await_end(process: Process) -> None:
    # A program that starts on a busy machine takes seconds.
    wait_until(lambda: not process.runs, 60, what="the program to end")


def _catches_interrupts(pid: int) -> bool:
    """Whether a process handles SIGINT, by /proc; Python does from its start."""
    caught = Path(f"/proc/{pid}/status").read_text("utf-8").partition("SigCgt:")[2].split()[0]
    return bool(int(caught, 16) & 1 << signal.SIGINT - 1)


# Options


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_flag_wins_over_the_workers_code(started: Started, redis_url: str, prefix: str, processes: str) -> None:
    """The URL and the prefix of the command line, in the process itself and in those that it supervises."""
    started.write("shop.py", _worker("'billing', url='redis://localhost:1'"))
    flags = ["--redis-url", redis_url, "--prefix", prefix, "--processes", processes, "--block-s", "0.2"]
    worker = started.run("lisa-consumer", "run", "shop:worker", *flags, LISA_REDIS_URL="redis://localhost:2")
    with Producer(settings=ProducerSettings(redis_url=redis_url, prefix=prefix)) as producer:
        producer.send("orders", "me")
        worker.wait_for("handled me")
    assert worker.stop() == 0


def test_a_worker_program_spares_the_garbage_collector(started: Started, redis_url: str, prefix: str) -> None:
    """Once the worker's module is loaded."""
    report = "import gc\n" + _worker().replace(
        "delivery.text()", "gc.get_threshold()[0], gc.get_freeze_count() > 1_000"
    )
    started.write("shop.py", report)
    worker = started.run("lisa-consumer", "run", "shop:worker", "--prefix", prefix, "--block-s", "0.2")
    with Producer(settings=ProducerSettings(redis_url=redis_url, prefix=prefix)) as producer:
        producer.send("orders", "me")
        worker.wait_for("handled 20000 True")
    assert worker.stop() == 0


def test_code_wins_over_the_environment(started: Started, redis_url: str) -> None:
    """As without a command line."""
    started.write("shop.py", _worker(f"'billing', url={redis_url!r}"))
    worker = started.run("lisa-consumer", "run", "shop:worker", LISA_REDIS_URL="redis://localhost:2")
    worker.wait_for("of group billing reads orders")
    assert worker.stop() == 0


def test_a_lower_limit_of_the_environment_caps_that_of_a_handler(started: Started) -> None:
    """`LISA_CONCURRENCY=2` does not break a module that says 4."""
    started.write("shop.py", _worker(options=", concurrency=4"))
    worker = started.run("lisa-consumer", "run", "shop:worker", "--block-s", "0.2", LISA_CONCURRENCY="2")
    worker.wait_for("of group billing reads orders")
    assert worker.stop() == 0


async def test_a_capped_handler_runs_as_often_as_the_worker_allows(
    redis_url: str, prefix: str, sender: AsyncProducer
) -> None:
    """Two at once, and the third when one of them ends."""
    worker = new_worker(redis_url, prefix, concurrency=2)
    gate = asyncio.Event()
    begun = hang(worker, "orders", gate, concurrency=4)
    serving = asyncio.create_task(worker.serve())
    for n in range(3):
        await sender.send("orders", "x", id=f"m{n}")
    await wait_until_async(lambda: len(begun) == 2)
    gate.set()
    await wait_until_async(lambda: len(begun) == 3)
    worker.stop()
    await serving


async def test_a_worker_of_100_topics_starts(redis_url: str, prefix: str, sender: AsyncProducer) -> None:
    """With the concurrency that nobody set; one that was set and is too low is refused, and the error says why."""
    topics = [f"topic-{n}" for n in range(100)]
    worker = new_worker(redis_url, prefix)
    gate, begun = asyncio.Event(), Handled()

    @worker.on(*topics)
    async def handle(delivery: Delivery) -> None:
        begun.append(delivery)
        await gate.wait()

    serving = asyncio.create_task(worker.serve())
    for topic in topics:
        await sender.send(topic, "x")
    await wait_until_async(lambda: len(begun) == 100, 60)
    gate.set()
    worker.stop()
    await serving
    crowded = new_worker(redis_url, prefix, concurrency=32)
    crowded.on(*topics)(handle)
    with pytest.raises(InvalidInput, match="concurrency must be at least 100, 1 for each topic; got 32"):
        await crowded.serve()


# Modules


def test_a_module_that_fails_shows_its_traceback(started: Started) -> None:
    """From its own first line on, and one line at the end."""
    started.write("helper.py", "def load():\n    return {}['key']\n")
    started.write("shop.py", "import helper\n\nhelper.load()\n")
    done = started.run("lisa-consumer", "run", "shop:worker", "--wait", "0")
    _await_end(done)
    assert done.code == 2
    assert 'shop.py", line 3, in <module>' in done.log
    assert 'helper.py", line 2, in load' in done.log
    assert "importlib" not in done.log
    assert done.log.splitlines()[-1] == (
        "lisa-consumer: worker must be in a module that can be imported (KeyError: 'key'); got 'shop:worker'"
    )


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("of_nobody:worker", "in a module that can be imported (ModuleNotFoundError: No module named 'of_nobody')"),
        ("of_nobody.x:worker", "in a module that can be imported (ModuleNotFoundError: No module named 'of_nobody')"),
        ("shop_of_a_test:none", "the name of a Worker ('none' is missing)"),
        ("shop_of_a_test:count", "the name of a Worker ('count' is of type int)"),
        ("shop_of_a_test:handle", "the name of a Worker ('handle' is a function that needs arguments)"),
        ("shop_of_a_test:make", "the name of a Worker ('make' is a coroutine function)"),
        ("./shop_of_a_test.py:count", "module:name, as in app.tasks:worker"),
        (".shop_of_a_test:count", "module:name, as in app.tasks:worker"),
    ],
)
def test_a_target_that_is_none_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, target: str, reason: str
) -> None:
    """There is no traceback to show."""
    (tmp_path / "shop_of_a_test.py").write_text("count = 7\ndef handle(delivery): ...\nasync def make(): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(InvalidInput) as caught:
        load_worker(target)
    assert str(caught.value) == f"worker must be {reason}; got '{target}'"
    assert caplog.text == ""


def test_a_missing_module_inside_a_module_shows_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another module is missing than the one that was named."""
    (tmp_path / "of_a_test.py").write_text("import of_nobody\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(InvalidInput, match="No module named 'of_nobody'"):
        load_worker("of_a_test:worker")
    assert "import of_nobody" in caplog.text


def _none() -> None:
    pass


def _two(delivery: Delivery, other: int) -> None:
    pass


def _keyword(delivery: Delivery, *, other: int) -> None:
    pass


class _Method:
    def handle(self, delivery: Delivery) -> None:
        pass


def _starred(*_: object) -> None:
    pass


def _optional(delivery: Delivery, other: int = 1) -> None:
    pass


@functools.wraps(_two)
def _adapted(delivery: Delivery) -> None:
    _two(delivery, 1)


@pytest.mark.parametrize("handler", [_none, _two, _keyword, _Method.handle])
def test_a_handler_of_the_wrong_arity_is_refused(handler: Any) -> None:
    """When it is registered, not by each message."""
    worker = Worker("billing", settings=ConsumerSettings())
    with pytest.raises(InvalidInput, match="handler must be a function that can be called with one argument"):
        worker.on("orders")(handler)


@pytest.mark.parametrize("handler", [_Method().handle, _starred, _optional, _adapted, print])
def test_a_handler_that_takes_a_delivery_is_accepted(handler: Any) -> None:
    """Methods, defaults, wrappers of other functions, and functions that do not say what they take."""
    assert Worker("billing", settings=ConsumerSettings()).on("orders")(handler) is handler


def test_on_without_parentheses_is_refused() -> None:
    """The decorated function would be lost."""
    worker: Any = Worker("billing", settings=ConsumerSettings())
    with pytest.raises(InvalidInput, match=r'topic must be a name, as in @worker.on\("orders"\); got <function'):
        worker.on(_none)
    with pytest.raises(InvalidInput, match="topic must be"):
        worker.on("a b")


# Start and end


@pytest.mark.parametrize("program", [("lisa-manager", "run"), ("lisa-consumer", "run", "shop:worker")])
def test_programs_wait_for_a_server(
    started: Started, own_server: Callable[..., Server], program: tuple[str, ...]
) -> None:
    """As they do later; they say what they wait for, once."""
    server = own_server()
    server.kill()
    started.write("shop.py", _worker())
    waiting = started.run(*program, LISA_REDIS_URL=server.url)
    waiting.wait_for("waiting for the server: cannot reach Redis at")
    server.start()
    waiting.wait_for("manager serves" if "manager" in program[0] else "of group billing reads")
    assert waiting.log.count("waiting for the server: cannot reach Redis") == 1
    assert waiting.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("program", [("lisa-manager", "run"), ("lisa-consumer", "run", "shop:worker")])
def test_programs_can_be_told_not_to_wait(started: Started, program: tuple[str, ...]) -> None:
    """`--wait 0` fails at once, a time later; a program that waits can be stopped; a mistake is no outage."""
    started.write("shop.py", _worker())
    url = "redis://localhost:1"
    for wait in ("0", "200ms"):
        failed = started.run(*program, "--wait", wait, LISA_REDIS_URL=url)
        _await_end(failed)
        assert failed.code == 2
        assert failed.log.splitlines()[-1].startswith(f"{program[0]}: cannot reach Redis at {url}: ")
    waiting = started.run(*program, LISA_REDIS_URL=url)
    waiting.wait_for("waiting for the server")
    assert waiting.stop() == 0
    refused = started.run(*program, "--wait", "soon")
    _await_end(refused)
    assert (refused.code, refused.log.startswith(f"{program[0]}: wait must be seconds, or numbers")) == (2, True)


def test_a_wrong_password_is_no_outage(started: Started, own_server: Callable[..., Server]) -> None:
    """Nothing is gained by waiting."""
    server = own_server()
    with server.client() as admin:
        admin.config_set("requirepass", "right")
    started.write("shop.py", _worker())
    for program in (("lisa-manager", "run"), ("lisa-consumer", "run", "shop:worker")):
        failed = started.run(*program, LISA_REDIS_URL=server.url)
        _await_end(failed)
        assert (failed.code, "denies access" in failed.log) == (2, True)


HANGS = """
import asyncio
from lisa_consumer import Worker

worker = Worker("billing")

@worker.on("orders")
async def handle(delivery):
    print("begun", flush=True)
    await asyncio.sleep(600)

@worker.on("bills")
def pay(delivery):
    print("paid", flush=True)
"""


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_second_interrupt_ends_a_drain(started: Started, redis_url: str, prefix: str, processes: str) -> None:
    """Ctrl-C drains, Ctrl-C again ends: what ran is given back, and the exit code says that it was cut short."""
    started.write("shop.py", HANGS)
    options = ["--processes", processes, "--block-s", "0.2", "--drain-s", "600"]
    worker = started.run("lisa-consumer", "run", "shop:worker", *options)
    with Producer(settings=ProducerSettings(redis_url=redis_url, prefix=prefix)) as producer:
        producer.send("bills", "x")
        worker.wait_for("paid")
        producer.send("orders", "x", id="m")
        worker.wait_for("begun")
        worker.send(signal.SIGINT)
        worker.wait_for("waiting for handlers: 1, up to")
        worker.send(signal.SIGTERM)
        assert worker.runs
        worker.send(signal.SIGINT)
        _await_end(worker)
        found = producer.find("orders", "m")
    assert worker.code == 1
    assert "ends its drain: it was interrupted again" in worker.log
    assert "abandoned" not in worker.log  # A thread that has ended its work is idle.
    assert "Traceback" not in worker.log
    assert found
    assert (found.state, found.attempts) == ("ready", 0)


STAYS = (
    HANGS.replace("billing", "other")
    + """
import threading, time

@worker.on_start
def stay():
    threading.Thread(target=time.sleep, args=(600,)).start()
"""
)


@pytest.mark.parametrize(("processes", "code"), [("1", -signal.SIGINT), ("2", 0)])
def test_an_interrupt_after_the_drain_is_no_error(started: Started, processes: str, code: int) -> None:
    """Only threads of the user's own are left, for which the program waits: it ends at once, without a traceback."""
    started.write("shop.py", STAYS)
    worker = started.run("lisa-consumer", "run", "shop:worker", "--processes", processes, "--block-s", "0.2")
    wait_until(lambda: worker.log.count("reads orders") == int(processes), 60, what="all workers to start")
    worker.send(signal.SIGINT)
    ending = worker.children if processes != "1" else [worker.pid]
    wait_until(lambda: not any(map(_catches_interrupts, ending)), 20, what="all workers to end")
    worker.send(signal.SIGINT)
    _await_end(worker)
    assert worker.code == code
    assert worker.log.count("has ended") == int(processes)
    assert "Traceback" not in worker.log


def test_a_second_interrupt_ends_handlers_that_do_not_listen(started: Started, redis_url: str, prefix: str) -> None:
    """A thread cannot be stopped: it ends with the process."""
    started.write(
        "shop.py", HANGS.replace("async def", "def").replace("await asyncio.sleep", "__import__('time').sleep")
    )
    worker = started.run("lisa-consumer", "run", "shop:worker", "--block-s", "0.2", "--drain-s", "600")
    with Producer(settings=ProducerSettings(redis_url=redis_url, prefix=prefix)) as producer:
        producer.send("orders", "x", id="m")
        worker.wait_for("begun")
        worker.send(signal.SIGINT)
        worker.wait_for("waiting for handlers")
        worker.send(signal.SIGINT)
        _await_end(worker)
    assert worker.code == 1


async def test_a_worker_serves_again_after_a_stop(
    redis_url: str, prefix: str, sender: AsyncProducer, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a notebook; a stop that comes before is logged, and a second serve beside the first is refused."""
    worker = new_worker(redis_url, prefix)
    handled = Handled()

    @worker.on("orders")
    async def handle(delivery: Delivery) -> None:
        handled.append(delivery)

    for round_ in (1, 2):
        serving = asyncio.create_task(worker.serve())
        await sender.send("orders", "x")
        await wait_until_async(lambda expected=round_: len(handled) == expected)
        with pytest.raises(InvalidInput, match="worker must be a worker that is not serving"):
            await worker.serve()
        assert not serving.done()
        worker.stop()
        await serving
    worker.stop()
    with caplog.at_level(logging.WARNING):
        await worker.serve()
    assert f"worker {worker.name} does not start: it was stopped before" in caplog.text


def test_a_worker_serves_again_in_another_loop(redis_url: str, prefix: str) -> None:
    """Each `asyncio.run` has a loop of its own."""
    worker = new_worker(redis_url, prefix)
    worker.on("orders")(print)

    async def main() -> None:
        serving = asyncio.create_task(worker.serve())
        await asyncio.sleep(0)
        worker.stop()
        await serving

    for _ in range(2):
        asyncio.run(main())


def test_the_help_says_who_wins() -> None:
    """Options win over code, and code over the environment."""
    done = subprocess.run([BIN / "lisa-consumer", "run", "--help"], capture_output=True, text=True, timeout=60)
    assert "These options override settings in the worker's code" in " ".join(done.stdout.split())
