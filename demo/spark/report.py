"""The report of the last job, and its tables."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from rich import box
from rich.table import Table

__all__ = ["Carrier", "DeadLetters", "Report"]


@dataclass(frozen=True, slots=True)
class Carrier:
    """One airline, or all of them. Lateness is in ms, from due to handled."""

    code: str
    name: str
    handled: int
    garbage: int
    p50_ms: float | None
    """None, as the next two: none of its calls was handled."""
    p99_ms: float | None
    max_ms: int | None


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The messages in garbage that have died of one cause."""

    count: int
    reason: str
    error: str


@dataclass(frozen=True, slots=True)
class Report:
    """All numbers of the report."""

    departures: int
    sent_late: int
    """Calls that were already due when they were sent."""
    total: Carrier
    carriers: list[Carrier]
    dead: list[DeadLetters]

    def save(self, path: Path) -> None:
        """Writes the report to a file."""
        path.write_text(json.dumps(asdict(self)), "utf-8")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads the report from a file."""
        fields = json.loads(path.read_text("utf-8"))
        fields["total"] = Carrier(**fields["total"])
        fields["carriers"] = [Carrier(**carrier) for carrier in fields["carriers"]]
        fields["dead"] = [DeadLetters(**dead) for dead in fields["dead"]]
        return cls(**fields)

    def tables(self) -> tuple[Table, Table]:
        """Lateness by carrier, and dead letters by reason."""
        return self._lateness(), self._dead()

    def _lateness(self) -> Table:
        table = _table("Lateness by carrier: ms from due to the handler's begin")
        for title in ("carrier", ""):
            table.add_column(title, no_wrap=True)
        for title in ("handled", "garbage", "p50", "p99", "max"):
            table.add_column(title, justify="right")
        for carrier in (*self.carriers, self.total):
            if carrier is self.total:
                table.add_section()
            lateness = (carrier.p50_ms, carrier.p99_ms, carrier.max_ms)
            shown = ("-" if late is None else f"{late:,.0f}" for late in lateness)
            table.add_row(carrier.code, carrier.name, str(carrier.handled), str(carrier.garbage), *shown)
        return table

    def _dead(self) -> Table:
        table = _table("Dead letters by reason")
        table.add_column("garbage", justify="right")
        table.add_column("reason")
        table.add_column("error")
        for dead in self.dead:
            table.add_row(str(dead.count), dead.reason, dead.error)
        return table


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=box.SIMPLE_HEAD)
