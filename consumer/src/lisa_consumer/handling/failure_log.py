"""Logs failed handlers: each once, with its attempt, of how many, and when the retry comes."""

import logging
from typing import Any

from lisa_common.errors import LisaError
from lisa_common.logs import moment
from lisa_common.model.delivery import Delivery
from lisa_common.protocol.consuming import Nack, NackOutcome
from lisa_consumer.events import delivery_event
from lisa_consumer.handling.wishes import Retry

__all__ = ["log_failure", "log_unsettled"]

logger = logging.getLogger(__name__)

_NO_RETRY = {
    NackOutcome.GARBAGE: "now garbage",
    NackOutcome.DROPPED: "dropped, because it has expired",
    NackOutcome.GONE: "no retry, because it was cancelled or is done",
    NackOutcome.STALE: "already reclaimed, because its lease had run out",
}


def log_failure(
    delivery: Delivery,
    nack: Nack,
    error: BaseException | None,
    outcome: NackOutcome,
    due_ms: int | None,
    *,
    of: int | None,
    again: bool = False,
) -> None:
    """Logs a failure that is settled; `again`, if it was logged before, when it could not be settled.

    `due_ms` is when the retry is due, by the server's clock, and `of` how many attempts the message has.
    """
    retry_at = None if due_ms is None else moment(due_ms)
    sequel = f"retry at {retry_at}" if outcome is NackOutcome.RETRY else _NO_RETRY[outcome]
    fields = delivery_event(
        *("failure_settled" if again else "handler_failed", delivery),
        of=of,
        outcome=str(outcome),
        retry_at=retry_at,
        error=nack.error,
    )
    level = logging.INFO if again or isinstance(error, Retry) else logging.WARNING
    if outcome is NackOutcome.GARBAGE:
        level = logging.ERROR
    _log(level, delivery, nack, error, of=of, sequel=sequel, fields=fields)


def log_unsettled(delivery: Delivery, nack: Nack, error: BaseException | None, *, of: int | None) -> None:
    """Logs a failure that could not be reported to the server yet."""
    fields = delivery_event("handler_failed", delivery, of=of, outcome="unsettled", error=nack.error)
    _log(logging.WARNING, delivery, nack, error, of=of, sequel="not reported to the server yet", fields=fields)


def _log(
    level: int,
    delivery: Delivery,
    nack: Nack,
    error: BaseException | None,
    *,
    of: int | None,
    sequel: str,
    fields: dict[str, Any],
) -> None:
    attempt = f"{delivery.attempt} of {of}" if of else str(delivery.attempt)
    text = "the handler of %s failed, attempt %s; %s: %s"
    logger.log(level, text, delivery, attempt, sequel, nack.error, exc_info=_trace_of(error), extra=fields)


def _trace_of(error: BaseException | None) -> Any:
    """What to log of an exception beside its text."""
    # Errors of Lisa are raised on purpose, so their text is enough.
    if error is None or isinstance(error, LisaError):
        return None
    try:
        bool(error)
        # As a triple, which is true even if the exception is not.
        return type(error), error, error.__traceback__
    except BaseException:  # noqa: BLE001 - a user's class; logging asks the same, and would end the worker
        return None
