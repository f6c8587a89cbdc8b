"""A soak: millions of messages with chosen ids at full speed, to see whether memory or keys grow.

`python -m chaos.soak --messages 5000000` runs it, in `tests/`. Every second it looks at the memory of the producer, the
manager, the workers and the server. In the end, the programs' memory must not have grown since they were warm, the
server's must be back where it began within a minute of the last dedup window, and no key may be left over.
"""

# This program prints its summary.
# ruff: noqa: T201

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Self

from chaos.history import now
from chaos.programs.soaking import GROUP, TOPIC
from lisa_common.model.keys import ShardKeys, history_key, managers_key, topics_key, workers_key
from lisa_common.model.policy import Policy
from support.engines import own_binary
from support.processes import Process
from support.server import Server
from support.waiting import wait_until

__all__ = ["Growth", "Options", "Soak", "growth_of", "soak"]

MESSAGES = 5_000_000
_PREFIX = "soak"
_KEYS = ShardKeys(_PREFIX, TOPIC)
_SAMPLE_S = 1.0
_MIB = 1024 * 1024
_WARM_MESSAGES = 2_000
_STARTS_S = 60.0
_PROGRAMS = Path(sys.executable).parent


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a soak."""

    messages: int = MESSAGES
    seconds: float = 3_600
    """Seconds after which sending ends, whether all were sent or not."""
    window_s: float = 10
    """The dedup window."""
    ahead: int = 20_000
    """How many messages the producer may be ahead of the workers."""
    processes: int = 2
    """Of the worker."""
    quiet_poll_s: float = 10
    """How often the manager looks at a quiet topic; the last tombstones go when it looks for the third time."""
    growth_mib: float = 8
    """By how much the memory of a program may grow once it is warm, in MiB."""
    server_mib: float = 4
    """By how much the server's memory may be above where it began, in MiB."""
    back_s: float = 60
    """Seconds after the last dedup window in which the server must be back there."""


@dataclass(frozen=True, slots=True)
class Growth:
    """The memory of a program, in MiB, when it was warm, and in the end."""

    warm: float
    end: float

    @property
    def mib(self) -> float:
        """The growth in MiB."""
        return self.end - self.warm


def growth_of(samples: Sequence[int]) -> Growth:
    """Of samples in bytes, in order: the first third is for warming up; of the others the medians of both halves."""
    warm = samples[len(samples) // 3 :]
    first, last = warm[: len(warm) // 2] or warm, warm[len(warm) // 2 :]
    return Growth(median(first) / _MIB, median(last) / _MIB)


@dataclass(slots=True)
class Soak:
    """The result of a soak."""

    options: Options
    sent: int = 0
    seconds: float = 0.0
    growth: dict[str, Growth] = field(default_factory=dict)
    base_mib: float = 0.0
    """The server's memory before the load."""
    peak_mib: float = 0.0
    left_mib: float = 0.0
    back_s: float | None = None
    """Seconds from the last dedup window until the server's memory was back; None if not in time."""
    keys_left: list[str] = field(default_factory=list)

    def problems(self) -> Iterator[str]:
        """A line for each growth that is too large."""
        for name, growth in self.growth.items():
            if growth.mib > self.options.growth_mib:
                yield f"{name} grew by {growth.mib:.1f} MiB; {self.options.growth_mib:g} are allowed"
        if self.back_s is None:
            text = f"{self.left_mib - self.base_mib:.1f} MiB more than before, and the keys {self.keys_left}"
            yield f"the server has {text}, {self.options.back_s:g} s after the last dedup window"

    def lines(self) -> Iterator[str]:
        """The summary for people."""
        yield f"{self.sent:,} messages in {self.seconds:.0f} s, {self.sent / max(self.seconds, 0.001):,.0f}/s"
        for name, growth in self.growth.items():
            yield f"  {name:20} {growth.warm:8.1f} MiB warm {growth.end:8.1f} MiB in the end {growth.mib:+8.1f} MiB"
        back = "not back in time" if self.back_s is None else f"back {self.back_s:.0f} s after the last window"
        memory = f"{self.base_mib:8.1f} MiB before {self.peak_mib:8.1f} MiB at most {self.left_mib:8.1f} MiB after"
        yield f"  {'server':20} {memory}, {back}"
        for problem in self.problems():
            yield f"PROBLEM: {problem}"


class _Bench:
    """The server and the programs of one soak."""

    def __init__(self, options: Options, directory: Path) -> None:
        self.options = options
        self._directory = directory
        self.server = Server(own_binary(), directory / "server")
        self.running: dict[str, Process] = {}
        self._started: list[Process] = []
        self.samples: dict[str, list[int]] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self.server.close)
            self.server.start()
            self.client: Any = stack.enter_context(self.server.client())
            policy = Policy(dedup_window_ms=int(self.options.window_s * 1000))
            self.client.hset(topics_key(_PREFIX), TOPIC, policy.dump())
            stack.callback(self._end)
            self._start_programs()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start_programs(self) -> None:
        worker = [str(_PROGRAMS / "lisa-consumer"), "run", "chaos.programs.soaking:worker", "--no-check"]
        self.running["manager"] = self._start("manager", [str(_PROGRAMS / "lisa-manager"), "run"])
        self.running["worker"] = self._start("worker", [*worker, "--processes", str(self.options.processes)])
        self.running["manager"].wait_for("manager serves")
        self.running["worker"].wait_for(f"of group {GROUP} reads")

    def _end(self) -> None:
        for process in self._started:
            if process.runs:
                process.stop(_STARTS_S)

    def send(self, first: int, last: int) -> Process:
        """Starts the producer."""
        words = [sys.executable, "-m", "chaos.programs.soaking", str(first), str(last), str(self.options.ahead)]
        return self._start("producer", words)

    def _start(self, name: str, words: list[str]) -> Process:
        tests = str(Path(__file__).parents[1])
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, (tests, os.environ.get("PYTHONPATH")))),
            "LISA_REDIS_URL": self.server.url,
            "LISA_PREFIX": _PREFIX,
            "LISA_QUIET_POLL_S": str(self.options.quiet_poll_s),
        }
        self._started.append(Process(words, environment, self._directory / f"{name}-{len(self._started)}.log"))
        return self._started[-1]

    def memory(self) -> int:
        """The server's, in bytes."""
        memory: int = self.client.info("memory")["used_memory"]
        return memory

    def keys_left(self) -> list[str]:
        """The keys that are left over once all messages are done and forgotten."""
        keys = {key.decode() for key in self.client.scan_iter(count=1_000)}
        if self.client.xlen(_KEYS.of("ready")) == 0:
            keys.discard(_KEYS.of("ready"))
        kept = {topics_key(_PREFIX), managers_key(_PREFIX), workers_key(_PREFIX), history_key(_PREFIX, TOPIC)}
        return sorted(keys - kept)

    def is_empty(self) -> bool:
        """Whether all messages are handled; ids may still be known."""
        return not set(self.keys_left()) - {_KEYS.of("finished")}

    def sample(self, **more: Process) -> int:
        """Notes the memory of every program; result: the server's."""
        for name, process in (self.running | more).items():
            for number, pid in enumerate([process.pid, *_children(process.pid)]):
                resident = _resident(pid)
                if resident is not None:
                    self.samples.setdefault(f"{name} {number}" if number else name, []).append(resident)
        return self.memory()


def soak(options: Options, say: Callable[[str], object] = lambda _: None) -> Soak:
    """Makes a soak; judge it by `problems`."""
    result = Soak(options)
    with tempfile.TemporaryDirectory(prefix="lisa-soak-") as home, _Bench(options, Path(home)) as bench:
        say("warm up")
        warm = bench.send(0, _WARM_MESSAGES)
        wait_until(lambda: not warm.runs, _STARTS_S)
        wait_until(lambda: not bench.keys_left(), options.window_s + 2 * options.back_s, what="the end of the warm-up")
        base = bench.memory()
        say("load")
        peak = _load(bench, result)
        say("wait for the last window")
        left = _until_back(bench, result, base)
        result.growth = {name: growth_of(samples) for name, samples in bench.samples.items()}
        result.base_mib, result.peak_mib, result.left_mib = base / _MIB, peak / _MIB, left / _MIB
    return result


def _load(bench: _Bench, result: Soak) -> int:
    """Sends, and waits until all is handled. Returns the server's peak memory, in bytes."""
    options, began = bench.options, now()
    producer = bench.send(_WARM_MESSAGES, _WARM_MESSAGES + options.messages)
    # It grows while it starts.
    wait_until(lambda: producer.log or not producer.runs, _STARTS_S)
    peak = 0
    while producer.runs:
        peak = max(peak, bench.sample(producer=producer))
        end = now() + _SAMPLE_S
        wait_until(lambda end=end: now() > end or not producer.runs, _SAMPLE_S + 10)  # type: ignore[misc]
        if now() - began > options.seconds:
            producer.stop(_STARTS_S)
    assert producer.code == 0, producer.log[-2_000:]
    wait_until(bench.is_empty, _STARTS_S, what="the last message")
    result.sent, result.seconds = int((producer.log.split() or ["0"])[-1]), now() - began
    return peak


def _until_back(bench: _Bench, result: Soak, base: int) -> int:
    """Waits until the server has forgotten all messages. Returns its memory then, in bytes."""
    options, window_over = bench.options, now() + bench.options.window_s

    def is_back() -> bool:
        at = now() + _SAMPLE_S
        wait_until(lambda: now() > at, _SAMPLE_S + 10)
        result.keys_left = bench.keys_left()
        return not result.keys_left and bench.memory() <= base + options.server_mib * _MIB

    while now() < window_over + options.back_s:
        if is_back():
            result.back_s = max(0.0, now() - window_over)
            break
    return bench.memory()


def _children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text("utf-8").split()] if path.exists() else []


def _resident(pid: int) -> int | None:
    """In bytes; None if the process has just ended."""
    try:
        text = Path(f"/proc/{pid}/status").read_text("utf-8")
    except FileNotFoundError:
        return None
    _, found, rest = text.partition("VmRSS:")
    return int(rest.split()[0]) * 1024 if found else None


def main() -> int:
    """Makes the soak of the command line; exit code 1 if anything grew."""
    parser = argparse.ArgumentParser(prog="python -m chaos.soak", description="Looks for what grows under load.")
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--minutes", type=float, default=60.0, help="seconds after which sending ends")
    parser.add_argument("--window-s", type=float, default=10.0, help="dedup window")
    parser.add_argument("--processes", type=int, default=2, help="of the worker")
    given = parser.parse_args()
    options = Options(given.messages, given.minutes * 60, given.window_s, processes=given.processes)
    began = now()
    result = soak(options, lambda what: print(f"{now() - began:7.1f} s  {what}", flush=True))
    print("\n".join(result.lines()))
    return 1 if list(result.problems()) else 0


if __name__ == "__main__":
    sys.exit(main())
