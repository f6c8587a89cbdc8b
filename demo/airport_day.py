"""A day at the airports: an airline sends, cancels and reschedules, and one of two workers is killed midway."""

from collections.abc import Iterable

from rich.console import RenderableType

from demo.crew import WORKERS
from demo.events import Journal, Killed, Sent
from demo.ledger import audit, lines
from demo.play import Play
from demo.server import POLICY

__all__ = ["AirportDay"]

_VICTIM = WORKERS[0]

_KILL_FROM, _KILL_UNTIL = 0.55, 0.85
"""The victim is killed between these shares of the day, as soon as it holds enough."""
_KILL_HOLDING = 4


class AirportDay(Play):
    """The day with its changes of plan."""

    source = "airline"
    spare_s = 40.0

    def start(self) -> None:
        """Starts the manager and the workers, and the airline once these are ready for the day."""
        self.crew.start("demo.boarding:worker")
        day = ("--day", str(self.day.date), "--seconds", str(self.day.seconds))
        self.crew.start_module("airline", "demo.airline", *day, "--journal", str(self.crew.journals / "airline.jsonl"))

    def meanwhile(self) -> None:
        """Kills the victim when its time has come."""
        if self.scene.killed or self.scene.share < _KILL_FROM:
            return
        enough = _KILL_HOLDING if self.scene.share < _KILL_UNTIL else 1
        if len(self._held()) >= enough:
            self.crew.processes.kill(_VICTIM)
            # Acks that it has sent may still be on their way: then this list is too long, never too short.
            killed = Killed(_VICTIM, self.crew.server.now_ms(), self._held())
            with Journal(self.crew.journals / "kills.jsonl") as journal:
                journal.note(killed)

    def _held(self) -> list[tuple[str, int]]:
        return list(self.crew.server.held(_VICTIM))

    def close(self) -> tuple[bool, Iterable[RenderableType]]:
        """Stops all programs, and compares every message with the place where it has ended."""
        ends = dict(self.crew.ends(event for event in self.events if isinstance(event, Sent)))
        garbage = sum(status.garbage for status in self.crew.server.status())
        self.crew.processes.stop()
        self.look()
        ledger = audit(self.events, ends, visibility_ms=POLICY.visibility_ms)
        if garbage != ledger.garbage:
            ledger.problems.append(f"{ledger.garbage} messages are known to be garbage, the status says {garbage}")
        if not any(isinstance(event, Killed) and event.held for event in self.events):
            ledger.problems.append(f"{_VICTIM} held no delivery when it was killed, or was not killed")
        return ledger.balanced, lines(ledger)
