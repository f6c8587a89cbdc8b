"""What an exception of a handler means for its delivery."""

from dataclasses import replace

from lisa_common.escaping import safe_text
from lisa_common.model.delivery import Delivery
from lisa_common.protocol.consuming import Nack, Postponed
from lisa_common.validation import MAX_DELAY_S, check_int
from lisa_consumer.delivery.error_details import last_frames, leaves, with_causes
from lisa_consumer.handling.retries import Retries
from lisa_consumer.handling.wishes import RateLimited, Reject, Retry, Snooze, deciding_error, is_wish

__all__ = ["outcome_of"]


def outcome_of(delivery: Delivery, error: BaseException, retries: Retries) -> Nack | Postponed:
    """What an exception of a handler asks for. One that cannot say is a failure as any other."""
    if any(map(retries.rejects, (each for each in leaves(error) if not is_wish(each)))):
        return replace(_failed(delivery, error), rejected=True)
    try:
        return _wanted_outcome(delivery, error)
    except BaseException:  # noqa: BLE001 - a user's subclass may lack attributes, or raise anything where it has them
        return _failed(delivery, error)


def _failed(delivery: Delivery, error: BaseException) -> Nack:
    return Nack(delivery.entry, with_causes(error), trace=last_frames(error))


def _wanted_outcome(delivery: Delivery, error: BaseException) -> Nack | Postponed:
    wish = deciding_error(error)
    if isinstance(wish, RateLimited):
        return Postponed(_checked_ms(wish.delay_ms), here=bool(wish.here))
    # Beside other errors the group says more than the wish.
    text = with_causes(wish, safe_text(wish)) if all(map(is_wish, leaves(error))) else with_causes(error)
    if isinstance(wish, Reject):
        return Nack(delivery.entry, text, rejected=True)
    if isinstance(wish, Snooze):
        return Nack(delivery.entry, text, _checked_ms(wish.delay_ms), snoozed=True)
    if isinstance(wish, Retry):
        delay_ms = None if wish.delay_ms is None else _checked_ms(wish.delay_ms)
        return Nack(delivery.entry, text, delay_ms)
    return _failed(delivery, error)


def _checked_ms(delay_ms: int) -> int:
    """The delay of an exception, whose class may have set anything; raises InvalidInput."""
    return check_int("delay_ms", delay_ms, 0, MAX_DELAY_S * 1000)
