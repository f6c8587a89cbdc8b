"""The play: starts the programs, kills one of them midway, waits for the end, and gathers what the ledger needs."""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from types import TracebackType
from typing import Self

from demo.events import Event, Journal, Killed, Sent, Tail
from demo.flights import AIRPORTS, DayClock, Flight
from demo.ledger import End, Ledger, audit
from demo.processes import DemoFailed, Processes
from demo.scene import Scene
from demo.server import POLICY, Server
from demo.view import View
from lisa_producer import Producer, ProducerSettings

__all__ = ["Setting", "Stage"]

_ROOT = Path(__file__).parents[1]
_WORKERS = ("worker-1", "worker-2")
_VICTIM = _WORKERS[0]

_KILL_FROM, _KILL_UNTIL = 0.55, 0.85
"""The victim is killed between these shares of the day, as soon as it holds enough."""
_KILL_HOLDING = 4

_BOARDING_MIN = 10
"""How long a boarding takes, in minutes of the day."""
_SHORTEST_BOARDING_S = 0.15
"""Yet long enough that the victim can be caught in the act."""

_START_S = 20.0
_SPARE_S = 40.0
"""What the day may take beyond its length: for the airline to open it, and for the last retries to end."""
_TICK_S = 0.05


@dataclass(frozen=True, slots=True)
class Setting:
    """Where, and which day, the play is played."""

    url: str
    prefix: str
    directory: Path
    day: date
    flights: Sequence[Flight]
    seconds: float
    borrowed: bool = False
    """Whether the server is someone's, so that nothing may be left on it."""


class Stage:
    """All programs of the demo, from their start to the ledger."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._journals = setting.directory / "journals"
        logs = setting.directory / "logs"
        self._journals.mkdir()
        logs.mkdir()
        clock = DayClock.of(setting.flights, start_ms=0, seconds=setting.seconds)
        boarding_s = max(_SHORTEST_BOARDING_S, _BOARDING_MIN * 60 / clock.speed)
        self._processes = Processes(
            logs,
            {
                "LISA_REDIS_URL": setting.url,
                "LISA_PREFIX": setting.prefix,
                "PYTHONPATH": str(_ROOT),
                "DEMO_JOURNALS": str(self._journals),
                "DEMO_BOARDING_S": f"{boarding_s:.3f}",
            },
        )
        self._server = Server(setting.url, setting.prefix)
        self._tail = Tail(self._journals)
        self._events: list[Event] = []
        self._scene = Scene()
        self._pids: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._server, self._processes:
            pass
        if self._setting.borrowed:
            with Server(self._setting.url, self._setting.prefix) as server:
                server.remove_all()

    def start(self) -> str:
        """Starts the manager and the workers, and returns who plays once all are ready for the day."""
        self._server.declare(AIRPORTS)
        self._start("manager", _program("lisa-manager"), "run")
        for name in _WORKERS:
            command = (_program("lisa-consumer"), "run", "demo.boarding:worker")
            self._start(name, *command, environment={"DEMO_WORKER": name})
        deadline = time.monotonic() + _START_S
        while not self._ready():
            self._processes.check(*self._pids)
            if time.monotonic() > deadline:
                raise DemoFailed("manager and workers are not ready in time")
            time.sleep(_TICK_S)
        day = ("--day", str(self._setting.day), "--seconds", str(self._setting.seconds))
        journal = self._journals / "airline.jsonl"
        self._start("airline", sys.executable, "-m", "demo.airline", *day, "--journal", str(journal))
        pids = ", ".join(f"{name} {pid}" for name, pid in self._pids.items())
        return f"{self._server.version()}; processes: {pids}"

    def _ready(self) -> bool:
        return self._server.managers() > 0 and self._server.readers() >= len(_WORKERS)

    def _start(self, name: str, *command: str, environment: dict[str, str] | None = None) -> None:
        self._pids[name] = self._processes.start(name, command, environment)

    def play(self, view: View) -> None:
        """Plays the day until every message has ended; raises DemoFailed when that takes too long."""
        deadline = time.monotonic() + self._setting.seconds + _SPARE_S
        over = False
        while not over:
            # Looked for in this order: once the airline is done, nothing can come to what is then found empty.
            airline_done = self._processes.done("airline")
            self._processes.check("manager", *_WORKERS)
            alive = self._server.alive(AIRPORTS)
            over = airline_done and alive == 0
            self._look()
            view.show(self._scene, last=over)
            self._kill_when_due()
            if not over and time.monotonic() > deadline:
                raise DemoFailed(f"{alive} messages have not ended in time: {self._scene.topics}")
            time.sleep(_TICK_S)

    def _look(self) -> None:
        self._scene.now_ms = self._server.now_ms()
        self._scene.topics = self._server.status()
        for event in self._tail.new():
            self._events.append(event)
            self._scene.tell(event)

    def _kill_when_due(self) -> None:
        if self._scene.killed or self._scene.share < _KILL_FROM:
            return
        enough = _KILL_HOLDING if self._scene.share < _KILL_UNTIL else 1
        if len(self._held()) >= enough:
            self._processes.kill(_VICTIM)
            # What it has sent before its death may still be on its way: then this list is too long, never too short.
            killed = Killed(_VICTIM, self._server.now_ms(), self._held())
            with Journal(self._journals / "stage.jsonl") as journal:
                journal.note(killed)

    def _held(self) -> list[tuple[str, int]]:
        return list(self._server.held(AIRPORTS, _VICTIM))

    def close(self) -> Ledger:
        """Stops what runs, and makes up the ledger."""
        ends = dict(self._ends())
        garbage = sum(status.garbage for status in self._server.status())
        self._processes.stop()
        self._look()
        ledger = audit(self._events, ends, visibility_ms=POLICY.visibility_ms)
        if garbage != ledger.garbage:
            ledger.problems.append(f"{ledger.garbage} messages are known to be garbage, the status says {garbage}")
        if not any(isinstance(event, Killed) and event.held for event in self._events):
            ledger.problems.append(f"{_VICTIM} was to be killed with deliveries in its hands, and was not")
        return ledger

    def _ends(self) -> Iterator[tuple[str, End]]:
        settings = ProducerSettings.load(redis_url=self._setting.url, prefix=self._setting.prefix)
        with Producer(settings=settings) as producer:
            for sent in [event for event in self._events if isinstance(event, Sent)]:
                found = producer.find(sent.topic, sent.id)
                failures = [copy.failure for copy in found.copies if copy.failure] if found else []
                reason = "; ".join(f"{failure.reason}: {failure.error}" for failure in failures)
                yield sent.id, End(found.state if found else "unknown", reason)

    def tails(self) -> str:
        """The last lines of every log."""
        return self._processes.tails()


def _program(name: str) -> str:
    """A program of the environment that runs the demo, whether that is activated or not."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else name
