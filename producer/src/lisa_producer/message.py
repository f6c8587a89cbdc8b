"""What a caller says of a send: the message, and the confirmation to wait for."""

from dataclasses import dataclass

from lisa_common.errors import InvalidInput
from lisa_common.model.message import Message, check_message, due_argument, new_due, with_codec
from lisa_common.validation import Duration, check_int, duration_ms

__all__ = [
    "CONFIRM_S",
    "Confirm",
    "Message",
    "check_confirm",
    "check_message",
    "due_argument",
    "new_due",
    "with_codec",
]


CONFIRM_S = 3.0
"""With `appendfsync everysec`, Redis writes to the disk once a second, and up to 2 s late where the disk is busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirm:
    """The confirmation that a send waits for, beyond Redis' reply.

    As many `replicas` have received it (`WAIT`); with `fsync`, this server and as many replicas have it on disk
    (`WAITAOF`, Redis ≥ 7.2, with AOF on). `timeout` is the longest wait: seconds or timedelta. Raises InvalidInput.
    """

    replicas: int = 0
    fsync: bool = False
    timeout: Duration = CONFIRM_S

    def __post_init__(self) -> None:
        check_int("replicas", self.replicas, 0, 100)
        duration_ms("timeout", self.timeout, low_ms=1, high_s=60)
        if not self.replicas and not self.fsync:
            raise InvalidInput("replicas", 0, "at least 1 without fsync")


def check_confirm(value: object) -> Confirm | None:
    """A caller's `confirm`, which may be None; raises InvalidInput."""
    if value is not None and not isinstance(value, Confirm):
        raise InvalidInput("confirm", value, "a Confirm, as in Confirm(replicas=1)")
    return value
