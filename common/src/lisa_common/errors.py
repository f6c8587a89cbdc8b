"""Everything that Lisa raises.

LisaError
├── InvalidInput          bad input: names the field, the value and the limit; nothing was written
├── InvalidSettings       a setting that is unknown or out of bounds
├── NotConfirmed          written, but fewer replicas or disks confirmed it than were asked for
├── UnknownTopic          an operator named a topic that does not exist
├── UnknownGroup          likewise a group
└── ServerError
    ├── Unreachable       no connection; nothing was done
    │   └── NoFreeConnection  all connections that the settings allow were in use for too long; nothing was done
    ├── OutcomeUnknown    the connection broke between request and reply: done or not
    ├── Refused           the server refuses for now (memory or disk full, loading, read only); nothing was done
    ├── AccessDenied      wrong password, an ACL that forbids the command, or no certificate that the server trusts
    ├── Untrusted         the server's certificate is not one that we trust, or is for another host; nothing was done
    ├── NoGroup           the consumer group, or its stream, is not there
    ├── UnreadableReply   the reply is none that the call can have; it was carried out, or not
    ├── Resharded         new messages of the topic go to other shards since; nothing was done
    └── TooManyGroups     the topic has as many groups as its policy allows; nothing was done
"""

from collections.abc import Sequence

__all__ = [
    "OF_THE_SERVER",
    "AccessDenied",
    "ByteCount",
    "InvalidInput",
    "InvalidSettings",
    "LisaError",
    "NoFreeConnection",
    "NoGroup",
    "NotConfirmed",
    "OutcomeUnknown",
    "Refused",
    "Resharded",
    "ServerError",
    "TooManyGroups",
    "UnknownGroup",
    "UnknownTopic",
    "Unreachable",
    "UnreadableReply",
    "Untrusted",
]


class LisaError(Exception):
    """Base of all errors that Lisa raises on purpose."""


class InvalidInput(LisaError, ValueError):
    """A refused value: the field, the value as given, and what it must be."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        self.field = field
        self.value = value
        self.expected = expected
        super().__init__(f"{field} must be {expected}; got {_shown(value)}")


class InvalidSettings(LisaError, ValueError):
    """Settings that cannot be taken; the text has one line for each."""


class NotConfirmed(LisaError):
    """Messages were written, but not confirmed as asked; they may be lost if the server fails now."""

    def __init__(self, topic: str, ids: Sequence[str], wanted: str, got: str) -> None:
        self.topic = topic
        self.ids = tuple(ids)
        super().__init__(f"{len(ids)} sent to {topic!r}, but not confirmed: wanted {wanted}, got {got}")


class UnknownTopic(LisaError):
    """There is no such topic."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"there is no topic {topic!r}")


class UnknownGroup(LisaError):
    """There is no such group on the topic."""

    def __init__(self, topic: str, group: str) -> None:
        self.topic = topic
        self.group = group
        super().__init__(f"topic {topic!r} has no group {group!r}")


class ServerError(LisaError):
    """Redis did not do what was asked."""


class Unreachable(ServerError):
    """There is no connection to Redis; nothing was done."""


class NoFreeConnection(Unreachable):
    """All connections that the settings allow were in use for too long; nothing was done. It says nothing of Redis."""


class OutcomeUnknown(ServerError):
    """The connection broke after the request and before the reply: it was carried out, or not."""


class Refused(ServerError):
    """Redis refuses for now and says why; nothing was done, and the same may be accepted later."""


class AccessDenied(ServerError):
    """Redis knows no such user, password or certificate, or forbids the user what was asked."""


class Untrusted(ServerError):
    """The server's certificate is not one that we trust, or is for another host; nothing was done."""


class NoGroup(ServerError):
    """The consumer group, or the stream that it reads, is not there."""


class Resharded(ServerError):
    """New messages of the topic go to other shards since its policy was read; nothing was done."""


class UnreadableReply(ServerError):
    """The reply is none that the call can have: damaged data, or no Redis; the call was carried out, or not."""


class TooManyGroups(ServerError):
    """The topic has as many groups as its policy allows; the group was not made."""


OF_THE_SERVER = (Unreachable, OutcomeUnknown, Refused, AccessDenied, Untrusted)
"""Errors that any call would meet now; others are a call's own, and so its topic's."""


class ByteCount(int):
    """Stands for a value that is too long to show."""

    def __repr__(self) -> str:
        return f"{int(self)} bytes"


_SHOWN = 80


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - whatever a value's own repr raises; Python's refuse long numbers, and deep lists
        return f"of type {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 20]}… ({len(text)} characters)"
