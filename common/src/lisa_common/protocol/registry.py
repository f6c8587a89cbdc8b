"""The registry of topics and their policies, as flows: producers declare topics, managers and operators list them."""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from lisa_common.errors import OF_A_NODE, AccessDenied, InvalidInput, LisaError
from lisa_common.logs import event
from lisa_common.model.keys import PATTERNS, ShardKeys, dropped_key, topics_key
from lisa_common.model.limits import limits_of
from lisa_common.model.pattern_policies import parse_patterns
from lisa_common.model.policy import DEFAULT_POLICY, LIMIT_FIELDS, MAX_STORED, Policy
from lisa_common.model.sharding import Layout
from lisa_common.protocol.call import Call, Flow, IndependentCalls, command, error_in, script
from lisa_common.protocol.consuming import server_time
from lisa_common.protocol.replies import byte_values, pairs
from lisa_common.validation import check_name

__all__ = [
    "KEPT",
    "REFRESH_S",
    "Topic",
    "Topics",
    "declare_topic",
    "mark_drop",
    "parse_registry",
    "parse_topic",
    "read_dropped",
    "read_mark",
    "read_past",
    "read_registry",
    "registered",
    "resolve_new",
    "store_patterns",
    "store_policy",
    "with_revision",
]

logger = logging.getLogger(__name__)

_RETRY_S = 1.0
"""Time until the next read after the registry could not be read."""

_MANY = 10_000
"""With so many topics, a program forgets those that it has looked for in vain, as callers may make names up, and those
that it has not used for `_UNUSED_S` seconds, as topics come and go.
"""

_UNUSED_S = 3_600.0
"""So long a policy is known at least: deliveries are settled by it, even while the registry is away."""

_NEW_MS = 60_000
"""So long after a change of limits, who made it has brought them to the shards, or a manager has."""

REFRESH_S = 10.0
"""How long a program uses what it has read; within this time a producer declares a dropped topic anew."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic in the registry."""

    name: str
    policy: Policy = DEFAULT_POLICY


def parse_topic(name: str, stored: bytes) -> Topic:
    """A topic from its registry value. Logs a damaged policy and uses its valid fields, defaults for the others."""
    # Cut, so that the cache keeps no huge value; the rest is still too long for a policy.
    return _parse_topic(name, stored[: MAX_STORED + 1])


@lru_cache(maxsize=100_000)
def _parse_topic(name: str, stored: bytes) -> Topic:
    try:
        policy = Policy.load(stored)
    except InvalidInput as error:
        text = "damaged policy of topic %r, using its valid fields: %s"
        logger.error(text, name, error, extra=event("policy_damaged", topic=name, error=str(error)))
        policy = Policy.salvage(stored)
    own = policy.own
    if name in (policy.dead_letter_topic, own and own.dead_letter_topic):
        text = "the policy of topic %r names it as its own dead letter topic, which is ignored"
        logger.error(text, name, extra=event("policy_damaged", topic=name, error="its own dead letter topic"))
        update: dict[str, Any] = {"dead_letter_topic": None}
        if own and own.dead_letter_topic == name:
            update["own"] = own.model_copy(update=update)
        policy = policy.model_copy(update=update)
    return Topic(name, policy)


@lru_cache(maxsize=10_000)
def _log_once(text: str) -> None:
    logger.error("%s", text, extra=event("registry_damaged"))


def read_registry(prefix: str) -> Flow[dict[str, Topic]]:
    """All topics by name. Skips fields that are not topic names."""
    return parse_registry((yield registered(prefix)))


def registered(prefix: str) -> Call[list[bytes]]:
    """The stored registry, for `parse_registry`."""
    return command("HGETALL", topics_key(prefix), decode=_flat)


def _flat(reply: Any) -> list[bytes]:
    byte_values(reply, 2 * (len(reply) // 2))
    return list(reply)


def parse_registry(reply: list[bytes]) -> dict[str, Topic]:
    """All topics by name. Skips fields that are not topic names."""
    return {name: parse_topic(name, policy) for name, policy in _by_topic("the registry", reply).items()}


def read_dropped(prefix: str) -> Flow[dict[str, bytes]]:
    """The marks of recently dropped topics, by name."""
    key = dropped_key(prefix)
    return _by_topic(key, (yield command("HGETALL", key, decode=_flat)))


def mark_drop(layout: Layout) -> Flow[None]:
    """Notes that a topic is dropped now."""
    keys = ShardKeys(layout.prefix, layout.topic)
    while True:
        now: int = yield server_time()
        earlier: bytes | None = yield command("HGET", dropped_key(layout.prefix), layout.topic)
        mark = _dropped_mark(now, layout, earlier)
        noted = script("mark_drop", keys, decode=bool, topic=layout.topic, before=earlier or b"", mark=mark)
        if (yield noted):
            return


def _dropped_mark(now_ms: int, layout: Layout, earlier: bytes | None) -> str:
    """The mark of a topic that is dropped now: the time, and the layout to which producers may still send.

    Some may know that of the `earlier` mark, as the topic was made again since. If reshards lead there, it is that.
    """
    policy = layout.policy
    if earlier is not None:
        at_ms, known = read_mark(layout.prefix, layout.topic, earlier)
        # Another text, so that a program that forgets the earlier mark keeps this one.
        now_ms += now_ms == at_ms
        if known.counts[: len(layout.counts)] == layout.counts:
            layouts = {"shards": known.policy.shards, "former": known.policy.former}
            # Without limits that go with the present shards only.
            policy = Policy.salvage(policy.model_copy(update=layouts).dump())
    return f"{now_ms} {policy.dump()}"


def read_mark(prefix: str, name: str, mark: bytes) -> tuple[int, Layout]:
    """When a topic was dropped, in ms, and its layout then; 0 and the default layout for a damaged mark."""
    at, _, policy = mark.partition(b" ")
    return int(at) if at.isdigit() else 0, Layout(prefix, name, parse_topic(name, policy or b"{}").policy)


def _marks(prefix: str, topics: Sequence[str]) -> Call[list[bytes | None]]:
    """The marks of topics that were dropped lately. Users with the rules of an earlier release see none."""

    def decode(reply: Any) -> list[bytes | None]:
        if isinstance(reply, AccessDenied):
            return [None] * len(topics)
        if isinstance(reply, LisaError):
            raise reply
        return byte_values(reply, len(topics))

    return command("HMGET", dropped_key(prefix), *topics, decode=decode, takes_errors=True)


def read_past(prefix: str, topic: str, own: Mapping[str, Any]) -> Flow[dict[str, Any]]:
    """The fields that a new topic takes over from one that was dropped lately: its shards, former ones included.

    Programs that do not know of the drop yet use all of them. Raises InvalidInput where its own fields have others.
    """
    [mark] = yield _marks(prefix, [topic])
    past = _past_of(prefix, topic, mark)
    shards = past.get("shards", DEFAULT_POLICY.shards)
    if mark is not None and own.get("shards", shards) != shards:
        expected = f"{shards} until all producers have noticed the recent drop of the topic"
        raise InvalidInput("policy field shards", own["shards"], expected)
    return past


def _past_of(prefix: str, topic: str, mark: bytes | None) -> dict[str, Any]:
    dropped = DEFAULT_POLICY if mark is None else read_mark(prefix, topic, mark)[1].policy
    # By the revision, managers know that the topic had limits, which a producer may set late.
    kept = ("shards", "former", "drained", "limits_revision")
    return {name: getattr(dropped, name) for name in kept if getattr(dropped, name) != getattr(DEFAULT_POLICY, name)}


def resolve_new(patterns: bytes | None, topic: str, own: Mapping[str, Any], past: Mapping[str, Any]) -> Policy:
    """The policy of a topic that is declared, by its own fields, the stored policies of patterns, and `read_past`."""
    try:
        return parse_patterns(patterns).resolve(topic, {**own, **past})
    except InvalidInput:
        if own or not past:
            raise
        # The limits of the former topic allowed its shards; those of patterns do not. A send does not fail for that.
        return parse_patterns(patterns).resolve(topic, {})


def _by_topic(place: str, reply: list[bytes]) -> dict[str, bytes]:
    topics = {}
    for name, stored in pairs(reply):
        if name == PATTERNS.encode():
            continue
        try:
            topics[check_name("topic", name.decode("utf-8", "replace"))] = stored
        except InvalidInput as error:
            _log_once(f"skipped a field of {place}: {error}")
    return topics


KEPT = PATTERNS.encode()
"""In place of the policies of patterns: a new policy keeps what they gave, as where only shards change."""


def store_policy(
    prefix: str, topic: str, before: bytes | None, policy: Policy | None, *, patterns: bytes | None = KEPT
) -> Call[bool]:
    """Sets a topic's policy, or with None forgets the topic, if the registry still has the value `before`.

    `patterns` are the stored policies of patterns that were applied to it: another value in the registry also prevents
    the change. Returns whether it was made. Raises InvalidInput for a topic that is its own dead letter topic.
    """
    if policy:
        _check_letters(topic, policy)
    return _store(prefix, topic, before, policy.dump() if policy else "", patterns)


def store_patterns(prefix: str, before: bytes | None, after: str) -> Call[bool]:
    """Sets the policies of patterns, if the registry still has `before`. Returns whether it had."""
    return _store(prefix, PATTERNS, before, after, before)


def _store(prefix: str, field: str, before: bytes | None, after: str, patterns: bytes | None) -> Call[bool]:
    return script(
        *("set_policy", ShardKeys(prefix, "")),
        decode=bool,
        repeatable=False,
        topic=field,
        before=before or b"",
        after=after,
        patterns=patterns or b"",
    )


def with_revision(before: Policy, after: Policy, now_ms: int) -> Policy:
    """The policy under a new revision if limits, or the shares of shards in them, have changed."""
    fields = (*LIMIT_FIELDS, "shards", "former") if after.is_limited else LIMIT_FIELDS
    if all(getattr(before, name) == getattr(after, name) for name in fields):
        return after
    # By the clock, so that it also differs from those of a topic that was dropped and declared again.
    revision = max(now_ms, before.limits_revision + 1)
    return Policy.of(after.model_dump(exclude_unset=True) | {"limits_revision": revision})


def declare_topic(
    prefix: str, topic: str, own: Mapping[str, Any], patterns: bytes | None = None, *, repeatable: bool = True
) -> Flow[Policy | None]:
    """Registers a topic with these fields of its own, and those of patterns. Returns its policy; None where it exists.

    `patterns` are the stored policies of patterns, if the caller knows them. A topic that was dropped lately gets the
    shards that it had. Raises InvalidInput where its own fields do not go with those of patterns, or with its name.
    A repeat after a lost reply finds the topic that the first try has declared.
    """
    past = yield from read_past(prefix, topic, own)
    while True:
        policy = resolve_new(patterns, topic, own, past)
        _check_letters(topic, policy)
        if policy.is_limited:
            policy = with_revision(DEFAULT_POLICY, policy, (yield server_time()))
        reply: int | bytes = yield script(
            *("declare", ShardKeys(prefix, topic)),
            repeatable=repeatable,
            topic=topic,
            policy=policy.dump(),
            patterns=patterns or b"",
        )
        if not isinstance(reply, bytes):
            break
        patterns = reply
    if not reply:
        return None
    if policy.is_limited:
        yield from _set_limits(Layout(prefix, topic, policy))
    return policy


def _set_limits(layout: Layout) -> Flow[None]:
    """Sets the limits of a declared topic where its shards have none: its first messages must not pass."""
    calls: list[Call[int]] = [
        command("HSETNX", keys.of("door"), "limits", limits_of(layout, keys)) for keys in layout.served
    ]
    # What one shard refuses is no part of the message that is to be sent: none of that was done.
    if error := error_in((yield IndependentCalls(calls))):
        raise error


def _check_letters(topic: str, policy: Policy) -> None:
    """Raises InvalidInput for a topic that is its own dead letter topic: letters would go round."""
    if policy.dead_letter_topic == topic:
        raise InvalidInput("policy field dead_letter_topic", topic, "another topic")


@dataclass(frozen=True, slots=True)
class _Known:
    until: float
    layout: Layout
    declared: bool = True
    guarded: bool = True
    """True if messages may be sent: the topic is declared, and its shards have its limits."""


@dataclass(slots=True)
class Topics:
    """A program's cache of the shards and policies of topics, for `REFRESH_S` seconds."""

    prefix: str
    clock: Callable[[], float] = time.monotonic
    _known: dict[str, _Known] = field(default_factory=dict)
    _patterns: bytes | None = None
    """The policies of patterns, as they were when a topic was missing."""
    _many: int = _MANY
    """How many topics there may be before it looks for some to forget."""

    def known(self, topic: str, *, guarded: bool = False) -> Layout | None:
        """The cached result of `resolve`, or of `declare` with `guarded`; None if they have to ask the server.

        Raises InvalidInput for an invalid name.
        """
        try:
            known = self._known.get(topic)
        except TypeError:
            known = None
        if known is None:
            check_name("topic", topic)
            return None
        return None if self.clock() >= known.until or (guarded and not known.guarded) else known.layout

    def is_declared(self, topic: str) -> bool:
        """Returns True if the registry had the topic, which has to be resolved."""
        return self._known[topic].declared

    def resolve(self, topic: str) -> Flow[Layout]:
        """Shards and policy of a topic. Raises InvalidInput for an invalid name. Writes nothing."""
        known = self._known.get(check_name("topic", topic))
        if known is None or self.clock() >= known.until:
            return (yield from self.resolve_again(topic))
        return known.layout

    def resolve_each(self, topics: Collection[str]) -> Flow[dict[str, Layout]]:
        """The same for several topics, in one round trip at most; for programs that read and do not send.

        Uses older values while the registry cannot be read: of a Cluster only its node may be away.
        """
        now = self.clock()
        before, stale = dict[str, _Known | None](), list[str]()
        for name in topics:
            known = before[name] = self._known.get(name)
            if known is None or now >= known.until:
                stale.append(name)
        if stale:
            # Topics that came one by one are asked together from now on, or each would take a round trip of its own.
            asked = topics if any(before[name] for name in stale) else stale
            try:
                yield from self._read([check_name("topic", name) for name in asked])
            except OF_A_NODE:
                if any(name not in self._known for name in stale):
                    raise
                until = self.clock() + _RETRY_S
                self._known |= {name: replace(self._known[name], until=until) for name in stale}
        # What was known before may have been forgotten meanwhile.
        return {name: known.layout for name in topics if (known := self._known.get(name) or before[name])}

    def resolve_sent(self, topics: Collection[str]) -> Flow[dict[str, Layout]]:
        """As `resolve_each`, for topics that have messages: asks again where one was not registered before.

        A send registers its topic before it stores the message, so a policy is there by now.
        """
        for name in topics:
            if (known := self._known.get(name)) and not known.declared:
                self._known[name] = replace(known, until=0.0)
        return (yield from self.resolve_each(topics))

    def recall_each(self, topics: Collection[str]) -> Flow[dict[str, Layout]]:
        """As `resolve_each`, but uses cached values of any age."""
        try:
            return {topic: self._known[topic].layout for topic in topics}
        except KeyError:
            return (yield from self.resolve_each(topics))

    def recall(self, topic: str) -> Layout | None:
        """The cached layout of any age; None where the topic was never resolved."""
        known = self._known.get(topic)
        return known.layout if known else None

    def resolve_again(self, topic: str) -> Flow[Layout]:
        """As `resolve`, but always reads the registry."""
        yield from self._read([check_name("topic", topic)])
        return self._known[topic].layout

    def find_undeclared(self, topics: Collection[str]) -> Flow[list[str]]:
        """Reads the registry for topics. Returns those that it does not have; these keep the policy that they had."""
        before = {name: self._known.get(name) for name in topics}
        yield from self._read(list(before))
        missing = [name for name in before if not ((known := self._known.get(name)) and known.declared)]
        # What is held of them still has its leases.
        self._known |= {name: known for name in missing if (known := before[name])}
        return missing

    def forget(self, topic: str) -> None:
        """Drops what is known of a topic."""
        self._known.pop(topic, None)

    def declare(self, topic: str) -> Flow[Layout]:
        """Registers a resolved topic unless it exists, with what patterns give it. Returns its layout.

        From then on its limits hold, whoever has declared it.
        """
        if topic not in self._known:
            yield from self._read([topic])
        while not (known := self._known[topic]).guarded:
            if not known.declared:
                policy = yield from declare_topic(self.prefix, topic, {}, self._patterns)
                if policy is not None:
                    layout = known.layout if policy == known.layout.policy else Layout(self.prefix, topic, policy)
                    self._known[topic] = replace(known, layout=layout, declared=True, guarded=True)
                    return layout
            # Another program has declared it, perhaps with several shards. It may not have set the limits yet.
            yield from self._read([topic])
            known = self._known[topic]
            if known.declared and not known.guarded:
                # For older limits, all shards would have to answer for nothing.
                if (yield server_time()) - known.layout.policy.limits_revision < _NEW_MS:
                    yield from _set_limits(known.layout)
                self._known[topic] = replace(known, guarded=True)
        return known.layout

    def _read(self, topics: list[str]) -> Flow[None]:
        policies: list[bytes | None] = yield command(
            "HMGET", topics_key(self.prefix), *topics, decode=lambda reply: byte_values(reply, len(topics))
        )
        marks: Sequence[bytes | None] = [None] * len(topics)
        if None in policies:
            # What a declaration would give them.
            marks, [self._patterns] = yield [
                _marks(self.prefix, topics),
                command("HMGET", topics_key(self.prefix), PATTERNS),
            ]
        until = self.clock() + REFRESH_S
        for topic, stored, mark in zip(topics, policies, marks, strict=True):
            if stored is None:
                policy = resolve_new(self._patterns, topic, {}, _past_of(self.prefix, topic, mark))
            else:
                policy = parse_topic(topic, stored).policy
            known = self._known.get(topic)
            # The old layout has its keys cached.
            layout = known.layout if known and known.layout.policy == policy else Layout(self.prefix, topic, policy)
            # Who changes limits later brings them to all shards.
            guarded = stored is not None and (not policy.is_limited or (known is not None and known.guarded))
            self._known[topic] = _Known(until, layout, declared=stored is not None, guarded=guarded)
        if len(self._known) > self._many:
            self._forget_unused()

    def _forget_unused(self) -> None:
        now = self.clock()
        # Other threads add topics meanwhile.
        for topic, known in list(self._known.items()):
            if now >= known.until + (_UNUSED_S if known.declared else 0):
                self._known.pop(topic, None)
        # Not at every read, where most of them are in use.
        self._many = max(_MANY, 2 * len(self._known))
