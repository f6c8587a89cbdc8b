"""What a registration says of retries, in place of the topic's policy, and what an exception of a handler means."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lisa_common.errors import InvalidInput
from lisa_common.escaping import safe_text
from lisa_common.model.delivery import Delivery
from lisa_common.protocol.consuming import Nack, Postponed
from lisa_common.validation import MAX_DELAY_S, MAX_RETRIES, Duration, check_int, duration_ms
from lisa_consumer.delivery.error_details import last_frames, leaves, with_causes
from lisa_consumer.handling.processes import ProcessDied
from lisa_consumer.handling.wishes import WISHES, RateLimited, Reject, Retry, Snooze, deciding_error, is_wish

__all__ = ["NO_RETRIES", "ErrorClasses", "Exponential", "Fixed", "Retries", "outcome_of"]

_CAP_S = 3_600
"""The longest delay by default, as in a policy."""

_ERRORS = "a class of exceptions, or several; no group, and not Reject, Retry, Snooze or RateLimited"

ErrorClasses = type[Exception] | Iterable[type[Exception]]


class Exponential:
    """Delays before retries that double from `base` to `cap`, in seconds or as timedeltas. Raises InvalidInput.

    They vary by the `backoff_jitter` of the topic's policy, but none exceeds `cap`.
    """

    def __init__(self, base: Duration, *, cap: Duration = _CAP_S) -> None:
        base_ms, cap_ms = duration_ms("base", base, low_ms=1), duration_ms("cap", cap, low_ms=1)
        if base_ms > cap_ms:
            raise InvalidInput("base", base, f"at most the cap, {cap_ms / 1000:g} s")
        self.policy_fields = {"backoff": "exponential", "backoff_base_ms": base_ms, "backoff_cap_ms": cap_ms}


class Fixed:
    """The same delay before each retry, in seconds or as a timedelta. Raises InvalidInput.

    It varies by the `backoff_jitter` of the topic's policy.
    """

    def __init__(self, delay: Duration) -> None:
        delay_ms = duration_ms("delay", delay, low_ms=1)
        # The jitter is at most the delay itself, and must not be cut by the policy's cap.
        cap_ms = min(2 * delay_ms, MAX_DELAY_S * 1000)
        self.policy_fields = {"backoff": "fixed", "backoff_base_ms": delay_ms, "backoff_cap_ms": cap_ms}


@dataclass(frozen=True, slots=True)
class Retries:
    """What a registration says of the retries of its messages."""

    policy_fields: Mapping[str, Any]
    """Fields of a policy that hold in place of the topic's."""
    retry_on: tuple[type[Exception], ...] = ()
    reject_on: tuple[type[Exception], ...] = ()

    @classmethod
    def of(cls, *, max_retries: object, backoff: object, retry_on: object, reject_on: object) -> "Retries":
        """The retries by the arguments of a registration, None where it says nothing. Raises InvalidInput."""
        fields = dict[str, Any]()
        if max_retries is not None:
            fields["max_retries"] = check_int("max_retries", max_retries, 0, MAX_RETRIES)
        if isinstance(backoff, Exponential | Fixed):
            fields |= backoff.policy_fields
        elif backoff is not None:
            raise InvalidInput("backoff", backoff, "Exponential(base, cap=...) or Fixed(delay)")
        retried, rejected = _classes("retry_on", retry_on), _classes("reject_on", reject_on)
        if both := [each for each in retried if each in rejected]:
            raise InvalidInput("retry_on", both[0], "a class that reject_on does not name")
        return cls(fields, retried, rejected)

    def rejects(self, error: BaseException) -> bool:
        """Whether an error makes its message garbage at once. Of its classes, the nearest that is named decides.

        A process that died says nothing of the message: `retry_on` does not mean it.
        """
        for each in type(error).__mro__:
            if each in self.retry_on or each in self.reject_on:
                return each in self.reject_on
        return bool(self.retry_on) and not isinstance(error, ProcessDied)


NO_RETRIES = Retries({})
"""Those of a registration that says nothing: the topic's policy decides."""


def _classes(name: str, given: Any) -> tuple[type[Exception], ...]:
    if given is None:
        return ()
    classes = tuple(given) if isinstance(given, Iterable) and not isinstance(given, type) else (given,)
    for each in classes or (given,):
        is_error = isinstance(each, type) and issubclass(each, Exception)
        if not is_error or issubclass(each, (*WISHES, BaseExceptionGroup)):
            raise InvalidInput(name, each, _ERRORS)
    return classes


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
