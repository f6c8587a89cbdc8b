"""How calls find their way through a Cluster, without I/O: generators that say whom to ask what, and read the answers.

`cluster` and `async_cluster` do what they say, over blocking and asyncio connections.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import redis.exceptions as redis_errors

from lisa_common.client.address import NodeName
from lisa_common.client.cluster.fanout import Answer, Part, Round, first_error, last, merged
from lisa_common.client.cluster.pipelines import Unit, blocked, fill, one_each, pipeline, place
from lisa_common.client.cluster.slots import (
    block_of,
    owners,
    slot_of,
    slot_of_key,
    split_count,
    split_read,
    with_block,
    without_block,
)
from lisa_common.client.translation import lisa_error, nobody
from lisa_common.client.wire import read_reply
from lisa_common.errors import LisaError, NoFreeConnection, Refused, Unreachable
from lisa_common.protocol.call import Call, command, units
from lisa_common.settings import MAX_CONNECTIONS

__all__ = ["SLOTS", "Router", "Routing"]

T = TypeVar("T")

_REDIRECTIONS = 5
"""How often a call follows a slot that moves, before it is refused for now."""

_WITNESSES = 3
"""How many others are asked whether they answer, where one does not."""

_TURN_MS = 100
"""How long a read waits before it looks again at the slots for which it had no connection to wait with."""

Routing = Generator[Round, Sequence[Answer], T]

SLOTS: Call[list[Any]] = command("CLUSTER", "SLOTS")


class Router:
    """Which node serves which slot, as far as is known, and who failed when last asked."""

    def __init__(self, seeds: Sequence[NodeName], max_connections: int = MAX_CONNECTIONS) -> None:
        self._seeds = seeds
        # Calls that do not wait need connections, too, and so do those that end a wait.
        self._max_waiting = max(1, max_connections * 3 // 4)
        self._races: list[list[NodeName]] = []
        """The nodes at which reads wait now, each as often as it has connections for it."""
        self._owners: dict[int, NodeName] = {}
        self._home = random.choice(seeds)
        self._stale = True
        self._failed: set[NodeName] = set()
        self._silent: set[NodeName] = set()
        """Nodes that hang: they are asked nothing until they answer a probe."""

    @property
    def known(self) -> set[NodeName]:
        """The nodes that serve slots, and those that the URL names."""
        return {*self._owners.values(), *self._seeds}

    @property
    def home(self) -> NodeName:
        """The node for what any node may be asked: always the same one, for as long as it answers."""
        if self._home in self._failed:
            self._home = random.choice(sorted(self.known - self._failed or self.known))
        return self._home

    def node_of(self, key: str) -> NodeName | None:
        """The node that serves a key, None where that is not known."""
        return self._owners.get(slot_of_key(key))

    def failed(self, node: NodeName) -> None:
        """Takes note that a node did not answer: another may have taken over."""
        self._failed.add(node)
        self._stale = True

    def fell_silent(self, node: NodeName) -> None:
        """Takes note that a node hangs: until `answers` its calls fail at once, and nothing of them is done."""
        self._silent.add(node)
        self.failed(node)

    def answers(self, node: NodeName) -> None:
        """Takes note that a node that was silent has answered a probe."""
        self._silent.discard(node)

    def is_silent(self, node: NodeName) -> bool:
        """Whether a node hangs."""
        return node in self._silent

    @property
    def silent(self) -> tuple[NodeName, ...]:
        """The nodes that hang."""
        return tuple(self._silent)

    def others_than(self, node: NodeName) -> list[NodeName]:
        """Some nodes that may tell whether it is this one alone that does not answer."""
        others = sorted(self.known - self._silent - {node})
        return random.sample(others, min(len(others), _WITNESSES))

    def _blame(self, node: NodeName, error: Exception) -> None:
        """Takes note of an error in place of an answer, unless the node was not even asked."""
        if not isinstance(error, NoFreeConnection):
            self.failed(node)

    def ask(self, calls: Sequence[Call[Any]]) -> Routing[list[Any]]:
        """Asks each call of the node that serves its key. Result: replies, and LisaErrors for what has none.

        Raises the first error if no node has answered. A read of several slots is made by itself, and so is a count.
        """
        yield from self._learn()
        if len(calls) == 1:
            if len(reads := split_read(calls[0])) > 1:
                return [(yield from self._read(reads))]
            if len(counts := split_count(calls[0])) > 1:
                return [(yield from self._count(counts))]
        replies = yield from self._make(calls, [Unit(found, slot_of(calls[found[0]])) for found in units(calls)])
        if calls and all(isinstance(reply, LisaError) for reply in replies):
            raise replies[0]
        return replies

    def _learn(self) -> Routing[None]:
        """Learns who serves what, if that may have changed."""
        failures: dict[str, Exception] = {}
        for node in self._informants() if self._stale or not self._owners else ():
            # Whoever comes meanwhile goes by what is known so far, if that is anything.
            self._stale = False
            [answer] = yield Round([Part(node, [SLOTS])])
            asked = command(*SLOTS.args, decode=partial(owners, informant=node))
            reply = answer if isinstance(answer, LisaError) else read_reply(asked, answer[0])
            if not isinstance(reply, Exception):
                self._failed.discard(node)
                self._owners = reply
                return
            self._blame(node, reply)
            failures["{}:{}".format(*node)] = reply
        if failures:
            self._stale = True
            raise nobody("no node of the Cluster answers", failures)

    def _informants(self) -> list[NodeName]:
        known = dict.fromkeys((self.home, *self._owners.values(), *self._seeds))
        answering = [node for node in known if node not in self._silent]
        return sorted(answering or known, key=self._failed.__contains__)

    def _make(self, calls: Sequence[Call[Any]], open_: list[Unit]) -> Routing[list[Any]]:
        replies: list[Any] = [None] * len(calls)
        for _ in range(_REDIRECTIONS):
            by_node = self._by_node(open_, replies)
            parts = [Part(node, pipeline(calls, found)) for node, found in by_node.items()]
            answers = (yield Round(parts)) if parts else ()
            open_, lost = [], list[Unit]()
            for (node, found), answer in zip(by_node.items(), answers, strict=True):
                if isinstance(answer, LisaError):
                    self._blame(node, answer)
                    fill(replies, found, answer)
                    is_away = isinstance(answer, Unreachable) and not isinstance(answer, NoFreeConnection)
                    lost += found if is_away else ()
                else:
                    self._failed.discard(node)
                    place(replies, found, answer)
                    open_ += [unit for unit in found if self._is_redirected(unit, node, replies)]
            if lost:
                open_ += yield from self._rescue(lost)
            if not open_:
                return replies
        fill(replies, open_, _lost())
        return replies

    def _by_node(self, open_: Sequence[Unit], replies: list[Any]) -> dict[NodeName, list[Unit]]:
        found = defaultdict(list)
        for unit in open_:
            node = self._node_of(unit)
            if node in self._silent:
                fill(replies, [unit], Unreachable("node {}:{} does not answer".format(*node)))
            elif node:
                found[node].append(unit)
            else:
                self._stale = True
                refusal = Refused(f"Redis refuses for now: no node of the Cluster serves slot {unit.slot}")
                fill(replies, [unit], refusal)
        return found

    def _is_redirected(self, unit: Unit, node: NodeName, replies: list[Any]) -> bool:
        """Whether a unit is to be made elsewhere, as nothing of it was done here. Notes what its reply tells."""
        reply = replies[unit.positions[0]]
        if isinstance(reply, redis_errors.AskError):
            there = (reply.host or node[0], reply.port)
            if isinstance(reply, redis_errors.MovedError):
                self._owners[unit.slot or 0] = there
                self._stale = True
                unit.asking = None
            else:
                unit.asking = there
            return True
        if isinstance(reply, redis_errors.ClusterDownError | redis_errors.ReadOnlyError):
            self._stale = True
        if isinstance(reply, redis_errors.ClusterDownError | redis_errors.TryAgainError):
            # Not for `Call.decode` to judge, as it says nothing of the key.
            replies[unit.positions[0]] = lisa_error(reply)
        return False

    def _rescue(self, lost: Sequence[Unit]) -> Routing[list[Unit]]:
        """Of units that were certainly not made, those that another node takes by now."""
        with suppress(LisaError):
            yield from self._learn()
            for unit in lost:
                unit.asking = None
            return [unit for unit in lost if self._node_of(unit) not in (None, *self._failed)]
        return []

    def _node_of(self, unit: Unit) -> NodeName | None:
        return unit.asking or (self.home if unit.slot is None else self._owners.get(unit.slot))

    def _count(self, counts: Mapping[int, Call[Any]]) -> Routing[Any]:
        """The sum of counts in several slots, or the first error among them."""
        replies = yield from self._make(list(counts.values()), one_each(counts))
        return first_error(replies) or sum(replies)

    def _read(self, reads: Mapping[int, Call[Any]]) -> Routing[Any]:
        """Reads several slots, each by a call of its own, as a Cluster refuses a call that spans any two.

        First without waiting; if nothing has come, all that can be asked wait at once, until something comes for one of
        them. Where there are more slots than connections to wait with, some wait, and all are looked at again every
        100 ms. No reply is left behind, as its entries would be pending until their leases run out.
        """
        calls = list(reads.values())
        at_once = [without_block(call) for call in calls]
        reading, left_ms, redirections = one_each(reads), block_of(calls[0]), 0
        while redirections < _REDIRECTIONS:
            replies = yield from self._make(at_once, reading)
            # Of nodes that are away nothing comes: the others are waited for all the same.
            idle = [unit for unit in reading if replies[unit.positions[0]] is None]
            if left_ms is None or not idle or any(map(_is_answer, replies)):
                return merged(replies)
            waiting = self._may_wait(idle)
            is_last = len(waiting) == len(idle) or left_ms <= _TURN_MS
            turn_ms = left_ms if is_last else _TURN_MS
            # The others wait next, so that no topic has the worse of it for good.
            later = {unit.positions.start for unit in waiting}
            reading.sort(key=lambda unit: unit.positions.start in later)
            turn = [with_block(call, turn_ms) for call in calls]
            if (yield from self._race(waiting, turn, replies)):
                redirections += 1
                continue
            left_ms -= turn_ms
            if is_last or any(map(_is_answer, replies)):
                return merged(replies)
        raise _lost()

    def _may_wait(self, reading: Sequence[Unit]) -> list[Unit]:
        """Of units that each need a connection of their own, those for which their nodes have one."""
        taken = Counter(node for race in self._races for node in race)
        waiting = []
        for unit in reading:
            node = self._node_of(unit) or self.home
            taken[node] += 1
            if taken[node] <= self._max_waiting:
                waiting.append(unit)
        return waiting or list(reading[:1])

    def _race(self, waiting: Sequence[Unit], calls: Sequence[Call[Any]], replies: list[Any]) -> Routing[bool]:
        """Has reads wait until one brings something. Result: whether nothing has come as slots are elsewhere by now."""
        parts = [Part(self._node_of(unit) or self.home, blocked(unit, calls)) for unit in waiting]
        nodes = [part.node for part in parts]
        self._races.append(nodes)
        try:
            answers = yield Round(parts, race=True)
        finally:
            self._races.remove(nodes)
        redirected = []
        for unit, part, answer in zip(waiting, parts, answers, strict=True):
            replies[unit.positions[0]] = reply = last(answer)
            if isinstance(reply, LisaError):
                self._blame(part.node, reply)
            redirected.append(self._is_redirected(unit, part.node, replies))
        return any(redirected) and not any(isinstance(reply, list) for reply in replies)


def _is_answer(reply: Any) -> bool:
    """Whether a reply to a read is to be told at once, as there is something, or something wrong with its topics."""
    return reply is not None and not isinstance(reply, LisaError)


def _lost() -> Refused:
    return Refused(f"Redis refuses for now: {_REDIRECTIONS} redirections led to no node that serves the slot")
