"""A server that is killed loses its last writes, and consumers then settle deliveries that it no longer knows."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hypothesis import Phase, given, settings, strategies as st

from lisa_common.client.connection import Connection
from lisa_common.errors import QueueFull
from lisa_common.model.delivery import Delivery
from lisa_common.model.keys import NO_GROUP, ShardKeys, copy_of, split_copy
from property.places import places
from support.queue import EPOCH_MS, Contents, Queue

GROUPS = ("alpha", "beta", "gamma")
IDS = ("a", "b", "made-3~")
NAMES = ("send", "send later", "promote", "read", "ack", "nack", "reject", "sweep", "replay", "advance")
STEPS = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 5)), min_size=3, max_size=14)
EXAMPLES = 300
LIMITS = ({}, {}, {"max_in_flight": 1}, {"max_in_flight": 2, "rate": "10/s"}, {"paused": True}, {"max_messages": 2})
"""What limits the topic. A pause begins before the writes that are lost; other limits hold from the start."""

Copy = tuple[str, str]


class Run:
    """A topic, the deliveries that consumers hold, and the copies whose acks were taken."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.held: list[tuple[str, Delivery]] = []
        self.acked: set[Copy] = set()

    def step(self, name: str, choice: int) -> None:
        """Does one thing, if it can be done."""
        group = GROUPS[choice % len(GROUPS)]
        steps: dict[str, Callable[[], object]] = {
            "send": lambda: self._send(choice, "+0"),
            "send later": lambda: self._send(choice, "+100"),
            "promote": self.queue.promote,
            "read": lambda: self.held.extend((group, d) for d in self.queue.read(group)),
            "sweep": self.queue.sweep,
            "replay": lambda: self.queue.replay(*self.queue.contents().garbage),
            "advance": lambda: self.queue.advance(300),
        }
        if name in steps:
            if name != "replay" or self.queue.contents().garbage:
                steps[name]()
        elif self.held:
            of_group, delivery = self.held[choice % len(self.held)]
            self.settle(name, of_group, delivery)

    def _send(self, choice: int, due: str) -> None:
        # An id that ended before the kill may be alive again after it, so each message has an id of its own.
        id = f"{IDS[choice % len(IDS)][:-1]}{self.queue.now_ms - EPOCH_MS}{IDS[choice % len(IDS)][-1]}"
        with suppress(QueueFull):
            self.queue.send(id, due=due, ttl_ms=150 if choice % 2 else None)

    def settle(self, name: str, group: str, delivery: Delivery) -> None:
        """Acks, nacks or rejects a delivery."""
        if name == "ack":
            if self.queue.ack(delivery) != ["stale"]:
                self.acked.add((delivery.id, group))
        else:
            self.queue.nack(delivery, rejected=name == "reject", delay_ms=50)

    def in_flight(self) -> int:
        """Most copies of a group that are ready or delivered."""
        contents = self.queue.contents()
        counts = Counter(group for (_, group), found in places(contents).items() if {"ready", "delivered"} & set(found))
        return max(counts.values(), default=0)


@dataclass(frozen=True, slots=True)
class Case:
    """What happens before the writes that are lost, meanwhile, after them, and then to the deliveries in hand."""

    groups: int
    kept: list[tuple[str, int]]
    lost: list[tuple[str, int]]
    again: list[tuple[str, int]]
    settled: list[str]
    limits: dict[str, Any]


CASES = st.builds(
    Case,
    st.integers(1, len(GROUPS)),
    STEPS,
    STEPS,
    st.lists(st.tuples(st.sampled_from(("promote", "read", "replay", "advance")), st.integers(0, 5)), max_size=4),
    st.lists(st.sampled_from(("ack", "nack")), max_size=30),
    st.sampled_from(LIMITS),
)


def test_acks_of_lost_deliveries_end_nothing_of_other_groups(redis_url: str, prefix: str) -> None:
    """Promises 2 and 9: what a group has not acked it still has, each copy in one place, and nothing else is left."""

    @settings(max_examples=EXAMPLES, phases=[Phase.explicit, Phase.generate, Phase.shrink])
    @given(case=CASES)
    def check(case: Case) -> None:
        _check(Run(Queue(connection, ShardKeys(prefix, "orders"))), case)

    with Connection(redis_url) as connection:
        check()


def _check(run: Run, case: Case) -> None:
    groups = GROUPS[: case.groups]
    run.queue.restore({})
    run.queue.join(*groups)
    is_paused = "paused" in case.limits
    if not is_paused:
        run.queue.limit(**case.limits)
    for name, choice in case.kept:
        run.step(name, choice % len(groups))
    if is_paused:
        run.queue.limit(**case.limits)
    most = run.in_flight() if is_paused else case.limits.get("max_in_flight")
    before = owed_copies(run.queue.contents(), groups)
    dumps, acked = run.queue.dump(), run.acked.copy()
    for name, choice in case.lost:
        run.step(name, choice % len(groups))
    # Acks that the server has lost with the rest count only if they are heard again.
    run.queue.restore(dumps)
    run.acked = set()
    before_again = len(run.held)
    for name, choice in case.again:
        run.step(name, choice % len(groups))
    newer = run.held[before_again:]
    for name, (group, delivery) in zip(case.settled, run.held[:before_again], strict=False):
        run.settle(name, group, delivery)
    # An entry that is read again is the same delivery, in two hands.
    older = {(group, delivery.entry) for group, delivery in run.held[:before_again]}
    newer = [(group, delivery) for group, delivery in newer if (group, delivery.entry) not in older]
    newer += [(group, delivery) for group in groups for delivery in run.queue.read(group)]
    assert not {(delivery.id, group) for group, delivery in newer} & run.acked, "a delivery after an ack"
    run.acked |= acked
    assert most is None or run.in_flight() <= most, "the limits hold"
    contents = run.queue.contents()
    assert len(contents.records) <= case.limits.get("max_messages", math.inf)
    assert not before - owed_copies(contents, groups) - run.acked, "a copy is lost"
    found = places(contents)
    assert {copy: where for copy, where in found.items() if len(where) != 1} == {}, "each copy is in one place"
    assert {id for id, _ in found} == set(contents.records), "every record has a place, and every place a record"
    assert set(contents.owed) <= set(contents.records), "what is owed has a record"
    assert {copy for copy in contents.failures if split_copy(copy)[1] not in contents.records} == set()


def owed_copies(contents: Contents, groups: Sequence[str]) -> set[Copy]:
    """Which group is still to ack which message, dead letters too."""
    copies = set(places(contents))
    return {
        (id, group)
        for id in contents.records
        for group in groups
        if {(id, group), (id, NO_GROUP)} & copies or copy_of(group, id) in contents.garbage
    }
