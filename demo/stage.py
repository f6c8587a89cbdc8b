"""The play: starts the programs, kills one of them midway, waits for the end, and gathers what the ledger needs."""

import time
from types import TracebackType
from typing import Self

from demo.crew import WORKERS, Crew
from demo.events import Event, Journal, Killed, Sent
from demo.flights import AIRPORTS, DayClock
from demo.ledger import Ledger, audit
from demo.processes import DemoFailed
from demo.running import Day, Place
from demo.scene import Scene
from demo.server import POLICY
from demo.view import View

__all__ = ["Stage"]

_VICTIM = WORKERS[0]

_KILL_FROM, _KILL_UNTIL = 0.55, 0.85
"""The victim is killed between these shares of the day, as soon as it holds enough."""
_KILL_HOLDING = 4

_BOARDING_MIN = 10
"""How long a boarding takes, in minutes of the day."""
_SHORTEST_BOARDING_S = 0.15
"""Yet long enough that the victim can be caught in the act."""

_SPARE_S = 40.0
"""What the day may take beyond its length: for the airline to open it, and for the last retries to end."""
_TICK_S = 0.05


class Stage:
    """All programs of the demo, from their start to the ledger."""

    def __init__(self, place: Place, day: Day) -> None:
        self._day = day
        clock = DayClock.of(day.flights, start_ms=0, seconds=day.seconds)
        boarding_s = max(_SHORTEST_BOARDING_S, _BOARDING_MIN * 60 / clock.speed)
        self._crew = Crew(place, {"DEMO_BOARDING_S": f"{boarding_s:.3f}"})
        self._events: list[Event] = []
        self._scene = Scene()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._crew:
            pass

    def start(self) -> str:
        """Starts the manager and the workers, and returns who plays once all are ready for the day."""
        self._crew.start("demo.boarding:worker")
        day = ("--day", str(self._day.date), "--seconds", str(self._day.seconds))
        self._crew.start_module("airline", "demo.airline", *day)
        return str(self._crew)

    def play(self, view: View) -> None:
        """Plays the day until every message has ended; raises DemoFailed when that takes too long."""
        deadline = time.monotonic() + self._day.seconds + _SPARE_S
        over = False
        while not over:
            # Looked for in this order: once the airline is done, nothing can come to what is then found empty.
            airline_done = self._crew.processes.done("airline")
            self._crew.processes.check("manager", *WORKERS)
            alive = self._crew.server.alive(AIRPORTS)
            over = airline_done and alive == 0
            self._look()
            view.show(self._scene, last=over)
            self._kill_when_due()
            if not over and time.monotonic() > deadline:
                raise DemoFailed(f"{alive} messages have not ended in time: {self._scene.topics}")
            time.sleep(_TICK_S)

    def _look(self) -> None:
        self._scene.now_ms = self._crew.server.now_ms()
        self._scene.topics = self._crew.server.status()
        for event in self._crew.news():
            self._events.append(event)
            self._scene.tell(event)

    def _kill_when_due(self) -> None:
        if self._scene.killed or self._scene.share < _KILL_FROM:
            return
        enough = _KILL_HOLDING if self._scene.share < _KILL_UNTIL else 1
        if len(self._held()) >= enough:
            self._crew.processes.kill(_VICTIM)
            # What it has sent before its death may still be on its way: then this list is too long, never too short.
            killed = Killed(_VICTIM, self._crew.server.now_ms(), self._held())
            with Journal(self._crew.journals / "stage.jsonl") as journal:
                journal.note(killed)

    def _held(self) -> list[tuple[str, int]]:
        return list(self._crew.server.held(AIRPORTS, _VICTIM))

    def close(self) -> Ledger:
        """Stops what runs, and makes up the ledger."""
        sent = [event for event in self._events if isinstance(event, Sent)]
        ends = dict(self._crew.ends(sent))
        garbage = sum(status.garbage for status in self._crew.server.status())
        self._crew.processes.stop()
        self._look()
        ledger = audit(self._events, ends, visibility_ms=POLICY.visibility_ms)
        if garbage != ledger.garbage:
            ledger.problems.append(f"{ledger.garbage} messages are known to be garbage, the status says {garbage}")
        if not any(isinstance(event, Killed) and event.held for event in self._events):
            ledger.problems.append(f"{_VICTIM} was to be killed with deliveries in its hands, and was not")
        return ledger

    def tails(self) -> str:
        """The last lines of every log."""
        return self._crew.processes.tails()
