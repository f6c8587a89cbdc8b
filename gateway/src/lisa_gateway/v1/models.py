"""The fields of requests to /v1: validated strictly, and described by the OpenAPI document."""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, FailFast, Field, model_validator

from lisa_common.cli.parse import read_duration, read_moment, read_ms
from lisa_common.errors import InvalidInput
from lisa_common.validation import MAX_DELAY_S, MAX_ID_BYTES, MAX_RETRIES
from lisa_gateway.polls import MAX_BATCH
from lisa_gateway.settings import MAX_WAIT_S
from lisa_manager import REASONS

__all__ = [
    "Bodies",
    "DurationText",
    "Extends",
    "GarbageQuery",
    "GarbageWork",
    "Input",
    "MessageBatch",
    "MessageInput",
    "MessageQuery",
    "MessagesQuery",
    "Nacks",
    "Options",
    "Read",
    "Reason",
    "Receipts",
    "Rejects",
    "Reschedule",
    "Shards",
    "SummaryQuery",
    "UnknownMember",
    "WorkersQuery",
    "duration_of",
    "moment_of",
]

_MOST_HEADERS = 1_000
"""Most headers of a message; they have 16 KiB."""


def _moment(value: str) -> str:
    # In a query, ms since 1970 are text as well.
    if value.isdecimal():
        read_ms("at", int(value))
    else:
        read_moment("at", value)
    return value


def _ms(value: int) -> int:
    read_ms("at", value)
    return value


_LONGEST = f"at most {MAX_WAIT_S:g} s"


def _wait(value: str) -> str:
    if read_duration("wait", value) > MAX_WAIT_S:
        raise InvalidInput("wait", value, _LONGEST)
    return value


def _reason(value: str) -> str:
    if value not in REASONS:
        raise ValueError(f"one of {', '.join(REASONS)}")
    return value


_DURATION = r"^([0-9]+(\.[0-9]+)?|([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+)$"

DurationText = Annotated[str, Field(pattern=_DURATION, max_length=40, examples=["250ms", "15m", "1h30m"])]
_Seconds = Annotated[float, Field(ge=0, le=MAX_DELAY_S, allow_inf_nan=False)]
_Duration = _Seconds | DurationText
_Wait = (
    Annotated[float, Field(ge=0, le=MAX_WAIT_S, allow_inf_nan=False)] | Annotated[DurationText, AfterValidator(_wait)]
)
_Moment = (
    Annotated[
        int,
        Field(json_schema_extra={"minimum": 10**11, "maximum": 10**14 - 1}, description="ms since 1970"),
        AfterValidator(_ms),
    ]
    | Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"}), AfterValidator(_moment)]
)


def _few(most: int, what: str) -> BeforeValidator:
    """Refuses too many members before each of them is looked at."""

    def check(value: Any) -> Any:
        if isinstance(value, list | dict) and len(value) > most:
            raise ValueError(f"at most {most} {what}")
        return value

    return BeforeValidator(check)


_Id = Annotated[str, Field(min_length=1, max_length=MAX_ID_BYTES)]
Bodies = Literal["text", "json", "base64"]
Reason = Annotated[str, Field(json_schema_extra={"enum": list(REASONS)}), AfterValidator(_reason)]


class UnknownMember(ValueError):
    """An object has a member that its model does not know."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        self.known = tuple(known)


class Input(BaseModel):
    """A part of a request: converts no values, and refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _members_are_known(cls, value: Any) -> Any:
        # Pydantic describes each unknown member, and there may be a hundred thousand.
        if isinstance(value, dict) and cls.model_config["extra"] == "forbid":
            for name in value:
                if name not in cls.model_fields:
                    raise UnknownMember(name, cls.model_fields)
        return value


class Options(Input):
    """How a message is to be delivered."""

    delay: Annotated[
        _Duration | None, Field(description="due after this time: seconds, or text such as 15m; excludes `at`")
    ] = None
    at: Annotated[_Moment | None, Field(description="due at this time: ISO 8601 with its zone, or ms since 1970")] = (
        None
    )
    ttl: Annotated[
        _Duration | None, Field(description="delivered at most this long after the due time; by default the topic's")
    ] = None
    max_retries: Annotated[int | None, Field(ge=0, le=MAX_RETRIES, description="deliveries are at most one more")] = (
        None
    )
    priority: Annotated[
        int | None, Field(ge=0, le=255, description="highest first among messages due in the same ms")
    ] = None
    key: Annotated[
        str | None,
        Field(min_length=1, max_length=200, description="the topic may limit how many messages of a key are in flight"),
    ] = None
    if_exists: Annotated[
        Literal["replace"] | None,
        Field(description="replace: in place of a message of this id that waits or is to be retried; needs an id"),
    ] = None


class MessageInput(Options):
    """A message to send. It has `body` or `body_base64`."""

    id: Annotated[_Id | None, Field(description="sent at most once while alive and in the topic's dedup window")] = None
    body: Annotated[Any, Field(description="text, stored as UTF-8, or any other JSON value, stored as JSON")] = None
    body_base64: Annotated[
        str | None, Field(description="bytes, in base64", json_schema_extra={"contentEncoding": "base64"})
    ] = None
    headers: Annotated[
        dict[str, str] | None, _few(_MOST_HEADERS, "headers"), Field(description="text to text, at most 16 KiB")
    ] = None


class MessageBatch(Input):
    """Messages to send together."""

    messages: Annotated[
        list[MessageInput], FailFast(), _few(MAX_BATCH, "messages"), Field(min_length=1, max_length=MAX_BATCH)
    ]


class MessageQuery(Options):
    """The options of a message whose body is the body of the request."""

    model_config = ConfigDict(strict=False)

    header: Annotated[list[str], Field(description="a header of the message, as KEY=VALUE; may be repeated")] = []


class Reschedule(Input):
    """A new due time: a delay, 0 for now, or a moment."""

    delay: Annotated[_Duration | None, Field(description="due after this time")] = None
    at: Annotated[_Moment | None, Field(description="due at this time")] = None


class MessagesQuery(Input):
    """Which messages to list."""

    model_config = ConfigDict(strict=False)

    state: Literal["waiting", "ready", "delivered", "retry", "garbage"]
    group: Annotated[str | None, Field(description="copies of this group")] = None
    limit: Annotated[int, Field(ge=1, le=1_000)] = 100
    cursor: Annotated[str | None, Field(max_length=2_000, description="that of the page before")] = None
    bodies: Annotated[Bodies, Field(description="how to write bodies")] = "text"


class Read(Input):
    """What to read, and for how long to wait and to hold it."""

    limit: Annotated[int, Field(ge=1, le=MAX_BATCH, description="most deliveries")] = 1
    wait: Annotated[
        _Wait | None, Field(description=f"how long to wait for the first, {_LONGEST}; by default not at all")
    ] = None
    lease: Annotated[
        _Duration | None, Field(description="how long they belong to the reader; by default the visibility timeout")
    ] = None
    bodies: Annotated[Bodies, Field(description="how to write bodies")] = "text"


class Receipts(Input):
    """Deliveries, by the receipts that came with them."""

    receipts: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=2_000)]],
        _few(MAX_BATCH, "receipts"),
        Field(min_length=1, max_length=MAX_BATCH),
    ]


class Nacks(Receipts):
    """Deliveries that failed."""

    delay: Annotated[
        _Duration | None, Field(description="deliver again after this time; by default the topic's backoff decides")
    ] = None
    error: Annotated[str, Field(max_length=2_000, description="why, for operators")] = ""


class Rejects(Receipts):
    """Deliveries that can never be handled."""

    error: Annotated[str, Field(max_length=2_000, description="why, for operators")] = ""


class Extends(Receipts):
    """Deliveries that take longer."""

    lease: Annotated[_Duration | None, Field(description="from now on; by default the topic's visibility timeout")] = (
        None
    )


class _GarbageFilter(Input):
    group: Annotated[str | None, Field(description="only copies of this group; empty: of none")] = None
    reason: Annotated[Reason | None, Field(description="only those that died for this reason")] = None
    older_than: Annotated[_Duration | None, Field(description="only those that died so long ago")] = None
    error: Annotated[str | None, Field(max_length=500, description="only those whose error holds this text")] = None
    since: Annotated[_Duration | None, Field(description="only those that died within this time; over older_than")] = (
        None
    )
    release: Annotated[
        str | None, Field(max_length=64, description="only those that handlers of this release failed; empty: unknown")
    ] = None


class SummaryQuery(_GarbageFilter):
    """Which dead letters to count."""

    model_config = ConfigDict(strict=False)

    limit: Annotated[int, Field(ge=1, le=1_000_000, description="how many to look at, the latest")] = 100_000


class WorkersQuery(Input):
    """Which workers."""

    group: Annotated[str | None, Field(description="only workers of this group")] = None


class GarbageQuery(_GarbageFilter):
    """Which dead letters."""

    model_config = ConfigDict(strict=False)

    limit: Annotated[int, Field(ge=1, le=1_000)] = 50
    order: Annotated[Literal["newest", "oldest"], Field(description="which come first")] = "newest"


class GarbageWork(_GarbageFilter):
    """Dead letters by the ids of their messages, or all; the filters select among them."""

    ids: Annotated[Annotated[list[_Id], Field(min_length=1, max_length=MAX_BATCH)] | None, _few(MAX_BATCH, "ids")] = (
        None
    )
    all: Annotated[bool, Field(description="all dead letters; excludes `ids`")] = False


class Shards(Input):
    """Over how many shards to spread new messages."""

    shards: Annotated[int, Field(ge=1, le=256)]


def duration_of(field: str, value: float | str | None) -> float | None:
    """A duration in seconds, from seconds or text. Raises InvalidInput."""
    return read_duration(field, value) if isinstance(value, str) else value


def moment_of(field: str, value: int | str | None) -> datetime | None:
    """A time, from ms since 1970 or ISO 8601. Raises InvalidInput."""
    if isinstance(value, str) and not value.isdecimal():
        return read_moment(field, value)
    return None if value is None else read_ms(field, int(value))
