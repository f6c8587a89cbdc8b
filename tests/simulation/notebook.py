"""The history of a run, in memory: the events of the chaos suite, so that its checker can judge them."""

from collections.abc import Callable

from chaos.history import Event, Recorder
from simulation.loop import PROGRAM

__all__ = ["Notebook"]


class Notebook(Recorder):
    """Takes the events of all programs. A program that was killed writes no more."""

    def __init__(self, note: Callable[..., None]) -> None:
        self.name = "run"
        self.events: list[Event] = []
        self._note = note
        self._count = 0

    def write(self, event: Event) -> None:
        """Appends one event."""
        if PROGRAM.get().is_alive:
            self.events.append(event)
            self._note("history", event)

    def op(self) -> str:
        """A name for an operation."""
        self._count += 1
        return f"op{self._count}"
