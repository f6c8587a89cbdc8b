"""Batches: how large they are, and how their handlers fail."""

from collections.abc import Iterable
from typing import NamedTuple

from lisa_common.errors import InvalidInput, LisaError
from lisa_common.model.delivery import Delivery

__all__ = ["BatchFailed", "BatchPeerFailed", "BatchSize"]


class BatchSize(NamedTuple):
    """When a batch is complete: with its last message, or after so many seconds."""

    most: int
    within_s: float


_PAIRS = "pairs of a delivery and an exception"


class BatchFailed(LisaError):
    """Raised by a batch handler that could not handle some of its messages: the others are acked.

    `failed` are pairs of a delivery and its error: what a handler of one message would have raised, so `Retry`,
    `Reject` and `Snooze` work as there.
    """

    def __init__(self, failed: Iterable[tuple[Delivery, BaseException]]) -> None:
        if not isinstance(failed, Iterable):
            raise InvalidInput("failed", failed, _PAIRS)
        self.failed = list(failed)
        for pair in self.failed:
            match pair:
                case (Delivery(), BaseException()):
                    continue
            raise InvalidInput("failed", pair, _PAIRS)
        super().__init__(f"{len(self.failed)} messages of the batch failed")


class BatchPeerFailed(LisaError):
    """The error of a delivery whose batch failed. The first delivery raises `cause` itself, so one log shows it."""

    def __init__(self, cause: BaseException) -> None:
        self.cause = cause
        super().__init__(str(type(cause).__name__))
