"""Fields that several requests to /v1 have: validated strictly, and described by the OpenAPI document."""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from lisa_common.cli.parse import read_duration, read_moment, read_ms
from lisa_common.validation import MAX_DELAY_S, MAX_ID_BYTES, MAX_RETRIES

__all__ = [
    "Bodies",
    "Duration",
    "DurationText",
    "Id",
    "Input",
    "MessageInput",
    "MessageQuery",
    "Moment",
    "Options",
    "UnknownMember",
    "duration_of",
    "few",
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


_NUMBER = r"[0-9]+(\.[0-9]+)?"
_PARTS = "".join(f"({_NUMBER}{unit})?" for unit in ("d", "h", "m", "s", "ms"))

DurationText = Annotated[
    str, Field(pattern=f"^({_NUMBER}|{_PARTS})$", min_length=1, max_length=40, examples=["250ms", "15m", "1h30m"])
]
_Seconds = Annotated[float, Field(ge=0, le=MAX_DELAY_S, allow_inf_nan=False)]
Duration = _Seconds | DurationText
Moment = (
    Annotated[
        int,
        Field(json_schema_extra={"minimum": 10**11, "maximum": 10**14 - 1}, description="ms since 1970"),
        AfterValidator(_ms),
    ]
    | Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"}), AfterValidator(_moment)]
)


def few(most: int, what: str) -> BeforeValidator:
    """Refuses too many members before each of them is looked at."""

    def check(value: Any) -> Any:
        if isinstance(value, list | dict) and len(value) > most:
            raise ValueError(f"at most {most} {what}")
        return value

    return BeforeValidator(check)


Id = Annotated[str, Field(min_length=1, max_length=MAX_ID_BYTES)]
Bodies = Literal["text", "json", "base64"]


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
        Duration | None, Field(description="due after this time: seconds, or text such as 15m; excludes `at`")
    ] = None
    at: Annotated[Moment | None, Field(description="due at this time: ISO 8601 with its zone, or ms since 1970")] = None
    ttl: Annotated[
        Duration | None, Field(description="delivered at most this long after the due time; by default the topic's")
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

    id: Annotated[Id | None, Field(description="sent at most once while alive and in the topic's dedup window")] = None
    body: Annotated[Any, Field(description="text, stored as UTF-8, or any other JSON value, stored as JSON")] = None
    body_base64: Annotated[
        str | None, Field(description="bytes, in base64", json_schema_extra={"contentEncoding": "base64"})
    ] = None
    headers: Annotated[
        dict[str, str] | None, few(_MOST_HEADERS, "headers"), Field(description="text to text, at most 16 KiB")
    ] = None


class MessageQuery(Options):
    """The options of a message whose body is the body of the request."""

    model_config = ConfigDict(strict=False)

    header: Annotated[list[str], Field(description="a header of the message, as KEY=VALUE; may be repeated")] = []


def duration_of(field: str, value: float | str | None) -> float | None:
    """A duration in seconds, from seconds or text. Raises InvalidInput."""
    return read_duration(field, value) if isinstance(value, str) else value


def moment_of(field: str, value: int | str | None) -> datetime | None:
    """A time, from ms since 1970 or ISO 8601. Raises InvalidInput."""
    if isinstance(value, str) and not value.isdecimal():
        return read_moment(field, value)
    return None if value is None else read_ms(field, int(value))
