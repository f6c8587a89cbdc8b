"""Schedules: what is sent when, again and again; and the marks that make each tick one message."""

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from lisa_common.errors import CannotCombine, InvalidInput, Needs, OmittedBytes, Verbatim
from lisa_common.model.localtime import iso_of, zone_of
from lisa_common.model.policy import MAX_PRIORITY, Policy
from lisa_common.model.record import pack_content
from lisa_common.model.rhythm import Rhythm, check_cron, jitter_of, rhythm_of
from lisa_common.validation import MAX_DELAY_S, MAX_RETRIES, check_name, expected_by, headers_json

__all__ = [
    "CAUGHT_UP_HEADER",
    "HEADERS",
    "MAX_BODY_BYTES",
    "MAX_STORED_BYTES",
    "SCHEDULE_HEADER",
    "TICK_HEADER",
    "Definition",
    "Mark",
    "Schedule",
    "tick_id",
]

SCHEDULE_HEADER: Final = "lisa-schedule"
TICK_HEADER: Final = "lisa-tick"
CAUGHT_UP_HEADER: Final = "lisa-caught-up"
HEADERS: Final = (SCHEDULE_HEADER, TICK_HEADER, CAUGHT_UP_HEADER)
"""Headers of each message of a schedule: its name; the tick, as ISO 8601 in UTC; and "true" if it was sent late."""

MAX_BODY_BYTES: Final = 65_536
"""Managers hold all schedules in memory, so their bodies are smaller than those of messages may be."""

MAX_STORED_BYTES: Final = 262_144
_SECOND_MS = 1_000
_DAY_MS = 86_400_000
_MAX_MS = MAX_DELAY_S * 1_000
_END_OF_TIME_MS = 2**45
_MAX_DIGITS = 15
_LOOKED_AT = 50
"""Ticks whose distances jitter is compared with."""

Moment = Annotated[int, Field(ge=1, le=_END_OF_TIME_MS)]


class Schedule(BaseModel):
    """What is sent to a topic, and when. Times are ms; moments are ms since 1970."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    topic: str
    every_ms: Annotated[int | None, Field(ge=_SECOND_MS, le=_MAX_MS)] = None
    """The period of ticks at its whole multiples since 1970; excludes `cron`."""
    cron: str | None = None
    tz: str = "UTC"
    """The time zone of `cron`."""
    body: bytes = b""
    headers: Mapping[str, str] = Field(default_factory=dict)
    ttl_ms: Annotated[int | None, Field(ge=1, le=_MAX_MS)] = None
    max_retries: Annotated[int | None, Field(ge=0, le=MAX_RETRIES)] = None
    priority: Annotated[int | None, Field(ge=0, le=MAX_PRIORITY)] = None
    from_ms: Moment | None = None
    """The first moment that may be a tick."""
    until_ms: Moment | None = None
    """The last moment that may be a tick."""
    catchup: Literal["latest", "all", "none"] | None = None
    """The ticks to send late, after no manager ran; None means all with `catchup_within_ms`, else the latest."""
    catchup_window_ms: Annotated[int, Field(ge=_SECOND_MS, le=31 * _DAY_MS)] = _DAY_MS
    """How late a tick may be sent where all of them are; `catchup_within_ms` replaces it."""
    catchup_within_ms: Annotated[int | None, Field(ge=_SECOND_MS, le=31 * _DAY_MS)] = None
    """How late a tick may be sent."""
    overlap: Literal["allow", "skip"] = "allow"
    """Whether a tick is left out while the message of an earlier one is not done yet."""
    jitter_ms: Annotated[int, Field(ge=0, le=_DAY_MS)] = 0
    """Each tick is delayed by less than this, by an amount that its name and time decide."""
    paused: bool = False

    @field_validator("name", "topic")
    @classmethod
    def _has_name(cls, value: str, info: Any) -> str:
        return check_name("schedule" if info.field_name == "name" else "topic", value)

    @field_validator("tz")
    @classmethod
    def _has_zone(cls, value: str) -> str:
        zone_of("tz", value)
        return value

    @field_validator("body")
    @classmethod
    def _has_small_body(cls, value: bytes) -> bytes:
        if len(value) > MAX_BODY_BYTES:
            raise InvalidInput("body", OmittedBytes(len(value)), f"at most {MAX_BODY_BYTES} bytes in a schedule")
        return value

    @field_validator("headers")
    @classmethod
    def _has_other_headers(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        headers_json({**value, **dict.fromkeys(HEADERS, "0" * 128)})
        if own := next((name for name in value if name.lower() in HEADERS), None):
            raise InvalidInput("headers", own, f"other names than {', '.join(HEADERS)}, which schedules set")
        return dict(value)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.every_ms is None) == (self.cron is None):
            both = Verbatim("neither" if self.cron is None else "both")
            raise InvalidInput("schedule", both, "one with either every or cron")
        if self.every_ms is not None and self.tz != "UTC":
            raise InvalidInput("tz", self.tz, "omitted with every, whose ticks are whole multiples since 1970 in UTC")
        if self.catchup_within_ms is not None:
            seconds = self.catchup_within_ms / 1000
            if self.catchup == "none":
                raise CannotCombine("catchup_within", seconds, "catchup=none")
            if self.catchup_window_ms != _DAY_MS:
                raise CannotCombine("catchup_within", seconds, "catchup_window")
        if self.from_ms is not None and self.until_ms is not None and self.until_ms < self.from_ms:
            raise InvalidInput("until", Verbatim(iso_of(self.until_ms)), f"{iso_of(self.from_ms)}, its from, or later")
        return self

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "Schedule":
        """The schedule of these fields, with defaults for the rest. Raises InvalidInput for the first invalid field."""
        try:
            return cls(**fields)
        except ValidationError as error:
            first = error.errors()[0]
            cause = first.get("ctx", {}).get("error")
            if isinstance(cause, InvalidInput):
                raise cause from None
            name = ".".join(str(part) for part in first["loc"][:1])
            if name not in cls.model_fields:
                raise InvalidInput("field of a schedule", name, f"one of {', '.join(cls.model_fields)}") from None
            raise InvalidInput(name, first.get("input"), expected_by(first)) from None

    def checked(self, now_ms: int) -> "Schedule":
        """The schedule, its cron expression in one form. Raises InvalidInput for one that can never tick."""
        schedule = self
        if self.cron is not None:
            schedule = self.model_copy(update={"cron": check_cron(self.cron, self.tz, now_ms=now_ms)})
        if self.from_ms is not None and self.from_ms > now_ms + _MAX_MS:
            raise InvalidInput("from", Verbatim(iso_of(self.from_ms)), "within the next 10 years")
        # Not where stored ones are read: an earlier release took them.
        if self.catchup_window_ms != _DAY_MS and self.catches_up != "all":
            raise Needs("catchup_window", self.catchup_window_ms / 1000, "catchup=all")
        if self.from_ms is not None:
            schedule._check_until(self.from_ms - 1)  # noqa: SLF001 - a copy of this one
        if not self.jitter_ms:
            return schedule
        ticks = list(islice(schedule.ticks_after(now_ms), _LOOKED_AT))
        gap_ms = min((later - tick for tick, later in pairwise(ticks)), default=None)
        gap_ms = self.every_ms if self.every_ms is not None else gap_ms
        if gap_ms is not None and self.jitter_ms > gap_ms:
            raise InvalidInput("jitter", self.jitter_ms / 1000, f"at most {gap_ms / 1000:g} s, the distance of ticks")
        return schedule

    def check_future(self, now_ms: int, before: "Schedule | None") -> None:
        """Raises InvalidInput where `until` leaves no tick, unless the schedule `before` had this rhythm and has ended.

        Workers and imports skip this check, because code and files keep schedules that have ended.
        """
        if before is None or not self.has_rhythm_of(before):
            self._check_until(now_ms if self.from_ms is None else max(now_ms, self.from_ms - 1))

    def _check_until(self, after_ms: int) -> None:
        if self.until_ms is None:
            return
        tick = next(self.rhythm.after(after_ms), None)
        if tick is not None and tick > self.until_ms:
            expected = f"{iso_of(tick)}, its next tick, or later"
            raise InvalidInput("until", Verbatim(iso_of(self.until_ms)), expected)

    @property
    def rhythm(self) -> Rhythm:
        """When it ticks, without its limits."""
        return rhythm_of(self.every_ms, self.cron, self.tz)

    def ticks_after(self, ms: int) -> Iterator[int]:
        """All ticks after a moment, in order, in ms since 1970."""
        start = ms if self.from_ms is None else max(ms, self.from_ms - 1)
        for tick in self.rhythm.after(start):
            if self.until_ms is not None and tick > self.until_ms:
                return
            yield tick

    @property
    def catches_up(self) -> Literal["latest", "all", "none"]:
        """The ticks to send late."""
        return self.catchup or ("latest" if self.catchup_within_ms is None else "all")

    @property
    def latest_ms(self) -> int | None:
        """How late a tick may be sent, in ms; None for however late."""
        if self.catchup_within_ms is None and self.catches_up == "all":
            return self.catchup_window_ms
        return self.catchup_within_ms

    def due_ms(self, tick_ms: int) -> int:
        """When the message of a tick is due, in ms since 1970."""
        return tick_ms + jitter_of(self.name, tick_ms, self.jitter_ms)

    def content(self, policy: Policy, tick_ms: int, *, caught_up: bool) -> bytes:
        """The record of a tick's message behind its stamp, in a topic with this policy."""
        ttls = [ttl for ttl in (self.ttl_ms, policy.ttl_ms) if ttl is not None]
        own = (self.name, iso_of(tick_ms), "true" if caught_up else "false")
        return pack_content(
            self.body,
            ttl_ms=min(ttls, default=None),
            max_retries=self.max_retries,
            priority=policy.priority if self.priority is None else self.priority,
            headers=headers_json({**self.headers, **dict(zip(HEADERS, own, strict=True))}),
        )

    def has_rhythm_of(self, other: "Schedule") -> bool:
        """True if both tick at the same times, unless one is paused."""
        names = ("every_ms", "cron", "tz", "from_ms", "until_ms")
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def dump(self) -> dict[str, Any]:
        """The fields that are not defaults, as JSON values; the body as text where it is text."""
        fields = self.model_dump(exclude_defaults=True, exclude={"name", "topic", "body"})
        try:
            text = self.body.decode()
        except UnicodeDecodeError:
            return fields | {"body_base64": base64.b64encode(self.body).decode()}
        return fields | ({"body": text} if text else {})

    def stored_form(self) -> bytes:
        """The same as JSON."""
        return json.dumps(self.dump(), ensure_ascii=False, separators=(",", ":")).encode()

    @classmethod
    def load(cls, topic: str, name: str, fields: Mapping[str, Any]) -> "Schedule":
        """The inverse of `dump`. Raises InvalidInput."""
        loaded = dict(fields)
        if (coded := loaded.pop("body_base64", None)) is not None:
            try:
                loaded["body"] = base64.b64decode(coded, validate=True)
            except (TypeError, ValueError, binascii.Error):
                raise InvalidInput("body_base64", coded, "base64") from None
        elif isinstance(text := loaded.get("body"), str):
            try:
                loaded["body"] = text.encode()
            except UnicodeEncodeError:
                raise InvalidInput("body", text, "text that UTF-8 can encode") from None
        return cls.of(loaded | {"topic": topic, "name": name})


@dataclass(frozen=True, slots=True)
class Definition:
    """A schedule as stored in its topic."""

    schedule: Schedule
    version: int
    """Grows with each change: the ms of the server's clock, or more."""
    since_ms: int
    """No tick up to this moment is of this schedule. It moves when the rhythm changes, and with a resume."""
    stored: bytes = field(default=b"", compare=False)
    """The text that was read."""

    @classmethod
    def load(cls, topic: str, name: str, stored: bytes) -> "Definition":
        """Reads the stored form. Raises InvalidInput for what no program of Lisa has written."""
        if len(stored) > MAX_STORED_BYTES:
            raise InvalidInput("stored schedule", OmittedBytes(len(stored)), f"at most {MAX_STORED_BYTES} bytes")
        check_name("schedule", name)
        version, _, rest = stored.partition(b" ")
        since, _, text = rest.partition(b" ")
        try:
            schedule = Schedule.load(topic, name, json.loads(text))
            return cls(schedule, _whole(version), _whole(since), stored)
        except InvalidInput:
            raise
        except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
            raise InvalidInput("stored schedule", stored, "a version, a time, and a schedule as JSON") from None


def _whole(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > _MAX_DIGITS:
        raise ValueError
    return int(digits)


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a schedule has come, as the key `ticks` says."""

    version: int
    last_ms: int
    """The latest tick that was sent or left out; the next is after it."""
    base_ms: int
    """The tick before the latest: the mark goes back to it if the message ahead is withdrawn.

    It is the latest tick itself if that was left out: then `id` is the message of an earlier tick.
    """
    due_ms: int
    """When the latest tick is or was due; 0 for none."""
    sent: int
    """Messages sent since the first version."""
    skipped: int
    """Ticks left out since then."""
    id: str
    """The last message; "-" for none."""

    @classmethod
    def load(cls, text: bytes | None) -> "Mark | None":
        """Reads a mark; None where there is none, or for what no script of Lisa has written."""
        parts = (text or b"").split(b" ", 6)
        if len(parts) != 7 or not all(part.isdigit() and len(part) <= _MAX_DIGITS for part in parts[:6]):  # noqa: PLR2004
            return None
        version, last, base, due, sent, skipped = map(int, parts[:6])
        return cls(version, last, base, due, sent, skipped, parts[6].decode("utf-8", "replace"))

    def is_ahead(self, now_ms: int) -> bool:
        """Whether the latest tick was sent as a message that is not due yet. That message has the id `id`."""
        return self.due_ms > now_ms and self.base_ms != self.last_ms and self.id != "-"


def tick_id(name: str, tick_ms: int) -> str:
    """The id of a tick's message. It ends like a generated one, so that nobody else can send it."""
    return f"{name}@{iso_of(tick_ms)}~"
