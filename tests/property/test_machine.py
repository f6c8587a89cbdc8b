"""The real scripts against a model, step by step, with every promise that one topic can be held to after each step.

The numbers are those of `docs/guarantees.md`. `LISA_TEST_LONG=20` runs twenty times as many examples.
"""

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, Phase, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from lisa_common.client.connection import Connection
from lisa_common.errors import QueueFull
from lisa_common.model.death import dead_letter_id
from lisa_common.model.delivery import Delivery
from lisa_common.model.keys import ShardKeys, copy_of, split_copy, topics_key
from lisa_common.model.policy import Policy
from lisa_common.model.record import is_cancelled, unpack_record
from lisa_common.protocol import managing
from lisa_common.protocol.call import command
from lisa_common.protocol.paging import START
from lisa_common.protocol.registry import Topics
from lisa_manager.dead_lettering import move_page
from lisa_manager.shard_groups import drop_in_shards
from property.model import Copy, Entry, Message, Model
from property.places import facts, places, shown
from support import keys_left
from support.queue import EPOCH_MS, Contents, Queue, outgoing
from support.stepping import Stepped

EXAMPLES, STEPS = 200, 50
TIMES = int(os.environ.get("LISA_TEST_LONG") or 1)

MADE = ("made-5~", "made-6~", "made-7~")
"""As Lisa makes them: a batch of such ids is stored in another way."""
IDS = ("a", "b", "order-3", "sub/4", *MADE)
GROUPS = ("alpha", "beta", "gamma")
CONSUMERS = ("c1", "c2")

# Steps of time are multiples of 10 ms and the visibility timeout is not: no lease ends in the very ms of a step, where
# the server's clock, which measures leases, might have gone on by one. Due times may lie 1 ms after a step.
VISIBILITY_MS = 995
delays = st.sampled_from((0, 0, 0, 1, 10, 200, 1_000))
steps = st.sampled_from((10, 200, 1_000, 5_000, 30_000))
# Most are small; some are so large that a script which reads whole records has something to read.
bodies = st.one_of(
    st.binary(max_size=20), st.binary(max_size=20), st.sampled_from((300, 5_000, 70_000)).map(lambda size: b"x" * size)
)
ids = st.sampled_from(IDS)
groups = st.sampled_from(GROUPS)
choices = st.integers(0, 1_000)


@dataclass(frozen=True)
class Held:
    """A delivery in a consumer's hands, and what the model calls it. Kept when it is over: acks may come late."""

    delivery: Delivery
    entry: Entry
    group: str
    consumer: str


class Machine(RuleBasedStateMachine):
    """One topic in Redis, and in the model."""

    def __init__(self, connection: Connection, prefix: str, topic: str) -> None:
        super().__init__()
        self.queue = Queue(connection, ShardKeys(prefix, topic))
        self.model = Model(self.queue.policy, EPOCH_MS)
        self.held: list[Held] = []
        self.dues: set[tuple[str, int]] = set()
        self.done: set[tuple[Message, str]] = set()
        self.counted: dict[tuple[Message, str], int] = {}
        self.names: dict[Entry, str] = {}
        self.before: Contents | None = None
        self.ended: set[str] = set()
        self.passed: list[int] = []
        """When messages became ready by a rate, in the last period."""
        self.windows: dict[str, int] = {}
        """When the dedup windows close that acks have opened, by id."""
        self.moved: dict[str, bytes] = {}
        """The bodies of dead letters in their new topic, by id."""

    @initialize(
        on_expire=st.sampled_from(("garbage", "drop")),
        max_retries=st.sampled_from((0, 1, 2)),
        first=st.sampled_from(([], ["alpha"], ["alpha", "beta"], list(GROUPS))),
    )
    def declare(self, on_expire: str, max_retries: int, first: list[str]) -> None:
        """A policy with short times."""
        self.queue.policy = self.model.policy = Policy.of(
            {
                "on_expire": on_expire,
                "max_retries": max_retries,
                "visibility_ms": VISIBILITY_MS,
                "backoff_base_ms": 200,
                "backoff_cap_ms": 400,
                "backoff_jitter": 0,
                "dedup_window_ms": 1_000,
                "garbage_retention_ms": 5_000,
                "garbage_max_messages": 3,
            }
        )
        for group in first:
            self.join(group)

    # Steps

    @rule(ms=steps)
    def advance(self, ms: int) -> None:
        """Time passes."""
        self.queue.advance(ms)
        self.model.now_ms += ms

    @rule(group=groups)
    def join(self, group: str) -> None:
        """A consumer comes up."""
        assert self.queue.join(group) == [self.model.join(group)]

    @precondition(lambda self: self.model.groups)
    @rule(choice=choices, trimmed=st.booleans())
    def drop_group(self, choice: int, *, trimmed: bool) -> None:
        """An operator drops a group, while a manager may trim after each step of it."""
        group = self._group(choice)
        self.ended |= {message.id for message in self.model.messages.values() if group in message.copies}
        drop = Stepped(self.queue.connection, drop_in_shards([self.queue.keys], group, force=True))
        while drop.step():
            if trimmed:
                self.queue.trim()
        self.model.drop(group)
        self.held = [held for held in self.held if held.group != group]
        if trimmed:
            self.queue.trim()
            self.model.trim()

    @rule(
        id=ids,
        delay_ms=delays,
        absolute=st.booleans(),
        body=bodies,
        ttl_ms=st.sampled_from((None, None, 100, 2_000)),
        max_retries=st.sampled_from((None, None, 0, 3)),
        priority=st.sampled_from((0, 0, 7, 255)),
    )
    def send(
        self,
        *,
        id: str,
        delay_ms: int,
        absolute: bool,
        body: bytes,
        ttl_ms: int | None,
        max_retries: int | None,
        priority: int,
    ) -> None:
        """A message is sent, or sent once more."""
        due_ms = self._new_due(id, delay_ms)
        due = self._moment(due_ms) if absolute else f"+{due_ms - self.model.now_ms}"
        message = Message(id, due_ms, body, ttl_ms, max_retries, priority)
        known = self.model.known(id)
        if self.model.is_full(id):
            with pytest.raises(QueueFull):
                self.queue.send(id, due=due)
            return
        sent = self.queue.send(id, due=due, body=body, ttl_ms=ttl_ms, max_retries=max_retries, priority=priority)
        assert not sent or self.windows.get(id, 0) <= self.model.now_ms, "promise 6: an acked id is known in its window"
        assert bool(sent) is not known, "promise 6: sends of an id within its window are one message"
        assert sent == self.model.send(message)

    @rule(choice=choices, delay_ms=delays, body=bodies, ttl_ms=st.sampled_from((None, None, 2_000)))
    def replace(self, choice: int, delay_ms: int, body: bytes, ttl_ms: int | None) -> None:
        """A message is sent in place of another."""
        id = self._id(choice)
        due_ms = self._new_due(id, delay_ms)
        message = Message(id, due_ms, body, ttl_ms, None, 0)
        if self.model.is_full(id):
            with pytest.raises(QueueFull):
                self.queue.replace(id, due=str(due_ms))
            return
        assert self.queue.replace(id, due=self._moment(due_ms), body=body, ttl_ms=ttl_ms) == self.model.replace(message)

    @precondition(lambda self: self.held)
    @rule(choice=choices, id=ids, same_id=st.booleans(), delay_ms=delays, body=bodies)
    def follow(self, *, choice: int, id: str, same_id: bool, delay_ms: int, body: bytes) -> None:
        """A delivery is acked together with the message that follows it."""
        held = self._held(choice)
        next_id = held.delivery.id if same_id else id
        due_ms = self._new_due(next_id, delay_ms)
        before = self.queue.contents()
        outcome = self.queue.follow(held.delivery, outgoing(next_id, due=self._moment(due_ms), body=body))
        assert outcome == self.model.follow(held.group, held.entry, Message(next_id, due_ms, body, None, None, 0))
        if outcome in ("stale", "owed", "full"):
            assert self.queue.contents() == before, "promise 5: a stale ack changes nothing"
            return
        self.done.add((held.entry.message, held.group))
        self.ended.add(held.delivery.id)
        if next_id != held.delivery.id and not held.delivery.id.endswith("~"):
            self.windows[held.delivery.id] = self.model.now_ms + self.model.policy.dedup_window_ms

    @rule(delay_ms=delays, chosen=st.lists(ids, min_size=2, max_size=6) | st.sampled_from((MADE, MADE[:2], MADE[1:])))
    def send_batch(self, delay_ms: int, chosen: Sequence[str]) -> None:
        """Several are sent in one call, some of them twice."""
        due_ms = max(self._new_due(id, delay_ms) for id in chosen)
        messages = [Message(id, due_ms, b"batch", None, None, 0) for id in chosen]
        if self.model.is_full(*chosen):
            with pytest.raises(QueueFull):
                self.queue.send_all([outgoing(m.id, due=str(due_ms)) for m in messages])
            return
        sent = self.queue.send_all([outgoing(m.id, due=str(due_ms), body=m.body) for m in messages])
        assert sent == [self.model.send(message) for message in messages]
        self.dues.update((id, due_ms) for id in chosen)

    def _new_due(self, id: str, delay_ms: int) -> int:
        # Two messages of one id never fall due in the same ms here: the due time tells them apart.
        due_ms = self.model.now_ms + delay_ms
        while (id, due_ms) in self.dues:
            due_ms += 10
        self.dues.add((id, due_ms))
        return due_ms

    def _moment(self, due_ms: int) -> str:
        # A time in the past is now.
        return "1" if due_ms == self.model.now_ms else str(due_ms)

    @rule(limit=st.sampled_from((1, 2, 1_000)))
    def promote(self, limit: int) -> None:
        """A manager promotes one batch."""
        before, room = len(self.model.stream), self.model.room()
        promoted = self.queue.promote(limit=limit)
        if self.model.policy.rate:
            # Which part of the room the rate leaves is checked by its windows.
            assert room is None or promoted.count <= room
            room = promoted.count
            self._passes_by_rate(promoted.count)
        assert promoted.count == self.model.promote(limit, room)
        due_ms = self.model.next_due_ms()
        is_held = due_ms is not None and due_ms <= self.model.now_ms and not promoted.more
        assert bool(promoted.held) is is_held
        for entry in self.model.stream[before:]:
            assert entry.at_ms <= self.model.now_ms, "promise 1: never early"
        assert promoted.next_due_ms == self.model.next_due_ms()

    def _passes_by_rate(self, count: int) -> None:
        now_ms = self.model.now_ms
        self.passed = [ms for ms in self.passed if ms >= now_ms - 1_000] + [now_ms] * count
        assert len(self.passed) <= 3 + 1, "at most n + burst become ready in any period"

    @rule(
        fields=st.sampled_from(
            (
                {},
                {},
                {"paused": True},
                {"max_in_flight": 2},
                {"rate": "3/s", "burst": 1},
                {"max_messages": 4},
                {"max_in_flight": 3, "rate": "3/s", "burst": 1, "max_messages": 6},
            )
        )
    )
    def limit(self, fields: dict[str, Any]) -> None:
        """An operator sets limits, or takes them away."""
        self.queue.limit(**fields)
        self.model.policy = self.queue.policy
        if not self.model.policy.rate:
            self.passed = []

    @precondition(lambda self: self.model.groups)
    @rule(ms=st.sampled_from((10, 200, 1_000)))
    def shut(self, ms: int) -> None:
        """A handler asks for a pause."""
        self.queue.shut(ms)
        self.model.shut_ms = max(self.model.shut_ms, self.model.now_ms + ms)

    @precondition(lambda self: self.model.groups)
    @rule(choice=choices, consumer=st.sampled_from(CONSUMERS), limit=st.sampled_from((1, 2, 100)))
    def read(self, choice: int, consumer: str, limit: int) -> None:
        """A consumer reads."""
        group = self._group(choice)
        deliveries = self.queue.read(group, consumer, limit=limit)
        entries = self.model.judge(group, self.model.take(group, limit))
        assert [d.id for d in deliveries] == [e.message.id for e in entries]
        for delivery, entry in zip(deliveries, entries, strict=True):
            self._delivered(delivery, entry, group)
            self.held.append(Held(delivery, entry, group, consumer))

    def _delivered(self, delivery: Delivery, entry: Entry, group: str) -> None:
        message = entry.message
        assert delivery.due_ms == entry.at_ms
        assert delivery.due_ms <= self.model.now_ms, "promise 1: never early"
        assert (message, group) not in self.done, "promise 4: no delivery after an ack that returned acked or late"
        assert delivery.attempt == entry.attempt
        retries = self.model.policy.max_retries if message.max_retries is None else message.max_retries
        count = self.counted[message, group] = self.counted.get((message, group), 0) + 1
        assert delivery.alone == entry.alone
        most = retries + 1 + delivery.alone
        assert max(count, delivery.attempt) <= most, "promise 7: deliveries ≤ max retries + 1, and one alone"
        assert not message.cancelled, "promise 8: a cancelled message is not delivered"
        assert not message.expired(self.model.now_ms), "promise 8: an expired message is not delivered"
        assert delivery.body == message.body, "promise 10: bodies arrive byte for byte"

    @precondition(lambda self: self.model.groups)
    @rule(choice=choices, limit=st.sampled_from((1, 100)))
    def take(self, choice: int, limit: int) -> None:
        """A consumer dies between the two halves of a read."""
        group = self._group(choice)
        assert len(self.queue.take(group, "dies", limit=limit)) == len(self.model.take(group, limit))

    @precondition(lambda self: self.model.groups)
    @rule(choice=choices, limit=st.sampled_from((1, 100)), which=choices)
    def read_while_cancelled(self, choice: int, limit: int, which: int) -> None:
        """A message is cancelled between the two halves of a read."""
        group = self._group(choice)
        entries, taken = self.queue.take(group, limit=limit), self.model.take(group, limit)
        self.cancel(which)
        deliveries = self.queue.judge(group, entries)
        judged = self.model.judge(group, taken)
        assert [d.id for d in deliveries] == [e.message.id for e in judged]
        for delivery, entry in zip(deliveries, judged, strict=True):
            self._delivered(delivery, entry, group)
            self.held.append(Held(delivery, entry, group, "c"))

    @precondition(lambda self: self.held)
    @rule(some=st.lists(choices, min_size=1, max_size=4))
    def ack(self, some: list[int]) -> None:
        """Deliveries of one group are acked, new and old ones together."""
        first = self._held(some[0])
        chosen = {h.entry: h for h in map(self._held, some) if h.group == first.group}
        before = self.queue.contents()
        outcomes = self.queue.ack(*(h.delivery for h in chosen.values()))
        assert outcomes == [self.model.ack(first.group, entry) for entry in chosen]
        for entry, outcome in zip(chosen, outcomes, strict=True):
            if outcome != "stale":
                self.done.add((entry.message, first.group))
                if not entry.message.id.endswith("~"):
                    self.windows[entry.message.id] = self.model.now_ms + self.model.policy.dedup_window_ms
                self.ended.add(entry.message.id)
        if set(outcomes) == {"stale"}:
            assert self.queue.contents() == before, "promise 5: a stale ack changes nothing"

    @precondition(lambda self: self.held)
    @rule(choice=choices, delay_ms=st.sampled_from((None, 0, 300)), rejected=st.booleans())
    def nack(self, choice: int, delay_ms: int | None, *, rejected: bool) -> None:
        """A delivery is nacked or rejected."""
        held = self._held(choice)
        outcomes = self.queue.nack(held.delivery, error="it broke", delay_ms=delay_ms, rejected=rejected)
        reason = "rejected" if rejected else "nack"
        assert outcomes == [self.model.nack(held.group, held.entry, reason, delay_ms)]

    @rule(
        count=st.integers(1, 3),
        choice=choices,
        ms=st.sampled_from((0, 200, 1_000)),
        delay_ms=st.sampled_from((None, 0, 300)),
        ttl_ms=st.sampled_from((None, 200, 1_000)),
    )
    def work(self, *, count: int, choice: int, ms: int, delay_ms: int | None, ttl_ms: int | None) -> None:
        """What happens most, in one step: new messages are sent, handled for a while, the latest acked or nacked."""
        for _ in range(count):
            fresh = f"work-{len(self.dues)}"
            self.send(id=fresh, delay_ms=0, absolute=False, body=b"", ttl_ms=ttl_ms, max_retries=None, priority=0)
        if not self.model.groups:
            return
        self.promote(1_000)
        before = len(self.held)
        self.read(choice, "c1", 100)
        self.advance(ms)
        if len(self.held) == before:
            return
        self.check()
        if choice % 2:
            self.ack([0])
        else:
            self.nack(0, delay_ms, rejected=False)

    @precondition(lambda self: self.held)
    @rule(choice=choices)
    def release(self, choice: int) -> None:
        """A delivery that has not begun is given back."""
        held = self._held(choice)
        released = self.model.release(held.group, held.entry)
        assert self.queue.release(held.delivery) == released
        if released:
            self.counted[held.entry.message, held.group] -= 1

    @precondition(lambda self: self.held)
    @rule(choice=choices, consumer=st.sampled_from(CONSUMERS))
    def extend(self, choice: int, consumer: str) -> None:
        """A lease is renewed, or someone tries to take one."""
        held = self._held(choice)
        kept = held.consumer == consumer and self.model.extend(held.group, held.entry)
        assert self.queue.extend(consumer, held.delivery) == [kept]

    @precondition(lambda self: self.model.groups)
    @rule(choice=choices, limit=st.sampled_from((1, 100)))
    def reclaim(self, choice: int, limit: int) -> None:
        """A manager reclaims, step by step to the end."""
        group = self._group(choice)
        counts = self.model.reclaim(group)
        retry = garbage = gone = 0
        cursor = ""
        while cursor != "0-0":
            step = self.queue.reclaim(group, cursor=cursor or "0-0", limit=limit)
            retry, garbage, gone, cursor = retry + step.retry, garbage + step.garbage, gone + step.gone, step.cursor
        assert (retry, garbage, gone) == (counts["retry"], counts["garbage"], counts["gone"] + counts["dropped"])

    @rule(choice=choices)
    def cancel(self, choice: int) -> None:
        """A message is cancelled."""
        id = self._id(choice)
        outcomes = self.queue.cancel(id)
        assert outcomes == [self.model.cancel(id)]
        if outcomes[0] in ("cancelled", "delivered"):
            self.ended.add(id)

    @rule(choice=choices, delay_ms=delays)
    def reschedule(self, choice: int, delay_ms: int) -> None:
        """A message is put off, or brought forward."""
        id = self._id(choice)
        due_ms = self._new_due(id, delay_ms)
        assert self.queue.reschedule((id, self._moment(due_ms)))[0][0] == self.model.reschedule(id, due_ms)

    @rule(choice=choices)
    def find(self, choice: int) -> None:
        """Someone looks."""
        id = self._id(choice)
        found, message = self.queue.find(id), self.model.messages.get(id)
        if message is None:
            assert (found.state if found else None) == ("finished" if self.model.is_finished(id) else None)
            return
        assert found is not None
        assert found.state == self.model.state(message)
        if not message.cancelled:
            attempts = [copy.attempts + (copy.place == "delivered") for copy in message.copies.values()]
            assert found.attempts == max(attempts, default=0)

    @precondition(lambda self: any(self.model.copies("garbage")))
    @rule(choice=choices)
    def replay(self, choice: int) -> None:
        """A dead letter gets another chance."""
        message, group = self._dead(choice)
        assert self.queue.replay(copy_of(group, message.id)) == [self.model.replay(message.id, group)]
        self.counted = {key: n for key, n in self.counted.items() if key != (message, group)}

    @rule(id=ids, group=groups)
    def replay_or_purge_nothing(self, id: str, group: str) -> None:
        """What is no dead letter is neither replayed nor purged."""
        if group in self.model.groups and not self._is_dead(id, group):
            assert self.queue.replay(copy_of(group, id)) == ["unknown"]
            assert self.queue.purge(copy_of(group, id)) == 0

    def _is_dead(self, id: str, group: str) -> bool:
        copy = self.model.messages[id].copies.get(group) if id in self.model.messages else None
        return copy is not None and copy.place == "garbage"

    @precondition(lambda self: any(self.model.copies("garbage")))
    @rule(choice=choices)
    def purge(self, choice: int) -> None:
        """A dead letter is deleted."""
        message, group = self._dead(choice)
        self.ended.add(message.id)
        assert self.queue.purge(copy_of(group, message.id)) == self.model.purge(message.id, group)

    @precondition(lambda self: any(self.model.copies("garbage")))
    @rule(steps=st.integers(0, 5))
    def move_dead_letters(self, steps: int) -> None:
        """A manager dies after some steps of a move to a dead letter topic; another one moves all."""
        keys, target = self.queue.keys, f"{self.queue.keys.topic}.dead"
        policy = Policy(dead_letter_topic=target, dedup_window_ms=self.model.policy.dedup_window_ms)
        moves = [move_page(keys, policy, Topics(keys.prefix), START, now_ms=self.model.now_ms) for _ in range(2)]
        broken, whole = (Stepped(self.queue.connection, move) for move in moves)
        for _ in range(steps):
            broken.step()
        whole.finish()
        for message, group, copy in self.model.copies("garbage"):
            self.moved[dead_letter_id(keys.topic, group, message.id, copy.at_ms, message.id)] = message.body
            self.ended.add(message.id)
            self.model.purge(message.id, group)
            if not message.id.endswith("~"):
                self.model.finished[message.id] = self.model.now_ms + policy.dedup_window_ms
        self.advance(10)
        found = self.queue.connection.call(command("HGETALL", ShardKeys(keys.prefix, target).of("messages")))
        records = {id.decode(): unpack_record(data).body for id, data in zip(found[::2], found[1::2], strict=True)}
        assert records == self.moved, "a dead letter is moved once, and whole"

    @precondition(lambda self: any(self.model.copies("garbage")))
    @rule()
    def move_dead_letters_to_a_full_topic(self) -> None:
        """Nothing is moved, and nothing changes, however often managers try."""
        keys, limits = self.queue.keys, '{"messages":0}'
        target = ShardKeys(keys.prefix, f"{keys.topic}.dead")
        policy = Policy(dead_letter_topic=target.topic, dedup_window_ms=0)
        call = self.queue.connection.call
        assert call(managing.set_door(target, "", limits))
        for _ in range(2):
            moved = self.queue.connection.run(move_page(keys, policy, Topics(keys.prefix), START))
            assert isinstance(moved.error, QueueFull)
            assert not moved.moved
        assert call(managing.set_door(target, limits, ""))
        assert call(command("HLEN", target.of("messages"))) == len(self.moved)

    @rule()
    def sweep(self) -> None:
        """A manager sweeps."""
        # Only repeated sends look at what was withdrawn, so the model knows nothing of it.
        withdrawn = [ms for ms in self.queue.contents().withdrawn.values() if ms <= self.model.now_ms]
        swept = self.queue.sweep()
        assert (swept.expired, swept.forgotten - len(withdrawn), swept.aged_out) == self.model.sweep()

    @rule()
    def trim(self) -> None:
        """A manager trims."""
        assert self.queue.trim().entries == self.model.trim()

    @rule(choice=choices, between=st.sampled_from(("nothing", "send", "purge")))
    def cancel_again(self, choice: int, between: str) -> None:
        """Whoever cancels did not hear the answer, and cancels again."""
        id = self._id(choice)
        self.cancel(choice)
        self.check()
        if between == "send":
            self.send(id=id, delay_ms=10, absolute=False, body=b"", ttl_ms=None, max_retries=None, priority=0)
        elif between == "purge" and any(self.model.copies("garbage")):
            self.purge(choice)
        outcomes = self.queue.cancel(id)
        assert outcomes == [self.model.cancel(id)]
        if outcomes[0] in ("cancelled", "delivered"):
            self.ended.add(id)

    # After each step

    @invariant()
    def check(self) -> None:
        """The keys hold what the model says."""
        contents = self.queue.contents()
        self._nothing_is_lost(contents)
        self._every_copy_is_in_one_place(contents)
        self._keys_are_as_modelled(contents)
        self.before, self.ended = contents, set()

    def _nothing_is_lost(self, contents: Contents) -> None:
        """Promise 2: a record goes with an ack, a cancel, a purge, its expiry, or with garbage that is too old."""
        for id, data in (self.before.records if self.before else {}).items():
            if id in self.ended or id in contents.records or is_cancelled(data):
                continue
            record = unpack_record(data)
            expired = record.expires_ms is not None and record.expires_ms <= self.model.now_ms
            was_dead = self.before and any(split_copy(copy)[1] == id for copy in self.before.garbage)
            assert expired or was_dead, f"promise 2: {id} is lost"

    def _every_copy_is_in_one_place(self, contents: Contents) -> None:
        """Promise 9, from the keys alone: each live id is in exactly one place for each group that owes it."""
        found = places(contents)
        assert {copy: where for copy, where in found.items() if len(where) != 1} == {}, "promise 9: in one place"
        assert {id for id, _ in found} == set(contents.records), "promise 9: every record has a place, and vice versa"
        for id, names in contents.owed.items():
            owing = {group for other, group in found if other == id}
            assert owing == set(names.split(",")), "promise 9: owed names the groups that owe"

    def _keys_are_as_modelled(self, contents: Contents) -> None:
        model, alive = self.model, self.model.messages
        assert contents.waiting == {m.id: due - m.priority / 256 for due, m in model.waiting()}
        assert {id: facts(data) for id, data in contents.records.items()} == {
            id: None if m.cancelled else (m.due_ms, m.ttl_ms, m.max_retries, m.priority, m.body)
            for id, m in alive.items()
        }
        assert contents.expiring == {id: m.look_ms for id, m in alive.items() if m.look_ms is not None}
        assert contents.finished == model.finished
        assert {id: set(names.split(",")) for id, names in contents.owed.items()} == {
            id: set(m.copies) for id, m in alive.items() if m.counted
        }
        assert contents.retry == {copy_of(g, m.id): c.at_ms - m.priority / 256 for m, g, c in model.copies("retry")}
        assert contents.garbage == {copy_of(g, m.id): c.at_ms for m, g, c in model.copies("garbage")}
        entries = model.entries()
        assert [shown(fields) for fields in contents.stream.values()] == [
            (e.message.id, e.attempt, e.group, e.at_ms) for e in entries
        ]
        self.names |= zip(entries, contents.stream, strict=True)
        names = self.names
        assert {name: set(state.pending) for name, state in contents.groups.items()} == {
            name: {names[entry] for entry in group.pending} for name, group in model.groups.items()
        }
        assert {
            copy: f and (f.attempts, f.reason, f.due_ms, f.next_entry) for copy, f in contents.failures.items()
        } == {
            copy_of(g, m.id): (c.attempts, c.reason, m.due_ms, names[c.entry] if c.entry else None)
            for m, g, c in model.copies("ready", "delivered", "retry", "garbage")
            if c.reason
        }

    # In the end

    def teardown(self) -> None:
        """Promise 11: after a drain nothing is left but the stream and its groups."""
        self.limit({})
        if not self.model.groups:
            self.join(GROUPS[0])
        for _ in range(20):
            self.advance(30_000)
            self.promote(1_000)
            for choice, group in enumerate(sorted(self.model.groups)):
                self.reclaim(choice, 100)
                self.read(choice, "c1", 100)
                mine = [-1 - n for n, held in enumerate(self.held) if held.group == group]
                if mine:
                    self.ack(mine)
            self.check()
            if not self.model.waiting() and not any(self.model.copies("ready", "delivered", "retry")):
                break
        else:
            raise AssertionError("promise 2: a drain ends")
        while any(self.model.copies("garbage")):
            self.purge(0)
        self.advance(30_000)
        for choice in range(len(self.model.groups)):
            self.read(choice, "c1", 100)
            self.reclaim(choice, 100)
        self.sweep()
        self.trim()
        self.check()
        call, of = self.queue.connection.call, self.queue.keys.of
        keys: list[bytes] = call(command("KEYS", of("*")))
        assert keys == [of("ready").encode()], "promise 11: after a drain only the stream is left"
        assert call(command("XLEN", of("ready"))) == 0, "promise 11: and it is empty"
        call(command("DEL", of("ready")))
        prefix, topic = self.queue.keys.prefix, self.queue.keys.topic
        call(command("DEL", *ShardKeys(prefix, f"{topic}.dead").all()))
        call(command("HDEL", topics_key(prefix), f"{topic}.dead"))

    # Choosing

    def _id(self, choice: int) -> str:
        # One that lives, or one of those that are sent again and again.
        known = [*IDS, *sorted(self.model.messages)]
        return known[-1 - choice % len(known)]

    def _group(self, choice: int) -> str:
        return sorted(self.model.groups)[choice % len(self.model.groups)]

    def _held(self, choice: int) -> Held:
        # Small numbers, to which Hypothesis shrinks and leans, mean the latest.
        return self.held[-1 - choice % len(self.held)]

    def _dead(self, choice: int) -> tuple[Message, str]:
        dead: list[tuple[Message, str, Copy]] = list(self.model.copies("garbage"))
        message, group, _ = dead[choice % len(dead)]
        return message, group


@pytest.mark.slow
@pytest.mark.timeout(300 * TIMES)
def test_scripts_do_what_the_model_does(redis_url: str, client: redis.Redis, prefix: str) -> None:
    """Thousands of random steps: the scripts agree with the model in every reply and every key."""
    numbers = itertools.count()
    with Connection(redis_url) as connection:

        class Here(Machine):
            def __init__(self) -> None:
                super().__init__(connection, prefix, f"t{next(numbers)}")

        run_state_machine_as_test(
            Here,
            settings=settings(
                max_examples=EXAMPLES * TIMES,
                stateful_step_count=STEPS,
                print_blob=True,
                phases=(Phase.reuse, Phase.generate, Phase.shrink),
                suppress_health_check=list(HealthCheck),
            ),
        )
    assert keys_left(client, prefix) == []
