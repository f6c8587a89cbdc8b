"""Policies of patterns: values for all topics that fit, and caps. They are resolved into the policy of each topic.

The topic's own value comes first, then that of the pattern with the highest priority, then the default; then the lowest
cap holds. The result is stored with the topic, together with its own fields, so that it can be resolved again.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from lisa_common.errors import CannotCombine, InvalidInput, OmittedBytes
from lisa_common.logs import event
from lisa_common.model.policy import DEFAULT_POLICY, MAX_STORED, Policy, PolicyFields
from lisa_common.model.rate import read_rate
from lisa_common.model.topic_pattern import TopicPattern
from lisa_common.validation import check_bool, check_int, check_mapping

__all__ = ["CAP_FIELDS", "PATTERN_FIELDS", "Origin", "PatternPolicies", "PatternPolicy", "parse_patterns"]

logger = logging.getLogger(__name__)

PATTERN_FIELDS = tuple(PolicyFields.model_fields)
"""Fields of a policy that patterns may set."""

CAP_FIELDS = (
    *("max_retries", "ttl_ms", "dedup_window_ms", "garbage_retention_ms", "garbage_max_messages", "expire_idle_ms"),
    *("max_body_bytes", "max_groups", "priority", "max_in_flight", "max_in_flight_per_key", "rate", "burst"),
    "max_messages",
)
"""Fields whose lower values allow less; none allows the most. `burst` is last: its default depends on `rate`."""

_MAX_PRIORITY = 1_000_000


@dataclass(frozen=True, slots=True)
class PatternPolicy:
    """Fields for the topics that fit a pattern; as a cap, the highest values that they may have."""

    pattern: str
    fields: Mapping[str, Any]
    """Fields of a policy."""
    priority: int = 0
    """Among patterns that set the same field, the highest wins, then the most exact pattern. Caps have none."""
    cap: bool = False
    matcher: TopicPattern = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            matcher = TopicPattern(self.pattern)
        except (AttributeError, TypeError, InvalidInput):
            raise InvalidInput("pattern", self.pattern, "a name of a topic, with * for any text") from None
        object.__setattr__(self, "matcher", matcher)
        check_int("priority", self.priority, -_MAX_PRIORITY, _MAX_PRIORITY)
        check_bool("cap", self.cap)
        if self.cap and self.priority:
            raise CannotCombine("priority", self.priority, "cap")
        if not check_mapping("policy", self.fields):
            raise InvalidInput("policy", self.fields, "at least one field")
        known = CAP_FIELDS if self.cap else PATTERN_FIELDS
        for name, value in self.fields.items():
            if name not in known:
                what = "field of a cap" if self.cap else "field of a pattern's policy"
                raise InvalidInput(what, name, f"one of {', '.join(known)}")
            if self.cap and value is None:
                raise InvalidInput(f"policy field {name}", value, "a number in a cap")
        Policy.of(dict(self.fields))

    def document(self) -> dict[str, Any]:
        """The stored form."""
        rest = {"cap": True} if self.cap else {"priority": self.priority}
        return {"pattern": self.pattern, **rest, "fields": dict(self.fields)}


@dataclass(frozen=True, slots=True)
class Origin:
    """The value of a field of a topic, and where it comes from."""

    value: Any
    given_by: PatternPolicy | None = None
    """The pattern that gave the value; None for the topic's own one, and for the default."""
    is_own: bool = False
    """True if the topic itself has the value, or had it before a cap."""
    capped_by: PatternPolicy | None = None
    """The cap that holds in its place."""
    before_cap: Any = None


@dataclass(frozen=True, slots=True)
class PatternPolicies:
    """All policies of patterns."""

    policies: tuple[PatternPolicy, ...] = ()

    @classmethod
    def load(cls, stored: bytes | None) -> "PatternPolicies":
        """The policies from their stored form. Raises InvalidInput for a damaged one."""
        if len(stored or b"") > MAX_STORED:
            raise InvalidInput("policies", OmittedBytes(len(stored or b"")), f"at most {MAX_STORED} bytes")
        try:
            documents = json.loads(stored or b"[]")
            if isinstance(documents, list):
                return cls(tuple(PatternPolicy(**each) for each in documents))
        except InvalidInput:
            raise
        except (AttributeError, TypeError, ValueError, RecursionError):
            pass
        raise InvalidInput("policies", stored, "a JSON array of policies")

    def dump(self) -> str:
        """The stored form; "" for none. Raises InvalidInput where it is too long."""
        if not self.policies:
            return ""
        text = json.dumps([each.document() for each in self.policies], separators=(",", ":"))
        if len(text) > MAX_STORED:
            raise InvalidInput("policies", OmittedBytes(len(text)), f"at most {MAX_STORED} bytes together")
        return text

    def find(self, pattern: str, *, cap: bool) -> PatternPolicy | None:
        """The policy of a pattern, or its cap."""
        return next((each for each in self.policies if (each.pattern, each.cap) == (pattern, cap)), None)

    def replaced(self, old: PatternPolicy | None, new: PatternPolicy | None) -> "PatternPolicies":
        """The policies without an old one and with a new one, in the order in which they apply."""
        kept = [each for each in self.policies if each is not old] + [new] * (new is not None)
        return PatternPolicies(tuple(sorted(filter(None, kept), key=_rank)))

    def fit(self, topic: str) -> list[PatternPolicy]:
        """Those that fit a topic."""
        return [each for each in self.policies if each.matcher.fits(topic)]

    def resolve(self, topic: str, own: Mapping[str, Any]) -> Policy:
        """The policy of a topic with these fields of its own. Raises InvalidInput where they do not go together."""
        found = {n: o for n, o in self.explain(topic, own).items() if o.is_own or o.given_by or o.capped_by}
        fields = {name: value for name, value in own.items() if name not in PATTERN_FIELDS}
        fields |= {name: origin.value for name, origin in found.items()}
        if fields != own:
            fields["own"] = {name: value for name, value in own.items() if name in PATTERN_FIELDS}
        return Policy.of(fields)

    def explain(self, topic: str, own: Mapping[str, Any]) -> dict[str, Origin]:
        """Returns for each field of a topic its value, and where that comes from."""
        # No topic may be its own dead letter topic: a pattern that fits both leaves that one without.
        fitting = self.fit(topic)
        origins = dict[str, Origin]()
        for name in PATTERN_FIELDS:
            giver = next(
                (p for p in fitting if not p.cap and name in p.fields and (name, p.fields[name]) != (_LETTERS, topic)),
                None,
            )
            if name in own:
                origins[name] = Origin(own[name], is_own=True)
            elif giver is not None:
                origins[name] = Origin(giver.fields[name], giver)
            else:
                origins[name] = Origin(DEFAULT_POLICY_FIELDS[name])
        for name in CAP_FIELDS:
            caps = [each for each in fitting if each.cap and name in each.fields]
            cap = min(caps, key=lambda each: _size(name, each.fields[name]), default=None)
            before = origins[name]
            if cap is not None and _size(name, cap.fields[name]) < _size_of(name, origins):
                origins[name] = Origin(cap.fields[name], before.given_by, before.is_own, cap, before.value)
        return origins


_LETTERS = "dead_letter_topic"

DEFAULT_POLICY_FIELDS = DEFAULT_POLICY.model_dump()


def _rank(policy: PatternPolicy) -> tuple[Any, ...]:
    """The order in which policies apply. The most exact pattern has the most characters that are no star.

    Of patterns that have equally many, it has the fewest stars, then comes first by the alphabet.
    """
    stars = policy.pattern.count("*")
    return policy.cap, -policy.priority, stars - len(policy.pattern), stars, policy.pattern


def _size(name: str, value: Any) -> float:
    """How much a value allows."""
    if value is None:
        return float("inf")
    if name == "rate":
        count, period_ms = read_rate(value)
        return count / period_ms
    return float(value)


def _size_of(name: str, origins: Mapping[str, Origin]) -> float:
    if name != "burst":
        return _size(name, origins[name].value)
    return Policy.of({each: origins[each].value for each in ("rate", "burst")}).effective_burst


@lru_cache(maxsize=16)
def parse_patterns(stored: bytes | None) -> PatternPolicies:
    """The policies from their stored form. Logs a damaged one, and uses none."""
    try:
        return PatternPolicies.load(stored)
    except InvalidInput as error:
        logger.error(
            "damaged policies of patterns, using none: %s", error, extra=event("patterns_damaged", error=str(error))
        )
        return PatternPolicies()
