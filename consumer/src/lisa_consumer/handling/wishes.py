"""What handlers raise to say what to do with their messages."""

from typing import Any

from lisa_common.errors import InvalidInput, LisaError
from lisa_common.validation import Duration, duration_ms
from lisa_consumer.delivery.error_details import leaves

__all__ = ["WISHES", "RateLimited", "Reject", "Retry", "Snooze", "deciding_error", "is_wish"]


def _reason(name: str, given: object, default: str) -> str:
    """The text of a reason; raises InvalidInput for what may be meant as a delay."""
    if given is not None and not isinstance(given, str | BaseException):
        raise InvalidInput("reason", given, f"text; give a delay by its name, as in {name}(delay=60)")
    return str(given or "") or default


class Retry(LisaError):
    """Raised by a handler to have its message delivered again after `delay`, in seconds or as a timedelta.

    Without a delay the policy's backoff decides. The attempt counts, as with any failure.
    """

    def __init__(self, reason: str = "", *, delay: Duration | None = None) -> None:
        self.delay_ms = None if delay is None else duration_ms("delay", delay)
        super().__init__(_reason("Retry", reason, "the handler asked for a retry"))


class Snooze(LisaError):
    """Raised by a handler to have its message delivered again after `delay`, without spending an attempt.

    `delay` is seconds or a timedelta. The message may still expire meanwhile. Raises InvalidInput.
    """

    def __init__(self, delay: Duration, reason: str = "") -> None:
        self.delay_ms = duration_ms("delay", delay)
        super().__init__(_reason("Snooze", reason, "the handler snoozed the message"))


class Reject(LisaError):
    """Raised by a handler that can never handle its message: it becomes garbage, whatever attempts are left."""

    def __init__(self, reason: str = "") -> None:
        # A rejected message has no delay; who gives one means another wish.
        super().__init__(_reason("Retry", reason, "the handler rejected the message"))


class RateLimited(LisaError):
    """Raised by a handler that may go on only after `delay`, in seconds or as a timedelta: at an HTTP 429, for example.

    Its message is given back, and no attempt is spent. For so long nothing of the topic becomes ready, in any group;
    messages that are ready already are still delivered. With `here`, only this worker stops reading the topic,
    and gives back what it has not begun; other workers and groups go on. Raises InvalidInput for a delay out of range.
    """

    def __init__(self, delay: Duration, reason: str = "", *, here: bool = False) -> None:
        self.here = here
        self.delay_ms = duration_ms("delay", delay, low_ms=1)
        super().__init__(_reason("RateLimited", reason, f"the handler may go on after {self.delay_ms / 1000:g} s"))


WISHES = (Reject, RateLimited, Snooze, Retry)
"""What handlers raise to say what they want, the strongest first."""


def is_wish(error: BaseException) -> bool:
    """Whether an exception was raised to say what to do with the message."""
    return isinstance(error, WISHES)


def deciding_error(error: BaseException) -> BaseException:
    """Of a group of exceptions, as a task group raises it, the one that decides; the group itself if it is a failure.

    The strongest wish decides, and of several of its kind the one with the longest delay. Beside an error that is no
    wish, only `Reject` and `Retry` do: the other wishes spend no attempt, and the error would come again for ever.
    """
    members = leaves(error)
    if len(members) == 1:
        return members[0]
    kinds = WISHES if all(map(is_wish, members)) else (Reject, Retry)
    for kind in kinds:
        if wishes := [each for each in members if isinstance(each, kind)]:
            return max(wishes, key=_delay_ms)
    return error


def _delay_ms(wish: Any) -> int:
    try:
        return int(wish.delay_ms)
    except BaseException:  # noqa: BLE001 - it may have none, and a user's subclass anything
        return 0
