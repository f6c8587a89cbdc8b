"""Plays a day: starts the programs, waits until every message has ended, and makes up the ledger.

`AirportDay` and `Pipeline` are its two forms.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from types import TracebackType
from typing import ClassVar, Self

from rich.console import Console, RenderableType

from demo.crew import WORKERS, Crew
from demo.events import Event
from demo.processes import DemoFailed
from demo.running import Day, Place
from demo.scene import Scene
from demo.view import View, view_for

__all__ = ["TICK_S", "Play"]

TICK_S = 0.05


class Play(ABC):
    """All programs of one day, from their start to the ledger. They end with the block."""

    source: ClassVar[str]
    """The program that sends."""
    spare_s: ClassVar[float]
    """Seconds beyond the length of the day: the source opens it, and the last retries end."""

    def __init__(self, place: Place, day: Day) -> None:
        self.place = place
        self.day = day
        self.crew = Crew(place, day)
        self.scene = Scene()
        self.events: list[Event] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self.crew:
            pass

    def perform(self, console: Console) -> int:
        """Plays the day, prints the ledger, and returns the exit code: 0 only if it balances."""
        began = time.monotonic()
        try:
            self.start()
            console.print(f"{self.crew}\n")
            with view_for(console, f"New York, {self.day}") as view:
                self._play(view)
            balanced, lines = self.close()
        except DemoFailed as failure:
            console.print(f"\nthe demo has failed: {failure}\n{self.crew.processes.tails()}", markup=False)
            return 1
        console.print(f"\nThe ledger of {self.day}, after {time.monotonic() - began:.0f} s")
        for line in lines:
            console.print(line, markup=False)
        if not balanced:
            console.print(self.crew.processes.tails(), markup=False)
        return 0 if balanced else 1

    @abstractmethod
    def start(self) -> None:
        """Starts all programs that the day needs."""

    @abstractmethod
    def close(self) -> tuple[bool, Iterable[RenderableType]]:
        """Stops all programs, and makes up the ledger. Returns whether it balances, and its lines."""

    def all_sent(self) -> bool:
        """Whether nothing more is sent: the source has ended."""
        return self.crew.processes.done(self.source)

    @abstractmethod
    def meanwhile(self) -> None:
        """Does the work of the moment; called several times a second."""

    def take(self, event: Event) -> None:
        """Takes an event in."""
        self.events.append(event)
        self.scene.tell(event)

    def look(self) -> None:
        """Takes in the time, the sizes of topics, and new events."""
        self.scene.now_ms = self.crew.server.now_ms()
        self.scene.topics = self.crew.server.status()
        for event in self.crew.news():
            self.take(event)

    def _play(self, view: View) -> None:
        deadline = time.monotonic() + self.day.seconds + self.spare_s
        over = False
        while not over:
            # In this order: once all is sent, an empty server stays empty.
            all_sent = self.all_sent()
            self.crew.processes.check("manager", *WORKERS)
            alive = self.crew.server.alive()
            over = all_sent and alive == 0
            self.look()
            view.show(self.scene, last=over)
            self.meanwhile()
            if not over and time.monotonic() > deadline:
                raise DemoFailed(f"{alive} messages have not ended in time: {self.scene.topics}")
            time.sleep(TICK_S)
