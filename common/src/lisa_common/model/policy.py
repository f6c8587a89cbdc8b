"""The policy of a topic: stored with the topic, so that all programs apply the same one."""

import json
import math
from contextlib import suppress
from difflib import get_close_matches
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_serializer, model_validator

from lisa_common.errors import InvalidInput, OmittedBytes
from lisa_common.model.rate import check_rate, read_rate
from lisa_common.validation import MAX_DELAY_S, MAX_RETRIES, check_name, expected_by

__all__ = [
    "DEFAULT_POLICY",
    "INTERNAL_FIELDS",
    "LAYOUT_FIELDS",
    "MAX_PRIORITY",
    "MAX_SERVED",
    "MAX_SHARDS",
    "MAX_STORED",
    "Policy",
    "PolicyFields",
]

MAX_PRIORITY = 255
MAX_SHARDS = 256
MAX_SERVED = 16 * MAX_SHARDS
"""Most shards of one topic that may hold messages: its current shards, and former ones that still drain."""

_MAX_FORMER = 1_000
MAX_STORED = 65_536
"""Most bytes of a stored policy; the largest valid one has some ten thousand."""

_MAX_MS = MAX_DELAY_S * 1000
_MAX_REVISION = 2**53 - 1
_DAY_MS = 86_400_000

Milliseconds = Annotated[int, Field(ge=1, le=_MAX_MS)]
Shards = Annotated[int, Field(ge=1, le=MAX_SHARDS)]
TopicName = Annotated[str, AfterValidator(lambda name: check_name("topic", name))]

LAYOUT_FIELDS = ("shards", "former", "drained")
"""Fields that say where the messages are, not how they are treated."""

INTERNAL_FIELDS = ("former", "drained", "limits_revision", "own")
"""Fields that Lisa alone sets."""

LIMIT_FIELDS = ("paused", "max_in_flight", "max_in_flight_per_key", "rate", "burst", "max_messages")
"""Fields that scripts read from the door of a shard, so that they hold from the moment when they are set."""

MAX_LIMIT = 100_000_000

_UNKNOWN_TO_SCRIPTS = {
    *LAYOUT_FIELDS,
    # Whether deliveries are counted decides about the wakes of acks.
    *(name for name in LIMIT_FIELDS if name != "max_in_flight"),
    *("limits_revision", "own", "max_groups", "dead_letter_delay_ms", "expire_idle_ms", "expire_idle"),
}


class PolicyFields(BaseModel):
    """The fields that patterns may set. A message may override its ttl, max retries and priority."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    visibility_ms: int = Field(30_000, ge=100, le=_DAY_MS, description="lease on a delivery, in ms")
    max_retries: int = Field(10, ge=0, le=MAX_RETRIES, description="retries of a message after its first delivery")
    backoff: Literal["exponential", "fixed"] = Field("exponential", description="how delays before retries grow")
    backoff_base_ms: Milliseconds = Field(1_000, description="delay before the first retry, in ms")
    backoff_cap_ms: Milliseconds = Field(3_600_000, description="longest delay before a retry, in ms")
    backoff_jitter: float = Field(0.1, ge=0, le=1, description="share by which a delay varies at random")
    ttl_ms: Milliseconds | None = Field(None, description="time to live after the due time, in ms, or none")
    on_expire: Literal["garbage", "drop"] = Field(
        "garbage", description="whether an expired message becomes garbage or is deleted"
    )
    dedup_window_ms: int = Field(
        300_000,
        ge=0,
        le=_MAX_MS,
        description="how long an id that the caller chose stays known after its message has ended, in ms",
    )
    garbage_retention_ms: Milliseconds = Field(7 * _DAY_MS, description="how long garbage is kept, in ms")
    garbage_max_messages: int = Field(100_000, ge=0, le=100_000_000, description="most messages kept as garbage")
    dead_letter_topic: TopicName | None = Field(None, description="topic to which garbage is moved; none: it stays")
    dead_letter_delay_ms: int = Field(
        0, ge=0, le=_MAX_MS, description="delay of messages that move to the dead letter topic, in ms"
    )
    expire_idle_ms: Milliseconds | None = Field(
        None, description="time without use after which the topic is dropped, in ms; none: never"
    )
    expire_idle: Literal["drained", "always"] = Field(
        "drained", description="whether only an unused topic without messages is dropped, or any unused topic"
    )
    max_body_bytes: int = Field(1_048_576, ge=1, le=512 * 1024 * 1024 - 1024, description="largest body, in bytes")
    max_groups: int = Field(100, ge=1, le=10_000, description="most groups; each adds to the work on a message")
    priority: int = Field(
        0, ge=0, le=MAX_PRIORITY, description="order among messages due in the same ms, highest first"
    )
    paused: bool = Field(default=False, description="whether nothing becomes ready")
    max_in_flight: int | None = Field(
        None, ge=1, le=MAX_LIMIT, description="most copies of a group that are ready or delivered; none: any number"
    )
    max_in_flight_per_key: int | None = Field(
        None, ge=1, le=MAX_LIMIT, description="most messages of a key in flight, 1: in due order; none: any number"
    )
    rate: Annotated[str | None, AfterValidator(check_rate)] = Field(
        None, description="most messages that become ready in a period, as in 100/s or 10/30s; none: any number"
    )
    burst: int | None = Field(
        None, ge=0, le=MAX_LIMIT, description="messages beyond the rate after a pause; none: the rate of 100 ms"
    )
    max_messages: int | None = Field(
        None, ge=1, le=MAX_LIMIT, description="most messages, in whatever state; none: any number"
    )


class Policy(PolicyFields):
    """How a topic treats its messages, and where they are."""

    limits_revision: int = Field(0, ge=0, le=_MAX_REVISION, description="tells the limits from earlier and later ones")
    shards: Shards = Field(1, description="number of Cluster slots over which the topic is spread")
    former: tuple[Shards, ...] = Field(
        (), max_length=_MAX_FORMER, description="number of shards before each reshard, oldest first", strict=False
    )
    drained: tuple[Annotated[int, Field(ge=0, lt=_MAX_FORMER)], ...] = Field(
        (), max_length=_MAX_FORMER, description="positions in `former` that hold no messages any more", strict=False
    )

    own: PolicyFields | None = Field(
        None, description="the topic's own fields, where patterns gave others or caps lowered some; else none"
    )

    @field_serializer("own")
    def _own_as_set(self, own: PolicyFields | None) -> dict[str, Any] | None:
        return None if own is None else own.model_dump(exclude_unset=True)

    @property
    def _served(self) -> int:
        """How many shards may hold messages."""
        drained = frozenset(self.drained)
        return self.shards + sum(count for at, count in enumerate(self.former) if at not in drained)

    @model_validator(mode="after")
    def _serves_a_few_shards(self) -> Self:
        if self._served > MAX_SERVED:
            raise ValueError(f"at most {MAX_SERVED} shards, current and undrained former ones together")
        return self

    @property
    def own_fields(self) -> dict[str, Any]:
        """Returns the fields that were set for the topic itself, with their values before caps."""
        fields = self.model_dump(exclude_unset=True, exclude={"own"})
        if self.own is None:
            return fields
        rest = {name: value for name, value in fields.items() if name not in PolicyFields.model_fields}
        return self.own.model_dump(exclude_unset=True) | rest

    @cached_property
    def as_json(self) -> str:
        """The fields by which scripts treat messages."""
        return self.model_dump_json(exclude_none=True, exclude=_UNKNOWN_TO_SCRIPTS)

    @property
    def is_limited(self) -> bool:
        """Whether any limit is set, so that the topic has a door."""
        return bool(self.paused or self.max_in_flight or self.max_in_flight_per_key or self.rate or self.max_messages)

    @property
    def effective_burst(self) -> int:
        """Messages that may become ready beyond the rate: the rate of 100 ms, at least 1, where `burst` is not set.

        A manager that looks once within this time misses no part of the rate.
        """
        if self.burst is not None or self.rate is None:
            return self.burst or 0
        count, period_ms = read_rate(self.rate)
        return max(1, math.ceil(count * 100 / period_ms))

    def _check_limits(self) -> None:
        """Each shard gets a share of a limit, at least one message: raises InvalidInput where there is less."""
        served = self._served
        limits = {"max_in_flight": (self.max_in_flight, served), "max_messages": (self.max_messages, self.shards)}
        for name, (value, shards) in limits.items():
            if value is not None and value < shards:
                raise InvalidInput(f"policy field {name}", value, f"at least {shards}, one for each shard")
        if self.max_in_flight_per_key is not None and served > 1:
            # Shards are selected by ids, so the messages of a key would be in several.
            expected = "none, where the topic has several shards, or former ones that hold messages"
            raise InvalidInput("policy field max_in_flight_per_key", self.max_in_flight_per_key, expected)
        if self.rate is not None and read_rate(self.rate)[0] < served:
            expected = f"at least {served} messages in a period, one for each shard"
            raise InvalidInput("policy field rate", self.rate, expected)

    @classmethod
    def load(cls, stored: bytes | str) -> "Policy":
        """The policy from its stored form, which holds only the fields that were set.

        Raises InvalidInput, which names the damaged field.
        """
        return cls.of(_fields(stored))

    @classmethod
    def salvage(cls, stored: bytes | str) -> "Policy":
        """Returns the policy of the valid fields in a damaged stored form, with defaults for the others."""
        sound: dict[str, Any] = {}
        with suppress(InvalidInput):
            fields = _fields(stored)
            # The layout first, as other shards hold none of the messages; `drained` says how much `former` may hold.
            for name in (*reversed(LAYOUT_FIELDS), *cls.model_fields):
                if name in fields:
                    with suppress(InvalidInput):
                        cls.of(sound | {name: fields[name]})
                        sound[name] = fields[name]
        return cls.of(sound)

    @classmethod
    def of(cls, fields: dict[str, Any]) -> "Policy":
        """The policy of these fields, defaults for the rest. Raises InvalidInput for the first invalid field."""
        try:
            policy = cls(**fields)
        except ValidationError as error:
            first = error.errors()[0]
            # Positions in a list say little. An error about several fields has no location; it is about the layouts.
            name = ".".join(part for part in first["loc"] if isinstance(part, str)) or "former"
            if first["type"] == "extra_forbidden":
                near = get_close_matches(name, cls.model_fields, 1)
                expected = f"one of {', '.join(cls.model_fields)}{f' (perhaps {near[0]})' if near else ''}"
                raise InvalidInput("policy field", name, expected) from None
            raise InvalidInput(f"policy field {name}", first.get("input"), expected_by(first)) from None
        policy._check_limits()
        return policy

    def dump(self) -> str:
        """The stored form: the fields that were set."""
        return json.dumps(self.model_dump(exclude_unset=True), separators=(",", ":"))


def _fields(stored: bytes | str) -> dict[str, Any]:
    """The fields in a stored form. Raises InvalidInput."""
    if len(stored) > MAX_STORED:
        raise InvalidInput("policy", OmittedBytes(len(stored)), f"at most {MAX_STORED} bytes")
    try:
        fields = json.loads(stored)
    except (ValueError, RecursionError):
        raise InvalidInput("policy", stored, "JSON") from None
    if not isinstance(fields, dict):
        raise InvalidInput("policy", stored, "a JSON object")
    return fields


DEFAULT_POLICY = Policy()
