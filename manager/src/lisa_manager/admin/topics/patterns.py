"""Policies of patterns, for operators: how to list, set, drop and explain them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lisa_common.errors import InvalidInput, LisaError
from lisa_common.model.keys import PATTERNS, topics_key
from lisa_common.model.pattern_policies import Origin, PatternPolicies, PatternPolicy, parse_patterns
from lisa_common.model.topic_pattern import TopicPattern
from lisa_common.protocol.call import Flow, command
from lisa_common.protocol.registry import Topic, parse_topic, read_registry, store_patterns
from lisa_common.validation import check_bool, check_mapping, check_name
from lisa_manager.admin.topics.policies import DEFAULT
from lisa_manager.pattern_policies import apply_patterns

__all__ = ["Explained", "PatternChange", "drop_pattern", "explain", "list_patterns", "set_pattern"]


@dataclass(frozen=True, slots=True)
class PatternChange:
    """A changed policy of a pattern, and the topics that it has changed."""

    policy: PatternPolicy | None
    """The new policy; None after a drop."""
    topics: frozenset[str]
    """Topics whose policies have changed."""
    failed: Mapping[str, LisaError]
    """Topics that have not changed, and why.

    InvalidInput says that the topic is damaged, or cannot have what patterns give; `set_policy` mends it. A manager
    completes the others.
    """


@dataclass(frozen=True, slots=True)
class Explained:
    """The policy of a topic, field by field."""

    topic: str
    declared: bool
    """Whether the topic exists; else this is what a declaration would give it."""
    fields: Mapping[str, Origin]


def list_patterns(prefix: str) -> Flow[list[PatternPolicy]]:
    """All policies of patterns, in the order in which they apply, then all caps. Raises InvalidInput if damaged."""
    stored: bytes | None = yield command("HGET", topics_key(prefix), PATTERNS)
    return list(PatternPolicies.load(stored).policies)


def set_pattern(
    prefix: str, pattern: str, changes: Mapping[str, Any], *, priority: int | None, cap: bool
) -> Flow[PatternChange]:
    """Changes fields of a pattern's policy, or of its cap, and keeps the others; makes it if it does not exist.

    Raises InvalidInput before anything is written, also for a topic that cannot have the new value.
    """
    check_mapping("policy", changes)
    while True:
        stored: bytes | None = yield command("HGET", topics_key(prefix), PATTERNS)
        # Replaces damaged policies.
        policies = parse_patterns(stored)
        old = policies.find(pattern, cap=cap)
        fields = (dict(old.fields) if old else {}) | dict(changes)
        fields = {name: value for name, value in fields.items() if value is not DEFAULT}
        rank = priority if priority is not None else old.priority if old else 0
        new = PatternPolicy(pattern, fields, rank, cap)
        changed = yield from _change(prefix, stored, policies, old, new)
        if changed is not None:
            return changed


def drop_pattern(prefix: str, pattern: str, *, cap: bool) -> Flow[PatternChange | None]:
    """Removes the policy of a pattern, or its cap. Returns None where there is none.

    Raises InvalidInput before anything is written, for a topic that cannot have what others then give it.
    """
    TopicPattern(pattern)
    check_bool("cap", cap)
    while True:
        stored: bytes | None = yield command("HGET", topics_key(prefix), PATTERNS)
        policies = PatternPolicies.load(stored)
        old = policies.find(pattern, cap=cap)
        if old is None:
            return None
        changed = yield from _change(prefix, stored, policies, old, None)
        if changed is not None:
            return changed


def explain(prefix: str, topic: str) -> Flow[Explained]:
    """Where each field of a topic's policy comes from; of a topic that does not exist, what a send would declare."""
    check_name("topic", topic)
    stored, patterns = yield command("HMGET", topics_key(prefix), topic, PATTERNS)
    own = {} if stored is None else parse_topic(topic, stored).policy.own_fields
    return Explained(topic, stored is not None, PatternPolicies.load(patterns).explain(topic, own))


def _change(
    prefix: str, stored: bytes | None, before: PatternPolicies, old: PatternPolicy | None, new: PatternPolicy | None
) -> Flow[PatternChange | None]:
    """Stores the policies and resolves all topics. Returns None where somebody else has changed them meanwhile."""
    after = before.replaced(old, new)
    topics = yield from read_registry(prefix)
    concerned = {name for name in topics for each in (old, new) if each is not None and each.matcher.fits(name)}
    for name in concerned:
        refusal = _refusal(after, topics[name])
        # A topic that could not be resolved before must not prevent what others need.
        if refusal is not None and _refusal(before, topics[name]) is None:
            raise InvalidInput(refusal.field, refusal.value, f"{refusal.expected}, for topic {name}")
    if not (yield store_patterns(prefix, stored, after.dump())):
        return None
    # Those that were declared since are resolved by the new policies.
    resolved = yield from apply_patterns(prefix, topics)
    failed = {name: error for name, error in resolved.failed.items() if name in concerned | resolved.changed}
    return PatternChange(new, resolved.changed, failed)


def _refusal(policies: PatternPolicies, topic: Topic) -> InvalidInput | None:
    """Returns why a topic cannot have what these policies give it."""
    try:
        policies.resolve(topic.name, topic.policy.own_fields)
    except InvalidInput as error:
        return error
    return None
