"""Options of reads and writes: text from Spark, checked and completed with the environment's settings."""

import json
import re
from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from math import inf
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pyspark.sql.types import StructType

from lisa_common.client.connection import Connection
from lisa_common.errors import CannotCombine, InvalidInput, InvalidSettings, Needs
from lisa_common.model.topic_pattern import TopicPattern
from lisa_common.protocol.paging import PAGED
from lisa_common.protocol.producing import State
from lisa_common.settings import Name
from lisa_common.validation import check_id, check_name, expected_by, moment_ms
from lisa_producer.message import CONFIRM_S, Confirm
from lisa_producer.settings import ProducerSettings
from lisa_producer.spark.columns import Columns, check_columns
from lisa_producer.spark.rows import UNKNOWN_REASON, MessageRow

__all__ = ["SnapshotOptions", "StreamOptions", "WriteOptions"]


_OF_SPARK = ("checkpointlocation", "queryname")
"""Options of Spark itself, which it passes on to sources."""


def _camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda match: match[1].upper(), name)


class _Options(BaseModel):
    """Options of every read and write. Spark passes names in lower case; errors show them in camel case."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=lambda name: _camel(name).lower())

    settings_of: ClassVar[dict[str, str]] = {
        "url": "redis_url",
        "prefix": "prefix",
        "timeout": "timeout_s",
        "patience": "patience_s",
    }
    """Options that are settings of a producer; the others come from `LISA_…` and `lisa.toml`."""

    fixed: ClassVar[dict[str, Any]] = {}
    """Settings with values of their own in Spark jobs."""

    settings: ProducerSettings

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Self:
        """Reads the options that Spark passes; raises InvalidInput or InvalidSettings for the first invalid one."""
        named = {_camel(name).lower(): field for name, field in cls.settings_of.items()}
        settings = cls._settings({named[name]: text for name, text in given.items() if name in named})
        rest = {name: text for name, text in given.items() if name not in named and name not in _OF_SPARK}
        try:
            return cls.model_validate({**rest, "settings": settings})
        except ValidationError as error:
            raise cls._error(error) from None

    @classmethod
    def names(cls) -> set[str]:
        """The names of all options, in lower case."""
        return {_camel(name).lower() for name in (*cls.settings_of, *cls.model_fields) if name != "settings"}

    @classmethod
    def _settings(cls, given: Mapping[str, str]) -> ProducerSettings:
        try:
            settings = ProducerSettings.load(**cls.fixed, **given)
        except InvalidSettings as error:
            text = str(error)
            for option, field in cls.settings_of.items():
                text = text.replace(f"setting {field} ", f"option {_camel(option)} ")
            raise InvalidSettings(text) from None
        # Tasks connect later; this refuses settings with which they could not.
        Connection.of(settings, name="lisa-spark").close()
        return settings

    @classmethod
    def _error(cls, error: ValidationError) -> InvalidInput:
        problem = error.errors()[0]
        if isinstance(cause := problem.get("ctx", {}).get("error"), InvalidInput):
            return cause
        alias = str(problem["loc"][0]) if problem["loc"] else "options"
        known = [_camel(name) for name in (*cls.settings_of, *cls.model_fields) if name != "settings"]
        name = next((option for option in known if option.lower() == alias), alias)
        if problem["type"] == "extra_forbidden":
            return InvalidInput("option", name, f"one of {', '.join(known)}")
        if problem["type"] == "missing":
            return InvalidInput(f"option {name}", None, "a value")
        return InvalidInput(f"option {name}", problem["input"], expected_by(problem))


class WriteOptions(_Options):
    """Options of writes."""

    settings_of: ClassVar[dict[str, str]] = _Options.settings_of | {
        "batch_messages": "batch_messages",
        "batch_bytes": "batch_bytes",
    }
    # Rows without ids are sent at least once in any case, as Spark repeats all rows of a failed task.
    fixed: ClassVar[dict[str, Any]] = {"at_least_once": True}

    topic: Name | None = None
    operation: Literal["send", "upsert", "cancel", "reschedule", "replay", "purge", "nack", "reject"] = "send"
    """What is done with each row."""
    group: Name | None = None
    """The group of dead letters and deliveries whose rows do not name one."""
    outcomes: Annotated[str, Field(min_length=1)] | None = None
    """A directory for the outcome of each row, as JSON."""
    bad_rows: str | None = None
    """Where invalid rows go: a topic, or with a slash in it a directory. None: they fail the task."""
    extra_columns: Literal["refuse", "ignore"] = "refuse"
    """What to do with columns that are not used."""
    body_column: str = "body"
    topic_column: str = "topic"
    id_column: str = "id"
    due_at_column: str = "due_at"
    delay_column: str = "delay"
    ttl_column: str = "ttl"
    max_retries_column: str = "max_retries"
    priority_column: str = "priority"
    headers_column: str = "headers"
    max_rows_per_second: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Of all tasks together."""
    remember_days: Annotated[float, Field(ge=0, le=3_660)] = 0
    """How long to remember what a micro-batch has written; 0: not at all."""
    write: Name | None = None
    """Tells a write from the others of its micro-batch, for `foreachBatch`."""
    confirm_replicas: Annotated[int, Field(ge=0, le=100)] = 0
    confirm_fsync: bool = False
    confirm_timeout: Annotated[float, Field(gt=0, le=60)] = CONFIRM_S
    """In seconds."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Self:
        """Reads the options, and refuses those that would do nothing. Raises InvalidInput or InvalidSettings."""
        options = super().of(given)
        for name in ("batchMessages", "batchBytes"):
            if name.lower() in given and options.operation not in ("send", "upsert"):
                raise CannotCombine(f"option {name}", given[name.lower()], f"operation={options.operation}")
        if not options.confirm and "confirmtimeout" in given:
            raise Needs("option confirmTimeout", given["confirmtimeout"], "confirmReplicas or confirmFsync")
        return options

    @field_validator("bad_rows")
    @classmethod
    def _is_a_place(cls, value: str | None) -> str | None:
        return value if value is None or "/" in value else check_name("badRows", value)

    @model_validator(mode="after")
    def _have_a_home(self) -> Self:
        for option, value in (("maxRowsPerSecond", self.max_rows_per_second), ("rememberDays", self.remember_days)):
            if value and self.topic is None:
                raise Needs(f"option {option}", value, "the option topic")
        if self.confirm and self.operation != "send":
            name = "confirmReplicas" if self.confirm_replicas else "confirmFsync"
            raise CannotCombine(f"option {name}", self.confirm, f"operation={self.operation}")
        return self

    @property
    def confirm(self) -> Confirm | None:
        """The confirmation that a send waits for."""
        if not self.confirm_replicas and not self.confirm_fsync:
            return None
        return Confirm(replicas=self.confirm_replicas, fsync=self.confirm_fsync, timeout=self.confirm_timeout)

    def columns(self, schema: StructType) -> Columns:
        """The columns of a frame, checked; raises InvalidInput."""
        given = {name: str(getattr(self, name)) for name in type(self).model_fields if name.endswith("_column")}
        renamed: dict[str, str] = {}
        for name, column in given.items():
            if column.lower() == name.removesuffix("_column"):
                continue
            if column.lower() in renamed:
                raise InvalidInput(f"option {_camel(name)}", column, "a column that no other option names")
            renamed[column.lower()] = name.removesuffix("_column")
        return check_columns(
            schema, self.topic, self.operation, renamed=renamed, ignore_others=self.extra_columns == "ignore"
        )


def _words(text: object) -> object:
    return [word.strip() for word in text.split(",")] if isinstance(text, str) else text


def _ids(text: object) -> object:
    """Ids, separated by commas, or as a JSON array of strings: ids may contain commas and blanks."""
    try:
        found = json.loads(text) if isinstance(text, str) and text.lstrip().startswith("[") else None
    except ValueError:
        found = None
    return found if isinstance(found, list) else _words(text)


def _moment(text: object, info: ValidationInfo) -> object:
    return moment_ms(f"option {_camel(str(info.field_name))}", _read_moment(text)) if isinstance(text, str) else text


def _read_moment(text: str) -> object:
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        # Refused with its text.
        return text


_LISTED = (*PAGED, State.READY, State.DELIVERED)
_Moment = Annotated[int, BeforeValidator(_moment)]


class SnapshotOptions(_Options):
    """Options of tables. They select at the server what is read; a message that passes all of them is a row."""

    topic: Name
    state: Annotated[tuple[State, ...], BeforeValidator(_words)] = PAGED
    due_from: _Moment | None = None
    """Earliest due time, in ms since the epoch."""
    due_until: _Moment | None = None
    """Due times before this, in ms since the epoch."""
    died_from: _Moment | None = None
    """Earliest time of death of dead letters, in ms since the epoch."""
    died_until: _Moment | None = None
    """Times of death before this, in ms since the epoch."""
    ids: Annotated[tuple[str, ...], BeforeValidator(_ids)] | None = None
    group: Name | None = None
    """Only copies of this group, which retried messages and dead letters have."""
    reason: str | None = None
    """Only messages whose last delivery ended for this reason."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Most rows, all of one task."""
    partition_rows: Annotated[int, Field(ge=1, le=100_000_000)] = 100_000
    """Messages in one partition, approximately."""

    @field_validator("state")
    @classmethod
    def _can_be_listed(cls, states: tuple[State, ...]) -> tuple[State, ...]:
        for state in states:
            if state not in _LISTED:
                raise InvalidInput("option state", state.value, f"some of {', '.join(_LISTED)}, separated by commas")
        return tuple(state for state in _LISTED if state in states)

    @field_validator("ids")
    @classmethod
    def _are_ids(cls, ids: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if ids is None else tuple(dict.fromkeys(map(check_id, ids)))

    @cached_property
    def states(self) -> tuple[State, ...]:
        """The states whose messages can pass the other options."""
        states = self.state
        if self.died_from is not None or self.died_until is not None:
            states = tuple(state for state in states if state is State.GARBAGE)
        if self.group is not None or self.reason is not None:
            states = tuple(state for state in states if state is not State.WAITING)
        if self.reason is not None:
            states = tuple(state for state in states if state in PAGED)
        return states

    @property
    def reason_at_server(self) -> str:
        """The reason to select by at the server; it cannot tell dead letters of unknown reason from others."""
        return "" if self.reason in (None, UNKNOWN_REASON) else str(self.reason)

    def bounds_of(self, state: State) -> tuple[float, float]:
        """The times of a state's messages that can pass, by which the server sorts it; the last is excluded."""
        low, high = (self.died_from, self.died_until) if state is State.GARBAGE else (self.due_from, self.due_until)
        return -inf if low is None else low, inf if high is None else high

    def selects(self, row: MessageRow) -> bool:
        """Whether a row passes all options."""
        return (
            row.state in self.states
            and self.group in (None, row.group)
            and self.reason in (None, row.reason)
            and _is_within(row.due_at, self.due_from, self.due_until)
            and _is_within(row.died_at, self.died_from, self.died_until)
        )


def _is_within(ms: int | None, low: int | None, high: int | None) -> bool:
    if low is None and high is None:
        return True
    return ms is not None and (low is None or ms >= low) and (high is None or ms < high)


def _start(text: object) -> object:
    if not isinstance(text, str) or text in ("earliest", "latest"):
        return text
    moment = _read_moment(text)
    if isinstance(moment, datetime):
        # What became ready later in the same millisecond must not stay behind: entries know no more of the time.
        moment = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    try:
        return moment_ms("", moment)
    except InvalidInput:
        raise InvalidInput(
            "option startingOffsets", text, "earliest, latest, or a time with a zone, as 2027-03-01T08:00:00+01:00"
        ) from None


class StreamOptions(_Options):
    """Options of streams."""

    topic: Annotated[tuple[str, ...], BeforeValidator(_words)]
    """Names of topics, and patterns of them."""
    group: Name
    starting_offsets: Annotated[Literal["earliest", "latest"] | int | None, BeforeValidator(_start)] = None
    """Where a new group begins; a time in ms since the epoch."""
    max_rows: Annotated[int, Field(ge=1, le=10_000_000)] = 100_000
    """Most messages in one micro-batch."""
    max_bytes: Annotated[int, Field(ge=1)] | None = None
    """Most bytes of stored messages in one micro-batch; a larger message comes alone."""
    partition_rows: Annotated[int, Field(ge=1, le=10_000_000)] = 10_000
    """Messages in one partition of a micro-batch."""

    @field_validator("topic")
    @classmethod
    def _are_topics(cls, texts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(TopicPattern(text).text for text in dict.fromkeys(texts))

    @property
    def patterns(self) -> tuple[TopicPattern, ...]:
        """The topics, as patterns; a name fits itself."""
        return tuple(map(TopicPattern, self.topic))
