"""Real processes: killed, stopped, and left without their server."""

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Event, Thread

import pytest
import redis
from typer.testing import CliRunner

from lisa_common.model.keys import ShardKeys, topics_key, workers_key
from lisa_common.model.policy import Policy
from lisa_consumer.program import program
from lisa_producer import Message, Producer, ProducerSettings
from support import Server, idle, keys_left, wait_until
from support.processes import Programs
from support.server import lease_ages_ms

Declare = Callable[..., Policy]
pytestmark = pytest.mark.slow

_EXITING = "support.programs.exiting_worker:worker"


@pytest.fixture
def programs_on(prefix: str, tmp_path: Path) -> Iterator[Callable[[str], Programs]]:
    """Starts programs on a server: `programs_on(server.url)`."""
    with ExitStack() as stack:

        def on(url: str) -> Programs:
            started = Programs(url, prefix, tmp_path)
            stack.callback(started.close)
            return started

        yield on


@pytest.fixture
def programs(redis_url: str, programs_on: Callable[[str], Programs]) -> Programs:
    """Programs on the server of the run."""
    return programs_on(redis_url)


@pytest.fixture
def producer(redis_url: str, prefix: str) -> Iterator[Producer]:
    """A producer in the test's own process."""
    with Producer(settings=ProducerSettings(redis_url=redis_url, prefix=prefix)) as opened:
        yield opened


def _pending(client: redis.Redis, prefix: str) -> int:
    ready = ShardKeys(prefix, "orders").of("ready")
    if not client.exists(ready):
        return 0
    return sum(group["pending"] for group in client.xinfo_groups(ready))


def _wait_until_drained(client: redis.Redis, prefix: str, *more: str) -> None:
    """Waits until nothing is left but what design.md allows: the stream, its groups, the registry, tombstones.

    Workers that were killed are in the list of workers for an hour.
    """
    keys = ShardKeys(prefix, "orders")
    allowed = sorted([topics_key(prefix), keys.of("ready"), *(keys.of(name) for name in more)])

    def left() -> list[str]:
        return [key for key in keys_left(client, prefix) if key != workers_key(prefix)]

    with suppress(AssertionError):
        wait_until(lambda: left() == allowed, 20)
    assert left() == allowed
    wait_until(lambda: client.xlen(keys.of("ready")) == 0, 20, what="an empty stream")
    assert _pending(client, prefix) == 0


def test_a_killed_workers_messages_are_handled_by_another(
    *, programs: Programs, producer: Producer, client: redis.Redis, prefix: str, declare: Declare
) -> None:
    """SIGKILL of a worker that holds 100 messages: another handles all of them, and none twice after its ack."""
    quick, ready = {"backoff": "fixed", "backoff_base_ms": 10}, ShardKeys(prefix, "orders").of("ready")
    declare(visibility_ms=6_000, **quick)
    programs.hold.touch()
    programs.manager("--discover-s", "0.2")
    doomed = programs.worker("--concurrency", "99")
    report = producer.send_many("orders", [Message(body=b"x") for _ in range(100)])
    sent = {str(result.id) for result in report.results}
    wait_until(lambda: _pending(client, prefix) == 100)
    wait_until(lambda: len(programs.journal.begun()) == 99)
    wait_until(lambda: max(lease_ages_ms(client, ready)) > 1_500)
    wait_until(lambda: max(lease_ages_ms(client, ready)) < 1_500, what="its leases are renewed while it lives")
    doomed.kill()
    # Only its own leases may run out, however long the machine stalls.
    declare(visibility_ms=100, **quick)
    wait_until(lambda: _pending(client, prefix) == 0, what="its leases run out")
    declare(visibility_ms=60_000, **quick)
    programs.hold.unlink()
    other = programs.worker()
    _wait_until_drained(client, prefix)
    by_other = [handling for handling in programs.journal.begun() if handling.process == other.pid]
    assert Counter(handling.id for handling in by_other) == dict.fromkeys(sent, 1)
    assert Counter(handling.attempt for handling in by_other) == {1: 1, 2: 99}, "one had not begun"
    assert programs.journal.ended() == dict.fromkeys(sent, 1)


def test_a_killed_manager_is_not_missed(
    programs: Programs, producer: Producer, client: redis.Redis, prefix: str
) -> None:
    """SIGKILL of a manager: another goes on, or the same one once it is back, with nothing lost and nothing early."""
    worker = programs.worker()
    managers = [programs.manager(), programs.manager()]
    report = producer.send_many("orders", [Message(body=b"x", delay=0.2 + n / 200) for n in range(400)])
    wait_until(lambda: len(programs.journal.begun()) > 100)
    managers[0].kill()
    wait_until(lambda: len(programs.journal.begun()) > 200)
    managers[1].kill()
    programs.manager()
    _wait_until_drained(client, prefix)
    assert programs.journal.ended() == {result.id: 1 for result in report.results}
    assert min(handling.lag_ms for handling in programs.journal.begun()) >= 0
    assert worker.stop() == 0


def test_an_idle_queue_is_on_time(programs: Programs, producer: Producer, client: redis.Redis, prefix: str) -> None:
    """A message to an idle manager is ready at its due time, not one millisecond early, and soon after it."""
    programs.worker()
    programs.manager()
    for n in range(10):
        producer.send("orders", b"x", delay=0.3)
        wait_until(lambda n=n: len(programs.journal.begun()) == n + 1)
    lags = sorted(handling.lag_ms for handling in programs.journal.begun())
    print(f"lag of messages to an idle manager, in ms: {lags}")  # noqa: T201 - a figure to look at
    assert 0 <= lags[0] <= lags[5] < 1_000
    _wait_until_drained(client, prefix)


def test_processes_stop_cleanly(programs: Programs, producer: Producer, client: redis.Redis, prefix: str) -> None:
    """SIGTERM ends a manager and a worker with exit code 0; the worker finishes what it runs and loses nothing."""
    manager = programs.manager()
    worker = programs.worker("--concurrency", "5", "--prefetch", "15", "--processes", "2")
    programs.hold.touch()
    report = producer.send_many("orders", [Message(body=b"x") for _ in range(100)])
    wait_until(lambda: (len(programs.journal.begun()), _pending(client, prefix)) == (10, 12))
    stopping = Thread(target=lambda: codes.append(worker.stop()))
    codes: list[int] = []
    stopping.start()
    wait_until(lambda: _pending(client, prefix) == 10, what="what had not begun to be given back")
    programs.hold.unlink()
    stopping.join()
    assert codes == [0]
    assert len(programs.journal.ended()) == 10
    programs.worker()
    _wait_until_drained(client, prefix)
    assert programs.journal.ended() == {result.id: 1 for result in report.results}
    assert {handling.attempt for handling in programs.journal.begun()} == {1}
    assert manager.stop() == 0


@pytest.mark.parametrize("how", [pytest.param("stop", marks=pytest.mark.long), "kill"])
def test_a_server_that_goes_and_comes_back(
    own_server: Callable[..., Server], prefix: str, programs_on: Callable[[str], Programs], how: str
) -> None:
    """Manager, producer and workers go on by themselves; everything that was confirmed is delivered (promise 14)."""
    server = own_server(appendonly="yes", appendfsync="always")
    with server.client() as client:
        # A read whose reply is lost in the crash comes again when its lease has run out.
        policy = Policy(visibility_ms=2_000, backoff="fixed", backoff_base_ms=10)
        client.hset(topics_key(prefix), "orders", policy.dump())
    programs = programs_on(server.url)
    manager, worker = programs.manager(), programs.worker("--processes", "2")
    confirmed: list[str] = []
    enough = Event()

    def send() -> None:
        settings = ProducerSettings(redis_url=server.url, prefix=prefix)
        with Producer(settings=settings) as producer:
            for n in range(100_000):
                delay = n % 5 / 10
                confirmed.append(str(producer.send("orders", b"x", id=f"m{n}", delay=delay).id))
                if enough.wait(0.002):
                    return

    sending = Thread(target=send)
    sending.start()
    try:
        wait_until(lambda: len(programs.journal.ended()) > 100)
        getattr(server, how)()
        idle(3)
        before = len(confirmed)
        server.start()
        wait_until(lambda: len(confirmed) > before + 100)
    finally:
        enough.set()
        sending.join()
    with server.client() as client:
        _wait_until_drained(client, prefix, "finished")
    ended = programs.journal.ended()
    assert ended.keys() == set(confirmed)
    assert sum(ended.values()) - len(ended) <= 100, "only what was acked as the server went may come again"
    assert min(handling.lag_ms for handling in programs.journal.begun()) >= 0
    assert (manager.stop(), worker.stop()) == (0, 0)


def test_a_worker_process_is_replaced_though_the_server_is_away(
    own_server: Callable[..., Server], prefix: str, programs_on: Callable[[str], Programs]
) -> None:
    """A process that dies during an outage has a successor, which waits for the server like all others."""
    server = own_server(appendonly="yes")
    programs = programs_on(server.url)
    worker = programs.worker("--processes", "2")
    with Producer(settings=ProducerSettings(redis_url=server.url, prefix=prefix)) as producer:
        programs.hold.touch()
        producer.send("orders", b"x")
        wait_until(programs.journal.begun)
        server.stop()
        os.kill(programs.journal.begun()[0].process, signal.SIGKILL)
        worker.wait_for("another starts in")
        wait_until(lambda: worker.log.count("cannot read") >= 2, 20)
        programs.hold.unlink()
        server.start()
        producer.send("orders", b"x", id="after")
        wait_until(lambda: programs.journal.ended()["after"] == 1)
    assert worker.stop() == 0


@pytest.mark.parametrize("body", ["crash", "exit"])
def test_no_message_ends_the_supervisor(
    redis_url: str, prefix: str, tmp_path: Path, producer: Producer, body: str
) -> None:
    """Exit code 2 means bad input only until the worker has started: then its process is replaced, as after any."""
    programs = Programs(redis_url, prefix, tmp_path)
    try:
        worker = programs.worker("--processes", "2", target=_EXITING)
        producer.send("orders", body, max_retries=0)
        worker.wait_for("exited with 2, another starts in")
        producer.send("orders", b"x", id="after")
        wait_until(lambda: programs.journal.ended()["after"] == 1)
        assert worker.stop() == 0
    finally:
        programs.kill()


def test_an_exit_in_a_task_is_logged_and_drains(
    redis_url: str, prefix: str, tmp_path: Path, producer: Producer
) -> None:
    """It is a failure of the message whose handler has waited for the task; what has not begun is given back."""
    programs = Programs(redis_url, prefix, tmp_path)
    producer.send_many("orders", [Message(body="exit", id="bad"), Message(body=b"x", id="good")])
    try:
        worker = programs.worker("--drain-s", "0", target=_EXITING)
        wait_until(lambda: not worker.runs, 20)
    finally:
        programs.kill()
    assert worker.code == 2
    assert "ERROR   lisa_common.signals: a task raised SystemExit" in worker.log
    assert 'exiting_worker.py", line' in worker.log
    bad, good = producer.find("orders", "bad"), producer.find("orders", "good")
    assert bad
    assert good
    assert (bad.state, bad.attempts, good.state, good.attempts) == ("retry", 1, "ready", 0)


def test_bad_input_of_a_process_ends_all(programs: Programs) -> None:
    """Its replacement would have it, too; the log says so."""
    supervisor = programs.start(
        *("lisa-consumer", "run", "support.programs.refusing_worker:make", "--processes", "2"),
    )
    wait_until(lambda: not supervisor.runs, 60)
    assert supervisor.code == 2
    assert "exited with 2 before its worker had started" in supervisor.log


@pytest.mark.parametrize(("drain_s", "code"), [("60", 0), ("0.1", 1)])
def test_functions_are_waited_for_as_long_as_the_drain(
    *, programs: Programs, producer: Producer, drain_s: str, code: int
) -> None:
    """Also beyond their timeout. One that needs longer is left behind, as a thread cannot be ended: exit code 1."""
    programs.hold.touch()
    worker = programs.worker("--drain-s", drain_s, target="support.programs.thread_worker:worker")
    producer.send("orders", b"x")
    worker.wait_for("begun")
    worker.send(signal.SIGTERM)
    worker.wait_for("waiting for handlers: 1,")
    if not code:
        programs.hold.unlink()
    wait_until(lambda: not worker.runs)
    assert worker.code == code


@pytest.mark.parametrize(("target", "processes"), [("stubborn_worker", "1"), ("thread_worker", "2")])
def test_a_handler_that_does_not_end_is_left_behind(
    programs: Programs, producer: Producer, target: str, processes: str
) -> None:
    """A function as well as a coroutine that does not heed its cancellation; the exit code of all says so.

    Its message is ready at once, and has spent no attempt, even its last.
    """
    programs.hold.touch()
    worker = programs.worker("--drain-s", "0.1", "--processes", processes, target=f"support.programs.{target}:worker")
    producer.send("orders", b"x", id="a", max_retries=0)
    worker.wait_for("begun")
    assert worker.stop() == 1
    found = producer.find("orders", "a")
    assert found
    assert (found.state, found.attempts) == ("ready", 0)


def test_a_process_that_dies_while_it_drains_is_logged(programs: Programs, producer: Producer) -> None:
    """The exit code of all says only that one did not end well."""
    programs.hold.touch()
    worker = programs.worker("--processes", "2", target="support.programs.thread_worker:worker")
    producer.send("orders", b"x")
    worker.wait_for("begun")
    worker.send(signal.SIGTERM)
    worker.wait_for("waiting for handlers: 1,")
    for pid in worker.children:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not worker.runs)
    assert worker.code == 1
    assert "ended its drain with -9" in worker.log


def test_processes_have_the_time_to_drain_that_their_worker_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line wins over the worker's code, for their supervisor as well."""
    (tmp_path / "patient.py").write_text(
        "from lisa_consumer import ConsumerSettings, Worker\n"
        "worker = Worker('g', settings=ConsumerSettings.load(drain_s=77))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    # The command exports its settings to the environment, for the processes that it starts.
    monkeypatch.setattr(os, "environ", dict(os.environ))
    told: list[float] = []
    monkeypatch.setattr("lisa_consumer.commands.supervise", lambda *_, drain_s: told.append(drain_s))
    options = ["--processes", "2", "--no-check", "--drain-s", "1"]
    assert CliRunner().invoke(program, ["run", "patient:worker", *options]).exit_code == 0
    assert told == [1]


def test_worker_processes_end_with_their_supervisor(
    programs: Programs, producer: Producer, client: redis.Redis, prefix: str
) -> None:
    """One that is killed leaves no orphans behind: they drain, and what they had not begun is given back."""
    worker = programs.worker("--concurrency", "1", "--prefetch", "1", "--processes", "2")
    programs.hold.touch()
    producer.send_many("orders", [Message(body=b"x") for _ in range(10)])
    wait_until(lambda: len(programs.journal.begun()) == 2)
    worker.kill()
    wait_until(lambda: _pending(client, prefix) == 2, what="what had not begun to be given back")
    programs.hold.unlink()
    wait_until(lambda: sum(programs.journal.ended().values()) == 2)
    programs.manager()
    programs.worker()
    _wait_until_drained(client, prefix)
    assert {handling.attempt for handling in programs.journal.begun()} == {1}


def test_a_manager_without_a_server_can_be_stopped(
    own_server: Callable[..., Server], programs_on: Callable[[str], Programs]
) -> None:
    """SIGTERM ends a manager and a worker cleanly although there is no server to say goodbye to."""
    server = own_server()
    programs = programs_on(server.url)
    manager, worker = programs.manager(), programs.worker()
    server.kill()
    manager.wait_for("not woken by sends")
    worker.wait_for("cannot read")
    assert (manager.stop(), worker.stop()) == (0, 0)


@pytest.mark.long
def test_a_thousand_idle_topics_cost_next_to_nothing(
    own_server: Callable[..., Server], prefix: str, programs_on: Callable[[str], Programs]
) -> None:
    """A message an hour away in each of 1,000 topics: the manager uses a few per cent of one core."""
    if not Path("/proc/self/stat").exists():
        pytest.skip("no /proc to read processor time from")
    server = own_server()
    programs = programs_on(server.url)
    with Producer(settings=ProducerSettings(redis_url=server.url, prefix=prefix)) as producer:
        for n in range(1_000):
            producer.send(f"topic-{n}", b"x", delay=3_600)
    manager = programs.manager()
    manager.wait_for("manager serves 1000 shards")
    idle(1)
    began, used = time.monotonic(), manager.cpu_s()
    idle(10)
    share = (manager.cpu_s() - used) / (time.monotonic() - began)
    print(f"a manager of 1,000 idle topics uses {share:.1%} of one core")  # noqa: T201 - a figure to look at
    assert share < 0.08
