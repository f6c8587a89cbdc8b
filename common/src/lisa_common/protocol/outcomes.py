"""What a consumer asks for when it settles a delivery, and what came of that."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from lisa_common.model.delivery import Entry

__all__ = ["AckOutcome", "Nack", "NackOutcome", "Postponed"]

_REASON_NACK, _REASON_REJECTED, _REASON_SNOOZED, _REASON_ISOLATED = "nack", "rejected", "snoozed", "isolated"


class AckOutcome(StrEnum):
    """What an ack did."""

    ACKED = "acked"
    LATE = "late"
    """The lease had run out, but no newer delivery had begun: the retry is withdrawn, and the message is done."""
    STALE = "stale"
    """A newer delivery exists, or the message is done, gone or aborted. Nothing changed."""
    DUPLICATE = "duplicate"
    """Acked, but the id of the message that follows is known: that message stands, and nothing was sent."""
    CANCELLED = "cancelled"
    """Acked, but the message was cancelled meanwhile: nothing follows it."""
    OWED = "owed"
    """Another group still owes the message, whose id the next one was to have. Nothing changed."""
    FULL = "full"
    """The topic has no room for the message that follows. Nothing changed."""
    RESHARDED = "resharded"
    """The topic was resharded, and the message that follows has another id. Nothing changed."""


@dataclass(frozen=True, slots=True)
class Nack:
    """A failed delivery. `delay_ms` None: the policy's backoff. Rejected: garbage at once.

    Snoozed: no attempt is spent. Isolated: the next delivery is alone.
    """

    entry: Entry
    error: str = ""
    delay_ms: int | None = None
    rejected: bool = False
    snoozed: bool = False
    isolated: bool = False
    trace: tuple[str, ...] = ()
    """The last frames of the traceback, the innermost last; see `lisa_common.model.failure`."""

    @property
    def reason(self) -> str:
        """Why, as it is stored with the failure."""
        named = {_REASON_REJECTED: self.rejected, _REASON_SNOOZED: self.snoozed, _REASON_ISOLATED: self.isolated}
        return next((reason for reason, is_so in named.items() if is_so), _REASON_NACK)


class Postponed(NamedTuple):
    """A delivery that is given back, while nothing of its topic becomes ready for so long."""

    delay_ms: int
    here: bool = False
    """Whether only its worker leaves the topic alone for so long."""


class NackOutcome(StrEnum):
    """The outcome of a nack."""

    RETRY = "retry"
    GARBAGE = "garbage"
    DROPPED = "dropped"
    """Expired meanwhile, and the policy drops expired messages."""
    GONE = "gone"
    """Cancelled or done meanwhile."""
    STALE = "stale"
    """The lease had run out and the delivery was reclaimed. Nothing changed."""
