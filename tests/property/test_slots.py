"""Slots of keys under any sequence of calls: none too many, none lost, and nothing is stuck."""

import os
from collections import Counter
from typing import Any

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
from lisa_common.model.delivery import Delivery
from lisa_common.model.keys import ShardKeys, split_copy
from lisa_common.model.policy import Policy
from lisa_common.model.record import is_cancelled, unpack_record
from lisa_common.model.scores import PARKED_MS
from support.queue import Contents, Queue

EXAMPLES, STEPS = 100, 40
TIMES = int(os.environ.get("LISA_TEST_LONG") or 1)

IDS = tuple("abcdef")
KEYS = ("k", "k", "k", "ke", None)
GROUPS = ("alpha", "beta")
choices = st.integers(0, 1_000)


class Machine(RuleBasedStateMachine):
    """One topic that limits what is in flight of each key."""

    def __init__(self, connection: Connection, prefix: str, topic: str) -> None:
        super().__init__()
        self.queue = Queue(connection, ShardKeys(prefix, topic))
        self.held: list[Delivery] = []

    @initialize(
        limit=st.sampled_from((1, 1, 2)),
        groups=st.sampled_from((1, 1, 2)),
        on_expire=st.sampled_from(("garbage", "drop")),
    )
    def declare(self, limit: int, groups: int, on_expire: str) -> None:
        """A policy with short times."""
        fields = {"max_retries": 1, "backoff_base_ms": 200, "backoff_jitter": 0, "visibility_ms": 995}
        self.queue.policy = Policy.of(fields | {"dedup_window_ms": 0, "on_expire": on_expire})
        self.queue.limit(max_in_flight_per_key=limit)
        self.groups = GROUPS[:groups]
        self.queue.join(*self.groups)

    @rule(ms=st.sampled_from((1, 10, 200, 1_000)))
    def advance(self, ms: int) -> None:
        """Time passes."""
        self.queue.advance(ms)

    @rule(
        id=st.sampled_from(IDS),
        key=st.sampled_from(KEYS),
        due=st.sampled_from(("+0", "+0", "+1", "+200")),
        priority=st.sampled_from((0, 0, 9)),
        ttl_ms=st.sampled_from((None, None, 300)),
    )
    def send(self, **message: Any) -> None:
        """A message with a key, or none."""
        self._tick()
        self.queue.send(**message)

    def _tick(self) -> None:
        """Messages of one id that are sent in the same ms, with the same due time, cannot be told apart."""
        self.queue.advance(1)

    @rule(ids=st.lists(st.sampled_from(IDS), min_size=2, max_size=6), ttl_ms=st.sampled_from((None, None, 300)))
    def crowd(self, ids: list[str], ttl_ms: int | None) -> None:
        """Several messages of a key come together, and all groups read."""
        self._tick()
        for id in ids:
            self.queue.send(id, key="k", ttl_ms=ttl_ms)
        self.queue.promote()
        for group in self.groups:
            self.held += self.queue.read(group)

    @rule(group=choices, reject=st.booleans())
    def end_all(self, group: int, *, reject: bool) -> None:
        """A group settles all that it holds."""
        name = self.groups[group % len(self.groups)]
        if of_group := [delivery for delivery in self.held if delivery.group == name]:
            if reject:
                self.queue.nack(*of_group, rejected=True)
            else:
                self.queue.ack(*of_group)
            self.held = [delivery for delivery in self.held if delivery.group != name]

    @rule()
    def replay_all(self) -> None:
        """All dead letters are replayed, and meet what is due."""
        self.queue.replay(*sorted(self.queue.contents().garbage))
        self.queue.promote()

    @rule(limit=st.sampled_from((1, 2, 100)))
    def promote(self, limit: int) -> None:
        """A manager promotes."""
        self.queue.promote(limit=limit)

    @rule(group=choices, limit=st.sampled_from((1, 100)))
    def read(self, group: int, limit: int) -> None:
        """A consumer reads."""
        self.held += self.queue.read(self.groups[group % len(self.groups)], limit=limit)

    @precondition(lambda self: self.held)
    @rule(choice=choices, verb=st.sampled_from(("ack", "ack", "nack", "reject", "snooze", "release")))
    def settle(self, choice: int, verb: str) -> None:
        """A delivery ends, or ended before."""
        delivery = self.held[choice % len(self.held)]
        if verb == "ack":
            self.queue.ack(delivery)
        elif verb == "release":
            self.queue.release(delivery)
        else:
            self.queue.nack(delivery, delay_ms=10, rejected=verb == "reject", snoozed=verb == "snooze")

    @rule(group=choices)
    def reclaim(self, group: int) -> None:
        """Leases run out."""
        self.queue.reclaim(self.groups[group % len(self.groups)])

    @rule(id=st.sampled_from(IDS), due=st.sampled_from((None, "+0", "+10", "+1000")))
    def change(self, id: str, due: str | None) -> None:
        """A message is cancelled, or gets another due time."""
        if due is None:
            self.queue.cancel(id)
        else:
            self.queue.reschedule((id, due))

    @rule(choice=choices, purge=st.booleans())
    def end_garbage(self, choice: int, *, purge: bool) -> None:
        """A dead letter is replayed, or purged."""
        copies = sorted(self.queue.contents().garbage)
        if copies:
            copy = copies[choice % len(copies)]
            (self.queue.purge if purge else self.queue.replay)(copy)

    @rule()
    def sweep(self) -> None:
        """A manager sweeps."""
        self.queue.sweep()

    @rule(limit=st.sampled_from((1, 2, 3)))
    def raise_limit(self, limit: int) -> None:
        """An operator raises the limit."""
        most = self.queue.policy.max_in_flight_per_key or 0
        self.queue.limit(max_in_flight_per_key=max(limit, most))
        self.queue.tidy()

    @invariant()
    def check(self) -> None:
        """All keys agree, and no key has more in flight than it may."""
        contents = self.queue.contents()
        holders = {f"{key}\0{id}" for id, key in contents.busy.items()}
        assert holders == set(contents.slots)
        most = self.queue.policy.max_in_flight_per_key or 0
        assert max(Counter(contents.busy.values()).values(), default=0) <= most
        assert contents.busy.keys() <= contents.records.keys()
        assert self.queue.tidy(mend=False) == 0
        for id in self._in_flight(contents):
            record = contents.records[id]
            if not is_cancelled(record):
                assert contents.busy.get(id) == unpack_record(record).key
        indexed = {member.partition("\0")[2][18:] for member in contents.parked}
        parked = {f"m{id}" for id, score in contents.waiting.items() if score >= PARKED_MS}
        parked |= {f"c{copy}" for copy, score in contents.retry.items() if score >= PARKED_MS}
        assert parked == indexed

    def _in_flight(self, contents: Contents) -> set[str]:
        """Messages that are ready, delivered, or to be retried, in any group."""
        ids = {split_copy(copy)[1] for copy, score in contents.retry.items() if score < PARKED_MS}
        # A replayed copy is in retry before it passes the door.
        ids &= contents.busy.keys()
        for entry, fields in contents.stream.items():
            id = fields["id"]
            record = contents.records.get(id)
            is_read = any(entry in state.pending for state in contents.groups.values())
            if is_read and record and not is_cancelled(record) and unpack_record(record).due_ms == int(fields["due"]):
                ids.add(id)
        return ids - contents.waiting.keys()

    def teardown(self) -> None:
        """In the end all is delivered: no key stays blocked."""
        self.queue.advance(100_000)
        for _ in range(200):
            while self.queue.promote().more:
                pass
            for group in self.groups:
                self.queue.reclaim(group)
                if taken := self.queue.read(group):
                    self.queue.ack(*taken)
            self.queue.advance(1_000)
            contents = self.queue.contents()
            if not contents.waiting and not contents.retry and not any(s.pending for s in contents.groups.values()):
                break
        self.queue.sweep()
        contents = self.queue.contents()
        assert (contents.waiting, contents.retry) == ({}, {})
        assert (contents.busy, contents.slots, contents.parked) == ({}, [], [])


def test_slots_hold(redis_url: str, client: redis.Redis, prefix: str) -> None:
    """Whatever is called, in whichever order."""
    count = 0
    with Connection(redis_url) as connection:

        class Here(Machine):
            def __init__(self) -> None:
                nonlocal count
                count += 1
                super().__init__(connection, prefix, f"t{count}")

        run_state_machine_as_test(
            Here,
            settings=settings(
                max_examples=EXAMPLES * TIMES,
                stateful_step_count=STEPS,
                suppress_health_check=list(HealthCheck),
                phases=[phase for phase in Phase if phase is not Phase.explain],
            ),
        )
    for key in client.scan_iter(f"{prefix}:*"):
        client.delete(key)
