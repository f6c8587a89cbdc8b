"""A day as a pipeline: files arrive, Spark sends their rows as messages, workers handle them, and Spark reports."""

import time
from collections.abc import Iterable
from pathlib import Path

from rich.console import RenderableType

from demo.events import Event, Opened, Sent, Streamed
from demo.flights import DayClock
from demo.ledger import audit
from demo.play import TICK_S, Play
from demo.processes import DemoFailed
from demo.running import Day, Place
from demo.server import POLICY
from demo.spark.feeder import Feeder
from demo.spark.ledger import Books
from demo.spark.plan import MAX_RETRIES, departures_in, report_in
from demo.spark.report import Report

__all__ = ["Pipeline"]

_REPORT_S = 100.0


class Pipeline(Play):
    """The day as files that a stream reads. The caller names the path of its chart."""

    source = "spark"
    spare_s = 200.0

    def __init__(self, place: Place, day: Day, chart: Path) -> None:
        super().__init__(place, day)
        self._chart = chart
        self._feeder = Feeder(departures_in(place.directory), day.date)

    def start(self) -> None:
        """Starts the manager and the workers, and Spark once these are ready for the day."""
        departures_in(self.place.directory).mkdir()
        self.crew.start("demo.spark.boarding:worker")
        day = ("--day", str(self.day.date), "--seconds", str(self.day.seconds), "--title", f"New York, {self.day}")
        places = ("--directory", str(self.place.directory), "--journals", str(self.crew.journals))
        self.crew.start_module(self.source, "demo.spark.job", *day, *places, "--chart", str(self._chart.absolute()))

    def take(self, event: Event) -> None:
        """Takes an event in; when the day opens, also the sends that the job is expected to make of the files.

        The ledger compares them with the messages that it did send.
        """
        super().take(event)
        if isinstance(event, Opened):
            clock = DayClock(event.start_ms, event.first_min, event.last_min, event.seconds)
            for flight in self.day.flights:
                super().take(Sent(flight.id, flight.airport, clock.ms(flight.late_boarding_min), MAX_RETRIES))

    def all_sent(self) -> bool:
        """Whether nothing more is sent: the stream has ended. Its process goes on, as it has yet to report."""
        self.crew.processes.check(self.source)
        return any(isinstance(event, Streamed) for event in self.events)

    def meanwhile(self) -> None:
        """Brings the files whose time has come."""
        if self.scene.clock:
            self._feeder.bring(self.scene.clock, self.scene.now_ms)

    def close(self) -> tuple[bool, Iterable[RenderableType]]:
        """Waits for Spark's report, stops all programs, and compares their numbers."""
        deadline = time.monotonic() + _REPORT_S
        while not self.crew.processes.done(self.source):
            if time.monotonic() > deadline:
                raise DemoFailed(f"Spark has not reported within {_REPORT_S:g} s")
            time.sleep(TICK_S)
        ends = dict(self.crew.ends(event for event in self.events if isinstance(event, Sent)))
        self.crew.processes.stop()
        self.look()
        streamed = [event for event in self.events if isinstance(event, Streamed)]
        books = Books(
            files=self._feeder.files,
            rows=self._feeder.rows,
            streamed=sum(event.rows for event in streamed),
            batches=sum(event.batches for event in streamed),
            ledger=audit(self.events, ends, visibility_ms=POLICY.visibility_ms),
            unknown=sum(end.state == "unknown" for end in ends.values()),
            report=Report.load(report_in(self.place.directory)),
        )
        chart = f"  chart       {self._chart}"
        return not books.problems, ["", *books.report.tables(), chart, *books.lines()]
