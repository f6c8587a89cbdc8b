"""Policies of patterns: brings a change of them to the topics that exist.

They are stored first. From then on no topic is declared, and no policy set, by the former ones: the scripts that do so
compare. Then each topic is resolved again. Managers do that, too: they complete changes that were interrupted, and
resolve topics that programs of an earlier release have declared.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from lisa_common.errors import InvalidInput, LisaError
from lisa_common.model.keys import PATTERNS, topics_key
from lisa_common.model.pattern_policies import PatternPolicies
from lisa_common.model.policy import LIMIT_FIELDS, Policy
from lisa_common.protocol.call import Flow, command
from lisa_common.protocol.consuming import server_time
from lisa_common.protocol.registry import store_policy, with_revision
from lisa_common.protocol.side_by_side import run_each
from lisa_manager.queries import chunks
from lisa_manager.topic_limits import apply_limits

__all__ = ["Resolved", "apply_patterns", "is_stale"]

_AT_ONCE = 100
"""Most topics in a round trip: a manager resolves so many without a pause."""


class Resolved(NamedTuple):
    """What came of topics."""

    changed: frozenset[str]
    failed: dict[str, LisaError]


def is_stale(policies: PatternPolicies, topic: str, policy: Policy) -> bool:
    """Whether a topic has another policy than patterns give it. Raises InvalidInput for one that cannot have theirs."""
    if policy.own is None and not policies.fit(topic):
        return False
    resolved = policies.resolve(topic, policy.own_fields)
    return resolved.model_dump(exclude_unset=True) != policy.model_dump(exclude_unset=True)


def apply_patterns(prefix: str, topics: Iterable[str]) -> Flow[Resolved]:
    """Resolves topics again, and stores those that differ. May be interrupted, and repeated, at any time.

    A topic that cannot have what patterns give, whose policy is damaged, or whose shards cannot be reached, is among
    the failed ones. Raises InvalidInput for damaged policies of patterns.
    """
    changed, failed = set[str](), dict[str, LisaError]()
    for batch in chunks(list(topics), _AT_ONCE):
        left: Collection[str] = batch
        while left:
            left = yield from _apply(prefix, left, changed, failed)
    return Resolved(frozenset(changed), failed)


def _apply(prefix: str, topics: Collection[str], changed: set[str], failed: dict[str, LisaError]) -> Flow[list[str]]:
    """One attempt. Returns the topics that others have changed meanwhile."""
    *stored, patterns = yield command("HMGET", topics_key(prefix), *topics, PATTERNS)
    now_ms = yield server_time()
    policies = PatternPolicies.load(patterns)
    writes, limited = [], set[str]()
    for topic, value in zip(topics, stored, strict=True):
        if value is None:
            # It was dropped.
            continue
        try:
            policy = Policy.load(value)
            if not is_stale(policies, topic, policy):
                continue
            resolved = with_revision(policy, policies.resolve(topic, policy.own_fields), now_ms)
            writes.append((topic, store_policy(prefix, topic, value, resolved, patterns=patterns)))
        except InvalidInput as error:
            failed[topic] = error
            continue
        if any(getattr(policy, name) != getattr(resolved, name) for name in LIMIT_FIELDS):
            limited.add(topic)
    if not writes:
        return []
    outcomes: list[bool] = yield [call for _, call in writes]
    done = [topic for (topic, _), is_done in zip(writes, outcomes, strict=True) if is_done]
    changed.update(done)
    relimited = [topic for topic in done if topic in limited]
    errors = yield from run_each([apply_limits(prefix, topic) for topic in relimited])
    failed.update((topic, error) for topic, error in zip(relimited, errors, strict=True) if error is not None)
    return [topic for (topic, _), is_done in zip(writes, outcomes, strict=True) if not is_done]
