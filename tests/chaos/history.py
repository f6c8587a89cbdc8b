"""The history of a run: the requests of every process, the replies, and their times.

Each process appends to a file of its own, one JSON line per event in one write, so that a killed process leaves whole
lines. `at` is the machine's monotonic clock in seconds, which all processes share; `Clock` ties it to the server's.
An operation that was invoked and has no end may or may not have been carried out.
"""

import json
import math
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from itertools import count
from pathlib import Path
from typing import Any, get_origin, get_type_hints

__all__ = [
    "Asked",
    "Begun",
    "Clock",
    "Damage",
    "Drained",
    "Ended",
    "Event",
    "Fault",
    "Left",
    "Letter",
    "Outage",
    "Problem",
    "Read",
    "Recorder",
    "Repeated",
    "Sending",
    "Sent",
    "Settled",
    "Settling",
    "Taken",
    "Told",
    "Unrecorded",
    "Visit",
    "dump",
    "load",
    "now",
    "read_history",
    "undone_at",
]


def now() -> float:
    """The clock of the history."""
    return time.monotonic()


@dataclass(frozen=True, slots=True)
class Sending:
    """A message to send. Its body begins with `mark`, which is unique; without an `id` one is generated.

    `poison`: its handler kills its process, every time. `bad`: the send must be refused.
    """

    mark: str
    id: str | None
    crc: int
    delay_ms: int
    ttl_ms: int | None = None
    max_retries: int | None = None
    poison: bool = False
    bad: bool = False
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """A delivery as a consumer got it. `at_ms`: when the retry fell due, None for the first attempt."""

    topic: str
    id: str
    entry: str
    attempt: int
    due_ms: int
    at_ms: int | None
    mark: str
    crc: int
    shard: str = ""
    alone: bool = False

    @property
    def place(self) -> tuple[str, str, str]:
        """As `Delivery.place`: an entry id is unique within a stream only."""
        return self.topic, self.shard, self.entry


@dataclass(frozen=True, slots=True)
class Sent:
    """A send is invoked. Its end is `Told`, with (id, outcome, due time) for each message."""

    at: float
    op: str
    topic: str
    messages: list[Sending]


@dataclass(frozen=True, slots=True)
class Asked:
    """A cancel, a reschedule or an operator's replay, purge or abort is invoked. Its end is `Told`."""

    at: float
    op: str
    what: str
    topic: str
    id: str
    delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class Repeated:
    """A producer's own repeat of a send left at `since`, and reached the server at `at`, the first try at `stored`."""

    at: float
    since: float
    stored: float
    topic: str
    id: str

    def misses(self, since: float, until: float) -> bool:
        """Returns whether it may undo a cancel of between two moments: one sooner after the store than its way took.

        That is the exception in docs/guarantees.md#dedup.
        """
        return since < self.at and self.stored < until and since - self.stored < self.at - self.since


def undone_at(repeats: Iterable[Repeated], since: float, until: float) -> float:
    """Returns when one of these repeats may have undone a cancel of between two moments; infinity if none may."""
    return min((each.at for each in repeats if each.misses(since, until)), default=math.inf)


@dataclass(frozen=True, slots=True)
class Told:
    """How an operation of a producer ended: "ok", "failed" (certainly not carried out) or "unknown"."""

    at: float
    op: str
    how: str
    results: list[list[Any]]
    error: str = ""


@dataclass(frozen=True, slots=True)
class Read:
    """Deliveries were asked for, not before `asked`; their records were fetched between `since` and `at`."""

    at: float
    since: float
    asked: float
    group: str
    taken: list[Taken]


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """A consumer may have got deliveries between `since` and `at` that it cannot name; without an `id`, of any message.

    Its answer was lost, or the loan was that says which delivery it is.
    """

    at: float
    since: float
    topic: str
    group: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class Begun:
    """A handler begins with the delivery of this place."""

    at: float
    group: str
    place: list[str]


@dataclass(frozen=True, slots=True)
class Ended:
    """A handler has ended; `error` is empty when it returned."""

    at: float
    group: str
    place: list[str]
    error: str = ""


@dataclass(frozen=True, slots=True)
class Settling:
    """Deliveries are to be acked, nacked, extended or released: the place of each."""

    at: float
    op: str
    what: str
    group: str
    places: list[list[str]]


@dataclass(frozen=True, slots=True)
class Settled:
    """Their outcomes; None if unknown."""

    at: float
    op: str
    outcomes: list[str] | None


@dataclass(frozen=True, slots=True)
class Clock:
    """The server's clock, in ms, as seen by a question asked at `since` and answered at `at`."""

    at: float
    since: float
    server_ms: float


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault was at work from `since` to `at`; `topic` if it concerns only one."""

    at: float
    since: float
    kind: str
    topic: str = ""


@dataclass(frozen=True, slots=True)
class Outage:
    """The server was killed at `at`: writes acknowledged shortly before may be lost."""

    at: float


@dataclass(frozen=True, slots=True)
class Damage:
    """An operator damaged the keys of a topic, and mended them by `at`: earlier messages are excused."""

    at: float
    topic: str


@dataclass(frozen=True, slots=True)
class Visit:
    """A group joined by `since`, read nothing, and was owed these messages at `at`."""

    at: float
    since: float
    topic: str
    group: str
    ids: list[str]


@dataclass(frozen=True, slots=True)
class Left:
    """In the end the message is garbage of this group; an empty group: no group had it."""

    at: float
    topic: str
    group: str
    id: str
    reason: str
    shard: str = ""


@dataclass(frozen=True, slots=True)
class Letter:
    """In the end the message, which died in this group, is in the dead letter topic of its topic."""

    at: float
    topic: str
    group: str
    id: str
    reason: str
    crc: int


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem that the harness itself found: in an audit, a key that was left, a process that died."""

    at: float
    promise: int
    text: str


@dataclass(frozen=True, slots=True)
class Drained:
    """All topics were drained; `what` is a check of the harness, with its count."""

    at: float
    seconds: float
    checks: dict[str, int]


Event = (
    Sent
    | Asked
    | Repeated
    | Told
    | Read
    | Unrecorded
    | Begun
    | Ended
    | Settling
    | Settled
    | Clock
    | Fault
    | Outage
    | Damage
    | Visit
    | Left
    | Letter
    | Problem
    | Drained
)
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in Event.__args__}
_NESTED = {Sent: ("messages", Sending), Read: ("taken", Taken)}
_FIELDS = {kind: [field.name for field in fields(kind)] for kind in (*_KINDS.values(), Sending, Taken)}
assert all(get_origin(get_type_hints(kind)[name]) is list for kind, (name, _) in _NESTED.items())


class Recorder:
    """Appends events to the file of one process."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name = f"{name}-{os.getpid()}"
        path = directory / f"{self.name}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._ops = count(1)

    def write(self, event: Event) -> None:
        """Appends one event."""
        os.write(self._file, dump(event))

    def op(self) -> str:
        """A unique name for an operation, from any thread."""
        return f"{self.name}.{next(self._ops)}"


def dump(event: Event) -> bytes:
    """An event as a line."""
    row: list[Any] = [type(event).__name__]
    for name in _FIELDS[type(event)]:
        value = getattr(event, name)
        if (nested := _NESTED.get(type(event))) and nested[0] == name:
            value = [[getattr(item, field) for field in _FIELDS[nested[1]]] for item in value]
        row.append(value)
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"


def load(line: bytes) -> Event:
    """The event of a line."""
    name, *values = json.loads(line)
    kind = _KINDS[name]
    if nested := _NESTED.get(kind):
        at = _FIELDS[kind].index(nested[0])
        values[at] = [nested[1](*row) for row in values[at]]
    event: Event = kind(*values)
    return event


def read_history(directory: Path) -> list[Event]:
    """All events of a run, in the order of the clock."""
    return sorted((event for path in directory.glob("*.jsonl") for event in _events(path)), key=lambda event: event.at)


def _events(path: Path) -> Iterator[Event]:
    with path.open("rb") as lines:
        for line in lines:
            # The last line of a killed process may be cut off: that operation was not carried out.
            if line.endswith(b"\n"):
                yield load(line)
