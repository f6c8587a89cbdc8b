"""What became of messages that were sent: the result of each, and counts of many."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, overload

from lisa_common.errors import LisaError
from lisa_common.escaping import named_text
from lisa_common.validation import GENERATED_SUFFIX

__all__ = [
    "BatchResults",
    "PartialSend",
    "SendOutcome",
    "SendReport",
    "SendResult",
    "SendResults",
    "Stored",
    "result_of",
]


class SendOutcome(StrEnum):
    """The outcome of sending one message."""

    SENT = "sent"
    REPLACED = "replaced"
    """With `if_exists="replace"`: it was sent in place of the message that had its id."""
    DUPLICATE = "duplicate"
    """The id is alive, or was finished within the dedup window. Nothing was written; the first message stands."""
    FAILED = "failed"
    """Not written, perhaps written (`OutcomeUnknown`), or written but not confirmed; the error says which."""


class SendResult(NamedTuple):
    """The result of one message. `position` counts from 0 in the order of sending; `due_ms` is server time.

    `id` is None only for a message of `send_many` that failed before it had one.
    """

    position: int
    id: str | None
    outcome: SendOutcome
    due_ms: int | None = None
    error: LisaError | None = None

    @property
    def duplicate(self) -> bool:
        """Whether nothing was written because the id was known."""
        return self.outcome is SendOutcome.DUPLICATE


Stored = int | LisaError
"""What became of a message: its due time in ms, negative where it replaced another, 0 where its id was known, or the
error."""


def result_of(position: int, id: str | None, stored: Stored) -> SendResult:
    """The result of one message."""
    if isinstance(stored, LisaError):
        return SendResult(position, id, SendOutcome.FAILED, error=stored)
    if stored > 0:
        return tuple.__new__(SendResult, (position, id, SendOutcome.SENT, stored, None))
    if stored:
        return SendResult(position, id, SendOutcome.REPLACED, -stored)
    # A generated id can be known only from an earlier try of the same send, whose reply was lost.
    outcome = SendOutcome.SENT if id and id.endswith(GENERATED_SUFFIX) else SendOutcome.DUPLICATE
    return SendResult(position, id, outcome)


class BatchResults(Sequence[SendResult]):
    """The results of one batch, in the order of its messages, the first of which has the position `first`.

    Each is made when it is asked for: of a million objects that live on, the garbage collector would look at all again
    and again, for a quarter of the time of their sending.
    """

    __slots__ = ("_all_sent", "_first", "_ids", "_stored")

    def __init__(self, first: int, ids: Sequence[str | None], stored: Sequence[Stored]) -> None:
        self._first = first
        self._ids = ids
        self._stored = stored
        self._all_sent = set(map(type, stored)) <= {int} and min(stored, default=1) > 0  # type: ignore[type-var, operator]

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, at: int) -> SendResult: ...
    @overload
    def __getitem__(self, at: slice) -> list[SendResult]: ...
    def __getitem__(self, at: int | slice) -> SendResult | list[SendResult]:
        """The result at a place, or a list of those in a slice."""
        if isinstance(at, slice):
            return [self[place] for place in range(*at.indices(len(self)))]
        return result_of(self._first + range(len(self))[at], self._ids[at], self._stored[at])

    def __iter__(self) -> Iterator[SendResult]:
        return map(result_of, range(self._first, self._first + len(self)), self._ids, self._stored)

    def outcomes(self) -> Counter[SendOutcome]:
        """How many messages had each outcome."""
        if self._all_sent:
            return Counter({SendOutcome.SENT: len(self)})
        return Counter([result.outcome for result in self])


class SendResults(Sequence[SendResult]):
    """The results of many messages, in the order of sending; equal to a list of them. Each is made when asked for."""

    __slots__ = ("_ends", "_parts")

    __hash__ = None  # type: ignore[assignment] # as of a list

    def __init__(self, results: Iterable[SendResult] = ()) -> None:
        self._parts: list[Sequence[SendResult]] = []
        self._ends: list[int] = []
        self.add(list(results))

    def add(self, results: Sequence[SendResult]) -> None:
        """Appends results."""
        if results:
            self._parts.append(results)
            self._ends.append(len(self) + len(results))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, at: int) -> SendResult: ...
    @overload
    def __getitem__(self, at: slice) -> list[SendResult]: ...
    def __getitem__(self, at: int | slice) -> SendResult | list[SendResult]:
        """The result at a place, or a list of those in a slice."""
        if isinstance(at, slice):
            return [self[place] for place in range(*at.indices(len(self)))]
        place = range(len(self))[at]
        part = bisect_right(self._ends, place)
        # Counted from the end of its part, whose own beginning is not known.
        return self._parts[part][place - self._ends[part]]

    def __iter__(self) -> Iterator[SendResult]:
        for part in self._parts:
            yield from part

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SendResults | list) and list(self) == list(other)

    def __repr__(self) -> str:
        return repr(list(self))


@dataclass(slots=True)
class SendReport:
    """Counts of many messages; `results` stays empty where a callback receives them."""

    sent: int = 0
    duplicates: int = 0
    failed: int = 0
    replaced: int = 0
    first_error: LisaError | None = None
    results: SendResults = field(default_factory=SendResults)

    def take(
        self,
        results: BatchResults,
        on_result: Callable[[SendResult], object] | None,
        on_batch: Callable[[BatchResults], object] | None,
    ) -> None:
        """Counts the results of a batch, and passes them on to the callbacks, or keeps them."""
        self.count_all(results)
        if on_batch is not None:
            on_batch(results)
        if on_result is not None:
            for result in results:
                on_result(result)
        elif on_batch is None:
            self.results.add(results)

    def count_all(self, results: BatchResults) -> None:
        """Adds the results of a batch to the counts."""
        outcomes = results.outcomes()
        self.sent += outcomes[SendOutcome.SENT]
        self.replaced += outcomes[SendOutcome.REPLACED]
        self.duplicates += outcomes[SendOutcome.DUPLICATE]
        self.failed += outcomes[SendOutcome.FAILED]
        if outcomes[SendOutcome.FAILED] and self.first_error is None:
            self.first_error = next(result.error for result in results if result.error)

    def count(self, result: SendResult) -> None:
        """Adds one result to the counts."""
        if result.outcome is SendOutcome.SENT:
            self.sent += 1
        elif result.outcome is SendOutcome.DUPLICATE:
            self.duplicates += 1
        elif result.outcome is SendOutcome.REPLACED:
            self.replaced += 1
        else:
            self.failed += 1
            self.first_error = self.first_error or result.error


class PartialSend(LisaError):
    """Some of many messages failed; `report` says which, unless a callback received the results.

    `source_error` is the exception of the caller's iterable, if that ended the send.
    """

    def __init__(self, topic: str, report: SendReport, source_error: Exception | None = None) -> None:
        self.topic = topic
        self.report = report
        self.source_error = source_error
        taken = report.sent + report.replaced + report.duplicates + report.failed
        parts = []
        if report.failed or source_error is None:
            # Not all were not sent: one may lack its confirmation, or its outcome may be unknown.
            parts.append(f"{report.failed} of {taken} messages to {topic!r} failed")
            parts.append(f"the first because: {report.first_error}")
        if source_error is not None:
            parts.append(
                f"the messages for {topic!r} ended after {taken}, as their iterable raised {named_text(source_error)}"
            )
        super().__init__("; ".join(parts))
