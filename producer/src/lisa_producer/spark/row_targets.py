"""What the rows of a task go to, and what becomes of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from lisa_common.errors import LisaError
from lisa_producer.spark.row_messages import Row

__all__ = ["Counts", "Hooks", "Outcome", "RowTarget"]


class Outcome(NamedTuple):
    """The result of one row: `sent`, `duplicate`, or a word of its operation."""

    topic: str
    id: str | None
    outcome: str
    due_ms: int | None = None
    group: str | None = None


@dataclass(slots=True)
class Counts:
    """The rows of one task."""

    done: int = 0
    without_effect: int = 0
    bad: int = 0


class RowTarget(Protocol):
    """Takes the rows of one task. Raises LisaError if the server stays unreachable, or for a bad row."""

    counts: Counts

    def add(self, row: Row, size: int) -> None:
        """Takes a row of about `size` bytes."""

    def flush(self) -> None:
        """Ends once all rows have their outcomes."""


@dataclass(slots=True)
class Hooks:
    """What a task does beside its operation."""

    on_bad: Callable[[Row, LisaError], object]
    on_outcome: Callable[[Outcome], object] | None = None
    before: Callable[[int], object] = lambda _: None
    """Called before so many rows are sent; may wait."""
    most_rows: int | None = None
