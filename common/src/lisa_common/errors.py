"""Everything that Lisa raises.

LisaError
├── InvalidInput          bad input: names the field, the value and the limit; nothing was written
│   ├── CannotCombine     two values that exclude each other
│   └── Needs             a value without another that it needs
├── InvalidSettings       a setting that is unknown or out of bounds
├── Closed                the client was closed before the call went out; nothing was done
├── NotConfirmed          written, but confirmed by fewer replicas or disks than requested
├── UnknownTopic          an operator named a topic that does not exist
├── UnknownGroup          likewise a group
├── UnknownSchedule       likewise a schedule
├── UnknownWorker         no such worker has lately lived
└── ServerError
    ├── Unreachable       no connection; nothing was done
    │   └── NoFreeConnection  all allowed connections stayed in use for too long; nothing was done
    ├── OutcomeUnknown    the connection broke before the reply; the request may have been carried out
    ├── Refused           the server refuses for now (memory or disk full, loading, read only); nothing was done
    ├── AccessDenied      wrong password, an ACL that forbids the command, or no certificate that the server trusts
    ├── Untrusted         the server's certificate is not trusted, or names another host; nothing was done
    ├── NoGroup           the consumer group or its stream does not exist
    ├── UnreadableReply   the reply does not fit the call, which may have been carried out
    ├── Resharded         the topic was resharded after its policy was read; nothing was done
    ├── TooManyGroups     the topic has as many groups as its policy allows; nothing was done
    └── QueueFull         the topic holds as many messages as its policy allows; nothing was stored
"""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

__all__ = [
    "NOTHING_DONE",
    "OF_A_NODE",
    "OF_THE_SERVER",
    "UNDONE",
    "AccessDenied",
    "CannotCombine",
    "Closed",
    "InvalidInput",
    "InvalidSettings",
    "LisaError",
    "Needs",
    "NoFreeConnection",
    "NoGroup",
    "NotConfirmed",
    "OmittedBytes",
    "OutcomeUnknown",
    "QueueFull",
    "Refused",
    "Resharded",
    "ServerError",
    "TooManyGroups",
    "UnknownGroup",
    "UnknownSchedule",
    "UnknownTopic",
    "UnknownWorker",
    "Unreachable",
    "UnreadableReply",
    "Untrusted",
    "Verbatim",
    "in_part",
]


class LisaError(Exception):
    """Base of all errors that Lisa raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        # As it is, not by its constructor, which takes other arguments: it passes between processes.
        return _restored, (type(self), self.args), self.__dict__


def _restored(kind: type[LisaError], args: tuple[Any, ...]) -> LisaError:
    return kind.__new__(kind, *args)


class InvalidInput(LisaError, ValueError):
    """Refuses a value: names the field, the value as given, and what it must be."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        self.field = field
        self.value = value
        self.expected = expected
        super().__init__(f"{field} must be {expected}; got {_shown(value)}")


class CannotCombine(InvalidInput):
    """Refuses a value beside another that excludes it."""

    def __init__(self, field: str, value: object, other: str) -> None:
        super().__init__(field, value, f"omitted with {other}")
        self.args = (f"{field} cannot be combined with {other}",)


class Needs(InvalidInput):
    """Refuses a value without another that it needs."""

    def __init__(self, field: str, value: object, other: str) -> None:
        super().__init__(field, value, f"omitted without {other}")
        self.args = (f"{field} needs {other}",)


class InvalidSettings(LisaError, ValueError):
    """Refuses settings; the text has one line for each."""


class Closed(LisaError):
    """The client was closed before the call went out; nothing was done."""

    def __init__(self, text: str = "the client is closed; make a new one") -> None:
        super().__init__(text)


class NotConfirmed(LisaError):
    """Messages were written, but not confirmed as requested; they may be lost if the server fails now."""

    def __init__(self, topic: str, ids: Sequence[str], wanted: str, got: str) -> None:
        self.topic = topic
        self.ids = tuple(ids)
        what = repr(ids[0]) if len(ids) == 1 else f"{len(ids)} messages"
        super().__init__(f"{what} sent to {topic!r}, but not confirmed: wanted {wanted}, got {got}")


class UnknownTopic(LisaError):
    """The topic does not exist."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"there is no topic {topic!r}")


class UnknownGroup(LisaError):
    """The topic has no such group."""

    def __init__(self, topic: str, group: str) -> None:
        self.topic = topic
        self.group = group
        super().__init__(f"topic {topic!r} has no group {group!r}")


class UnknownSchedule(LisaError):
    """The topic has no such schedule."""

    def __init__(self, topic: str, schedule: str) -> None:
        self.topic = topic
        self.schedule = schedule
        super().__init__(f"there is no schedule {schedule!r} of topic {topic!r}")


class UnknownWorker(LisaError):
    """No worker of this name has lately lived."""

    def __init__(self, worker: str) -> None:
        self.worker = worker
        super().__init__(f"there is no worker {worker!r}")


class ServerError(LisaError):
    """Redis did not carry out the request."""


class Unreachable(ServerError):
    """There is no connection to Redis; nothing was done."""


class NoFreeConnection(Unreachable):
    """All allowed connections stayed in use for too long; nothing was done. Redis itself may be fine."""


class OutcomeUnknown(ServerError):
    """The connection broke after the request and before the reply; the request may have been carried out."""


class Refused(ServerError):
    """Redis refuses for now and says why; nothing was done, and a later attempt may succeed."""


class AccessDenied(ServerError):
    """Redis does not accept the user, password or certificate, or forbids the command to the user."""


class Untrusted(ServerError):
    """The server's certificate is not trusted, or names another host; nothing was done."""


class NoGroup(ServerError):
    """The consumer group, or the stream that it reads, does not exist."""


class Resharded(ServerError):
    """The topic was resharded after its policy was read; nothing was done."""


class UnreadableReply(ServerError):
    """The reply does not fit the call: damaged data, or no Redis. The call may have been carried out."""


class TooManyGroups(ServerError):
    """The topic has as many groups as its policy allows; the group was not created."""


class QueueFull(ServerError):
    """The topic, or the shard that the messages belong to, is full: `max_messages` of its policy. Nothing was stored.

    A call stores all of its messages or none. `limit` is the most that the shard may hold, `count` what it holds; both
    are None where the text of the server does not say.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text.removeprefix("QUEUEFULL "))
        numbers = re.search(r"holds (\d+) messages of at most (\d+)", text)
        self.count: int | None = int(numbers[1]) if numbers else None
        self.limit: int | None = int(numbers[2]) if numbers else None


NOTHING_DONE = (Unreachable, Refused, AccessDenied, Untrusted, Closed)
"""Errors of a try that did nothing, whatever it asked for. They say nothing of an earlier try."""

UNDONE = (*NOTHING_DONE, QueueFull)
"""Errors that say of a whole call that nothing was done."""

OF_A_NODE = (Unreachable, OutcomeUnknown, Refused)
"""Errors of all calls to a node of a Cluster, until it answers again or another takes over."""

OF_THE_SERVER = (*OF_A_NODE, AccessDenied, Untrusted)
"""Errors that every call to the server meets now; other errors concern one call, and so its topic."""


def in_part(error: LisaError) -> LisaError:
    """Returns the error for several calls. One failed with this error; others were done."""
    if not isinstance(error, UNDONE):
        return error
    told = OutcomeUnknown(f"a part was done, or may have been; another was not: {error}")
    told.__cause__ = error
    return told


class OmittedBytes(int):
    """The length of a value that is too long to show."""

    def __repr__(self) -> str:
        return f"{int(self)} bytes"


class Verbatim(str):
    """A value that words describe better than it shows itself, as in "got nothing"."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


_SHOWN = 80
_LONG = 1_000


def _shown(value: object) -> str:
    if isinstance(value, (str, bytes)) and len(value) > _LONG:
        # The repr of many MiB takes long.
        return f"{value[: _SHOWN - 20]!r}… ({len(value)} characters)"
    try:
        text = value.isoformat() if isinstance(value, datetime) else repr(value)
    except Exception:  # noqa: BLE001 - a repr may raise anything; Python's own refuse long numbers and deep lists
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 20]}… ({len(text)} characters)"
