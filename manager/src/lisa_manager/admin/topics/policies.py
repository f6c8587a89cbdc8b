"""Topics: their policies, and how to create and drop one."""

from collections.abc import Mapping
from typing import Any

from lisa_common.errors import InvalidInput, Needs
from lisa_common.model.keys import PATTERNS, idle_key, topics_key
from lisa_common.model.pattern_policies import parse_patterns
from lisa_common.model.policy import DEFAULT_POLICY, Policy
from lisa_common.protocol.call import Flow, command
from lisa_common.protocol.registry import (
    Topic,
    declare_topic,
    parse_topic,
    read_past,
    read_registry,
    resolve_new,
    store_policy,
)
from lisa_common.validation import check_name
from lisa_manager.topic_drop import Dropped, drop_topic
from lisa_manager.topic_limits import apply_limits, revised

__all__ = ["DEFAULT", "Dropped", "create_topic", "drop_topic", "list_topics", "set_policy"]

DEFAULT = object()
"""Stands for a value: sets a field back to what patterns give, or to its default."""


def list_topics(prefix: str) -> Flow[list[Topic]]:
    """All topics by name."""
    registry = yield from read_registry(prefix)
    return [registry[name] for name in sorted(registry)]


def set_policy(prefix: str, topic: str, changes: Mapping[str, Any]) -> Flow[Policy]:
    """Changes fields of a topic's policy, and keeps the others; declares a topic that does not exist.

    Raises InvalidInput before anything is written. Replaces a damaged policy: keeps its valid fields.
    """
    _check_settable(changes)
    check_name("topic", topic)
    while True:
        stored, patterns = yield command("HMGET", topics_key(prefix), topic, PATTERNS)
        known = Topic(topic) if stored is None else parse_topic(topic, stored)
        try:
            own = _changed(known.policy, changes)
            past = (yield from read_past(prefix, topic, own)) if stored is None else {}
            policy = resolve_new(patterns, topic, own, past)
        except InvalidInput:
            if stored is None or changes.keys() != {"paused"} or changes["paused"] is DEFAULT:
                raise
            # An emergency brake must work even where the topic cannot have what patterns give.
            policy = _braked(known.policy, changes["paused"])
        _check_burst(changes, policy)
        if stored is not None and policy.shards != known.policy.shards:
            expected = f"{known.policy.shards}, which only `topic reshard` changes"
            raise InvalidInput("policy field shards", policy.shards, expected)
        policy = yield from revised(known.policy, policy)
        # Managers write here as well.
        if (yield store_policy(prefix, topic, stored, policy, patterns=patterns)):
            yield from _renew(prefix, topic, policy)
            if policy.limits_revision:
                yield from apply_limits(prefix, topic)
            return policy


def create_topic(prefix: str, topic: str, fields: Mapping[str, Any]) -> Flow[bool]:
    """Declares a topic with this policy, unless it exists. Returns whether it did; raises as `set_policy` does."""
    check_name("topic", topic)
    _check_settable(fields)
    own = _changed(DEFAULT_POLICY, fields)
    if "burst" in own:
        _check_burst(own, parse_patterns((yield command("HGET", topics_key(prefix), PATTERNS))).resolve(topic, own))
    created = yield from declare_topic(prefix, topic, own, repeatable=False)
    yield from _renew(prefix, topic, created or Policy.of(own))
    if created is not None and created.is_limited:
        # A producer may have set those of a dropped topic late.
        yield from apply_limits(prefix, topic)
    return created is not None


def _check_settable(fields: Mapping[str, Any]) -> None:
    """Raises InvalidInput for fields on which the order of changes, and the fields of patterns depend."""
    for name in ("limits_revision", "own"):
        if name in fields:
            raise InvalidInput(f"policy field {name}", fields[name], "left to Lisa, which sets it")


def _check_burst(changes: Mapping[str, Any], policy: Policy) -> None:
    """Raises Needs for a burst that would do nothing. Patterns may give one to topics that have a rate."""
    if changes.get("burst") not in (None, DEFAULT) and policy.rate is None:
        raise Needs("policy field burst", changes["burst"], "rate")


def _renew(prefix: str, topic: str, policy: Policy) -> Flow[None]:
    """Restarts the time after which an unused topic expires."""
    if policy.expire_idle_ms is not None:
        yield command("HDEL", idle_key(prefix), topic)


def _changed(policy: Policy, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that a topic has of its own after changes. Raises InvalidInput, also for what a cap would hide."""
    fields = policy.own_fields | dict(changes)
    own = {name: value for name, value in fields.items() if value is not DEFAULT}
    return Policy.of(own).model_dump(exclude_unset=True)


def _braked(policy: Policy, paused: Any) -> Policy:
    """The policy with a value of the topic's own for `paused`; the rest stays as it is."""
    fields = policy.model_dump(exclude_unset=True) | {"paused": paused}
    if policy.own is not None:
        fields["own"]["paused"] = paused
    return Policy.of(fields)
