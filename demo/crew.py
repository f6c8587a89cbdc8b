"""The manager and the workers of a demo, each in its own process, and their journals."""

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from demo.events import Event, Sent, Tail
from demo.flights import AIRPORTS, DayClock
from demo.ledger import End
from demo.processes import DemoFailed, Processes
from demo.running import Day, Place
from demo.server import Server
from lisa_producer import Producer

__all__ = ["WORKERS", "Crew"]

WORKERS = ("worker-1", "worker-2")

_BOARDING_MIN = 10
"""How long a boarding takes, in minutes of the day."""
_SHORTEST_BOARDING_S = 0.15
"""Yet long enough that a worker can be caught in the act."""

_ROOT = Path(__file__).parents[1]
_START_S = 20.0
_TICK_S = 0.05


class Crew:
    """The processes of a demo, their server and their journals. The processes end with the block."""

    def __init__(self, place: Place, day: Day) -> None:
        self._place = place
        clock = DayClock.of(day.flights, start_ms=0, seconds=day.seconds)
        boarding_s = max(_SHORTEST_BOARDING_S, _BOARDING_MIN * 60 / clock.speed)
        self.journals = place.directory / "journals"
        logs = place.directory / "logs"
        scratch = place.directory / "scratch"
        for directory in (self.journals, logs, scratch):
            directory.mkdir()
        self.processes = Processes(
            logs,
            {
                "LISA_REDIS_URL": place.settings.redis_url.get_secret_value(),
                "LISA_PREFIX": place.settings.prefix,
                "LISA_LOG_LEVEL": "info",
                "PYTHONPATH": str(_ROOT),
                # Files of a killed program are removed with the rest of the directory.
                "TMPDIR": str(scratch),
                "DEMO_JOURNALS": str(self.journals),
                "DEMO_BOARDING_S": f"{boarding_s:.3f}",
            },
        )
        self.server = Server(place.settings)
        self._tail = Tail(self.journals)
        self._pids: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self.server, self.processes:
            pass

    def start(self, worker: str) -> None:
        """Starts the manager and the workers, whose handlers are at `worker`, and returns when all are ready."""
        self.server.declare(AIRPORTS, self._place.shards)
        self._start("manager", _program("lisa-manager"), "run")
        for name in WORKERS:
            self._start(name, _program("lisa-consumer"), "run", worker, environment={"DEMO_WORKER": name})
        deadline = time.monotonic() + _START_S
        while not self._ready():
            self.processes.check(*self._pids)
            if time.monotonic() > deadline:
                raise DemoFailed("manager and workers are not ready in time")
            time.sleep(_TICK_S)

    def start_module(self, name: str, module: str, *arguments: str) -> None:
        """Starts a module of the demo as one more process."""
        self._start(name, sys.executable, "-m", module, *arguments)

    def _start(self, name: str, *command: str, environment: Mapping[str, str] | None = None) -> None:
        self._pids[name] = self.processes.start(name, command, environment)

    def _ready(self) -> bool:
        return self.processes.said("manager", "manager serves") and all(
            self.processes.said(name, f"worker {name} of group") for name in WORKERS
        )

    def __str__(self) -> str:
        """The server and the processes."""
        pids = ", ".join(f"{name} {pid}" for name, pid in self._pids.items())
        return f"{self.server.version()}; processes: {pids}"

    def news(self) -> Iterator[Event]:
        """The events since the last call."""
        return self._tail.new()

    def ends(self, messages: Iterable[Sent]) -> Iterator[tuple[str, End]]:
        """The place of each message, as Lisa reports it."""
        with Producer(settings=self._place.settings) as producer:
            for sent in messages:
                found = producer.find(sent.topic, sent.id)
                failures = [copy.failure for copy in found.copies if copy.failure] if found else []
                reason = "; ".join(f"{failure.reason}: {failure.error}" for failure in failures)
                yield sent.id, End(found.state if found else "unknown", reason)


def _program(name: str) -> str:
    """A program of the environment that runs the demo, also where that is not activated."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else name
