"""The programs of Lisa as real processes, with their logs, and the journal that their workers keep."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.forked import Forked, may_fork
from support.waiting import wait_until

__all__ = ["Handling", "Journal", "Process", "Programs"]

_TESTS = Path(__file__).parents[1]
_WORKER = "support.programs.journal_worker:worker"


@dataclass(frozen=True, slots=True)
class Handling:
    """One line of the journal."""

    what: str
    id: str
    attempt: int
    lag_ms: int
    process: int


class Journal:
    """The handlings of all workers, in order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size = 0
        self._lines: list[Handling] = []
        self._ended: Counter[str] = Counter()

    def lines(self) -> list[Handling]:
        """Every line so far."""
        self._read_on()
        return list(self._lines)

    def begun(self) -> list[Handling]:
        """The messages that handlers have begun."""
        return [line for line in self.lines() if line.what == "begun"]

    def ended(self) -> Counter[str]:
        """Message id → how often its handler ended."""
        self._read_on()
        return Counter(self._ended)

    def _read_on(self) -> None:
        """Reads only new lines, as tests that wait call it a hundred times a second."""
        with self.path.open("rb") as file:
            file.seek(self._size)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._size += len(line)
                self._lines.append(Handling(**json.loads(line)))
                if self._lines[-1].what == "ended":
                    self._ended[self._lines[-1].id] += 1


class Process:
    """A running program."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], log: Path, cwd: Path = _TESTS) -> None:
        self._log = log
        self._process: Forked | subprocess.Popen[bytes]
        if may_fork(command, environment):
            self._process = Forked(command, environment, log, cwd)
        else:
            with log.open("wb") as output:
                self._process = subprocess.Popen(command, cwd=cwd, env=environment, stdout=output, stderr=output)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def children(self) -> list[int]:
        """The ids of the processes that it has started, by /proc."""
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text("utf-8").split()]

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    @property
    def log(self) -> str:
        """Its log so far."""
        return self._log.read_text("utf-8")

    def wait_for(self, text: str, within_s: float = 60) -> None:
        """Waits until its log has a text."""
        wait_until(lambda: text in self.log or not self.runs, within_s, what=f"{text!r} in {self._log.name}")
        assert text in self.log, self.log

    def kill(self) -> None:
        """Ends it as a crash does."""
        self._process.kill()
        self._process.wait()

    def stop(self, timeout: float = 60) -> int:
        """Ends it as an operator does. Returns its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout)

    def send(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        self._process.send_signal(number)

    def freeze(self) -> None:
        """Stops it without ending it (SIGSTOP)."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Goes on after `freeze`."""
        self._process.send_signal(signal.SIGCONT)

    @property
    def listens_at(self) -> str:
        """The host and port on which a gateway says that it listens."""
        return self.log.partition("gateway listens on ")[2].split()[0]

    @property
    def code(self) -> int | None:
        """Its exit code, None while it runs."""
        return self._process.poll()

    def cpu_s(self) -> float:
        """Seconds of processor time used so far, by /proc."""
        fields = Path(f"/proc/{self.pid}/stat").read_text("utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Programs:
    """Starts programs on one server and prefix, and ends those that still run."""

    def __init__(self, url: str, prefix: str, directory: Path, topics: Sequence[str] = ("orders",)) -> None:
        self._directory = directory
        self._started: list[Process] = []
        self.hold = directory / "hold"
        self.journal = Journal(directory / "journal")
        self.journal.path.touch()
        self._environment = {
            **os.environ,
            "LISA_REDIS_URL": url,
            "LISA_PREFIX": prefix,
            "LISA_TEST_JOURNAL": str(self.journal.path),
            "LISA_TEST_HOLD": str(self.hold),
            "LISA_TEST_TOPICS": " ".join(topics),
        }

    def manager(
        self, *options: str, url: str | None = None, within_s: float = 60, environment: Mapping[str, str] | None = None
    ) -> Process:
        """Starts a manager, and returns once it serves."""
        started = self._start(["lisa-manager", "run", "--housekeeping-s", "0.1", *options], url, environment)
        started.wait_for("manager serves", within_s)
        return started

    def worker(
        self, *options: str, group: str = "billing", target: str = _WORKER, environment: Mapping[str, str] | None = None
    ) -> Process:
        """Starts a worker, by default the one which keeps the journal, and returns once it reads."""
        self._environment["LISA_TEST_GROUP"] = group
        started = self._start(["lisa-consumer", "run", target, "--block-s", "0.2", *options], None, environment)
        started.wait_for(f"of group {group} reads")
        return started

    def gateway(self, *options: str, url: str | None = None) -> Process:
        """Starts a gateway at a port of its own, and returns once it listens; see `Process.listens_at`."""
        started = self._start(["lisa-gateway", "run", "--listen", "127.0.0.1:0", *options], url)
        started.wait_for("gateway listens on ", 60)
        return started

    def start(self, *words: str, environment: Mapping[str, str] | None = None) -> Process:
        """Starts any of the programs, and waits for nothing."""
        return self._start(list(words), None, environment)

    def kill(self) -> None:
        """Ends all programs."""
        for process in self._started:
            if process.runs:
                process.kill()

    def close(self) -> None:
        """Ends all programs, and makes sure that none has logged a traceback."""
        self.kill()
        for process in self._started:
            assert "Traceback" not in process.log, process.log

    def _start(self, command: list[str], url: str | None, more: Mapping[str, str] | None = None) -> Process:
        program = Path(sys.executable).parent / command[0]
        environment = self._environment | ({"LISA_REDIS_URL": url} if url else {}) | dict(more or {})
        log = self._directory / f"{len(self._started)}-{command[0]}.log"
        self._started.append(Process([str(program), *command[1:]], environment, log))
        return self._started[-1]
