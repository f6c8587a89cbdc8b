"""The pipeline's ledger: files, Spark, Lisa, workers and the last job must report the same messages. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from demo.ledger import Ledger
from demo.spark.report import Report

__all__ = ["Books"]


@dataclass(frozen=True, slots=True)
class Books:
    """The numbers that each of them reports."""

    files: int
    rows: int
    """Rows that these files have."""
    streamed: int
    """Rows that the first job has read."""
    batches: int
    ledger: Ledger
    """Every message with its end as Lisa reports it, and every delivery with its reason."""
    unknown: int
    """Departures whose message Lisa does not know."""
    report: Report

    @property
    def problems(self) -> list[str]:
        """A line for each number that does not balance."""
        ledger, report = self.ledger, self.report
        pairs = (
            ("rows of files", self.rows, "rows read by the stream", self.streamed),
            ("rows of files", self.rows, "messages sent", self.sent),
            ("rows of files", self.rows, "rows read by the last job", report.departures),
            ("messages sent", self.sent, "handled or in garbage", ledger.acked + ledger.garbage),
            ("acked", ledger.acked, "handled by the workers' journals", report.total.handled),
            ("garbage", ledger.garbage, "dead letters read by Spark", sum(dead.count for dead in report.dead)),
        )
        uneven = [f"{one}: {count}, {other}: {found}" for one, count, other, found in pairs if count != found]
        return uneven + ledger.problems

    @property
    def sent(self) -> int:
        """Messages that Lisa knows."""
        return self.ledger.sent - self.unknown

    def lines(self) -> Iterator[str]:
        """The ledger as text."""
        ledger = self.ledger
        yield f"  files       {self.files}, with {self.rows} rows, read by Spark in {self.batches} micro-batches"
        yield f"  sent        {self.sent} = {ledger.acked} handled + {ledger.garbage} garbage"
        early = sum(lag < 0 for lag in ledger.lags_ms)
        again = sum(map(len, ledger.duplicates.values()))
        yield f"  deliveries  {ledger.deliveries}, of them early: {early}; again, as the handler had failed: {again}"
        if self.report.sent_late:
            yield f"  sent late   {self.report.sent_late} were due before Spark had sent them; their lateness tells"
        yield from (f"  PROBLEM     {problem}" for problem in self.problems)
        yield f"  DOES NOT BALANCE: {len(self.problems)} problems" if self.problems else "  balanced"
