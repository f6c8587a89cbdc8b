"""Routes calls to the nodes of a Cluster, without I/O: generators yield requests to nodes, and are sent the answers.

`cluster` and `async_cluster` carry the requests out over blocking and asyncio connections.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import redis.exceptions as redis_errors

from lisa_common.client.address import NodeName
from lisa_common.client.cluster.fanout import (
    CLIENT_ID,
    Answer,
    Fanout,
    Part,
    awaited_reply,
    first_error,
    merge_reads,
    silent,
)
from lisa_common.client.cluster.slots import (
    block_of,
    guarded,
    owners,
    slot_of,
    slot_of_key,
    split_count,
    split_read,
    with_block,
    without_block,
)
from lisa_common.client.refusals import Refusals
from lisa_common.client.translation import lisa_error, no_answer
from lisa_common.client.wire import read_reply, refused
from lisa_common.errors import LisaError, NoFreeConnection, Refused, Unreachable
from lisa_common.model.needs import Optional
from lisa_common.protocol.call import Call, command, units
from lisa_common.settings import MAX_CONNECTIONS

__all__ = ["SLOTS", "Router", "Routing"]

_ASKING: Call[bytes] = command("ASKING")


@dataclass(slots=True)
class _Unit:
    """Calls that must stay together, by position; `slot` is None if none of them has a key."""

    positions: range
    slot: int | None
    asking: NodeName | None = None
    """The node that already has the keys of a slot that is moving."""


def _unit_per_slot(slots: Iterable[int]) -> list[_Unit]:
    """Units of one call for each slot."""
    return [_Unit(range(at, at + 1), slot) for at, slot in enumerate(slots)]


def _pipeline(calls: Sequence[Call[Any]], units: Iterable[_Unit]) -> list[Call[Any]]:
    """The calls to one node for these units, in order."""
    sequence: list[Call[Any]] = []
    for unit in units:
        sequence += (_ASKING,) if unit.asking else ()
        sequence += [guarded(calls[at]) for at in unit.positions]
    return sequence


def _place(replies: list[Any], units: Iterable[_Unit], answer: Sequence[Any]) -> None:
    """Puts the replies to a pipeline at the positions of their calls."""
    rest = iter(answer)
    for unit in units:
        if unit.asking:
            next(rest)
        for at in unit.positions:
            replies[at] = next(rest)


def _fill(replies: list[Any], units: Iterable[_Unit], error: LisaError) -> None:
    """Puts an error at the positions of these units' calls."""
    for unit in units:
        for at in unit.positions:
            replies[at] = error


def _blocked(unit: _Unit, calls: Sequence[Call[Any]], *, names: bool) -> list[Call[Any]]:
    """Returns the calls to a connection that waits for this unit.

    With `names`, the first reply is the connection's client id. Another connection needs it to end the wait.
    """
    return [*[CLIENT_ID] * names, *_pipeline(calls, [unit])]


T = TypeVar("T")

_REDIRECTIONS = 5
"""Most redirections that a call follows before it is refused for now."""

_WITNESSES = 3
"""How many other nodes are probed when one does not answer."""

_TURN_MS = 100
"""Time after which a read looks again at the slots that got no connection to wait on."""

Routing = Generator[Fanout, Sequence[Answer], T]

SLOTS: Call[list[Any]] = command("CLUSTER", "SLOTS")


class Router:
    """Knows which node serves which slot, and which nodes failed when last asked."""

    def __init__(
        self, seeds: Sequence[NodeName], max_connections: int = MAX_CONNECTIONS, refusals: Refusals | None = None
    ) -> None:
        self._seeds = seeds
        self._refusals = refusals or Refusals()
        # Leaves connections for calls that do not wait, and for calls that end a wait.
        self._max_waiting = max(1, max_connections * 3 // 4)
        self._races: list[list[NodeName]] = []
        """For each race under way its nodes, one per waiting connection."""
        self._owners: dict[int, NodeName] = {}
        self._home = random.choice(seeds)
        self._stale = True
        self._failed: set[NodeName] = set()
        self._silent: set[NodeName] = set()
        """Nodes that hang: they get no calls until they answer a probe."""

    @property
    def known(self) -> set[NodeName]:
        """The nodes that serve slots, and those that the URL names."""
        return {*self._owners.values(), *self._seeds}

    @property
    def home(self) -> NodeName:
        """The node for calls that any node may serve: the same one for as long as it answers."""
        if self._home in self._failed:
            self._home = random.choice(sorted(self.known - self._failed or self.known))
        return self._home

    def node_of(self, key: str) -> NodeName | None:
        """The node that serves a key, None if unknown."""
        return self._owners.get(slot_of_key(key))

    def mark_failed(self, node: NodeName) -> None:
        """Notes that a node did not answer: another may have taken over."""
        self._failed.add(node)
        self._stale = True

    def mark_silent(self, node: NodeName) -> None:
        """Notes that a node hangs: until `mark_answering` its calls fail at once, and are not carried out."""
        self._silent.add(node)
        self.mark_failed(node)

    def mark_answering(self, node: NodeName) -> None:
        """Notes that a silent node has answered a probe."""
        self._silent.discard(node)

    def is_silent(self, node: NodeName) -> bool:
        """Whether a node hangs."""
        return node in self._silent

    @property
    def silent(self) -> tuple[NodeName, ...]:
        """The nodes that hang."""
        return tuple(self._silent)

    def witnesses(self, node: NodeName) -> list[NodeName]:
        """Some other nodes, whose answers show whether only this one does not answer."""
        others = sorted(self.known - self._silent - {node})
        return random.sample(others, min(len(others), _WITNESSES))

    def note_unblocked(self, answer: Answer | None) -> None:
        """Takes the answer to `unblock`."""
        if isinstance(answer, list) and (refusal := refused(answer[1:])):
            self._refusals.note(Optional.UNBLOCK, refusal)

    def _note_failure(self, node: NodeName, error: Exception) -> None:
        """Notes an error in place of an answer, unless the node was not even asked."""
        if not isinstance(error, NoFreeConnection):
            self.mark_failed(node)

    def ask(self, calls: Sequence[Call[Any]]) -> Routing[list[Any]]:
        """Sends each call to the node that serves its key. Returns for each call its reply, or a LisaError.

        Raises the first error if no node has answered. A read or count of several slots must be the only call.
        """
        yield from self._learn()
        if len(calls) == 1:
            if len(reads := split_read(calls[0])) > 1:
                return [(yield from self._read(reads))]
            if len(counts := split_count(calls[0])) > 1:
                return [(yield from self._count(counts))]
        replies = yield from self._make(calls, [_Unit(unit, slot_of(calls[unit[0]])) for unit in units(calls)])
        if calls and all(isinstance(reply, LisaError) for reply in replies):
            raise replies[0]
        return replies

    def _learn(self) -> Routing[None]:
        """Reads which node serves which slot, if that may have changed."""
        failures: dict[str, Exception] = {}
        for node in self._informants() if self._stale or not self._owners else ():
            # Other callers meanwhile use what is known so far.
            self._stale = False
            [answer] = yield Fanout([Part(node, [SLOTS])])
            call = command(*SLOTS.args, decode=partial(owners, informant=node))
            reply = answer if isinstance(answer, LisaError) else read_reply(call, answer[0])
            if not isinstance(reply, Exception):
                self._failed.discard(node)
                self._owners = reply
                return
            self._note_failure(node, reply)
            failures["{}:{}".format(*node)] = reply
        if failures:
            self._stale = True
            raise no_answer("no node of the Cluster answers", failures)

    def _informants(self) -> list[NodeName]:
        known = dict.fromkeys((self.home, *self._owners.values(), *self._seeds))
        answering = [node for node in known if node not in self._silent]
        return sorted(answering or known, key=self._failed.__contains__)

    def _make(self, calls: Sequence[Call[Any]], open_: list[_Unit]) -> Routing[list[Any]]:
        replies: list[Any] = [None] * len(calls)
        for _ in range(_REDIRECTIONS):
            by_node = self._by_node(open_, replies)
            parts = [Part(node, _pipeline(calls, node_units)) for node, node_units in by_node.items()]
            answers = (yield Fanout(parts)) if parts else ()
            open_, undone = [], list[_Unit]()
            for (node, node_units), answer in zip(by_node.items(), answers, strict=True):
                if isinstance(answer, LisaError):
                    self._note_failure(node, answer)
                    _fill(replies, node_units, answer)
                    is_away = isinstance(answer, Unreachable) and not isinstance(answer, NoFreeConnection)
                    undone += node_units if is_away else ()
                else:
                    self._failed.discard(node)
                    _place(replies, node_units, answer)
                    open_ += [unit for unit in node_units if self._is_redirected(unit, node, replies)]
            if undone:
                open_ += yield from self._reroute(undone)
            if not open_:
                return replies
        _fill(replies, open_, _too_many_redirections())
        return replies

    def _by_node(self, open_: Sequence[_Unit], replies: list[Any]) -> dict[NodeName, list[_Unit]]:
        by_node = defaultdict(list)
        for unit in open_:
            node = self._node_of(unit)
            if node in self._silent:
                _fill(replies, [unit], silent(node))
            elif node:
                by_node[node].append(unit)
            else:
                self._stale = True
                refusal = Refused(f"Redis refuses for now: no node of the Cluster serves slot {unit.slot}")
                _fill(replies, [unit], refusal)
        return by_node

    def _is_redirected(self, unit: _Unit, node: NodeName, replies: list[Any]) -> bool:
        """Whether a unit must go to another node, as this one did nothing. Notes the node that its reply names."""
        reply = replies[unit.positions[0]]
        if isinstance(reply, redis_errors.AskError):
            target = (reply.host or node[0], reply.port)
            if isinstance(reply, redis_errors.MovedError):
                self._owners[unit.slot or 0] = target
                self._stale = True
                unit.asking = None
            else:
                unit.asking = target
            return True
        if isinstance(reply, redis_errors.ClusterDownError | redis_errors.ReadOnlyError):
            self._stale = True
        if isinstance(reply, redis_errors.ClusterDownError | redis_errors.TryAgainError):
            # `Call.decode` must not see it, as it does not concern the key.
            replies[unit.positions[0]] = lisa_error(reply)
        return False

    def _reroute(self, undone: Sequence[_Unit]) -> Routing[list[_Unit]]:
        """Of units that were certainly not carried out, those that another node now serves."""
        with suppress(LisaError):
            yield from self._learn()
            for unit in undone:
                unit.asking = None
            return [unit for unit in undone if self._node_of(unit) not in (None, *self._failed)]
        return []

    def _node_of(self, unit: _Unit) -> NodeName | None:
        return unit.asking or (self.home if unit.slot is None else self._owners.get(unit.slot))

    def _count(self, counts: Mapping[int, Call[Any]]) -> Routing[Any]:
        """The sum of counts in several slots, or the first error among them."""
        replies = yield from self._make(list(counts.values()), _unit_per_slot(counts))
        return first_error(replies) or sum(replies)

    def _read(self, reads: Mapping[int, Call[Any]]) -> Routing[Any]:
        """Reads several slots, each by its own call, as a Cluster refuses a call that spans two.

        Reads first without waiting. If nothing has come, reads wait at all slots at once until one gets entries. With
        more slots than connections to wait on, some slots wait, and all are read again every 100 ms. No reply may be
        dropped: its entries would be pending until their leases run out.
        """
        calls = list(reads.values())
        at_once = [without_block(call) for call in calls]
        reading, left_ms, redirections = _unit_per_slot(reads), block_of(calls[0]), 0
        while redirections < _REDIRECTIONS:
            replies = yield from self._make(at_once, reading)
            # Nothing comes from nodes that are away; wait for the others all the same.
            idle = [unit for unit in reading if replies[unit.positions[0]] is None]
            if left_ms is None or not idle or any(map(_is_answer, replies)):
                return merge_reads(replies)
            waiting = self._may_wait(idle)
            # Without the right to end waits, all must be short.
            is_last = (len(waiting) == len(idle) and Optional.UNBLOCK not in self._refusals) or left_ms <= _TURN_MS
            turn_ms = left_ms if is_last else _TURN_MS
            # The others wait next, so that no topic is always last.
            later = {unit.positions.start for unit in waiting}
            reading.sort(key=lambda unit: unit.positions.start in later)
            turn = [with_block(call, turn_ms) for call in calls]
            if (yield from self._race(waiting, turn, replies)):
                redirections += 1
                continue
            left_ms -= turn_ms
            if is_last or any(map(_is_answer, replies)):
                return merge_reads(replies)
        raise _too_many_redirections()

    def _may_wait(self, reading: Sequence[_Unit]) -> list[_Unit]:
        """Those units for which their nodes have a connection to wait on."""
        waits = Counter(node for race in self._races for node in race)
        waiting = []
        for unit in reading:
            node = self._node_of(unit) or self.home
            waits[node] += 1
            if waits[node] <= self._max_waiting:
                waiting.append(unit)
        return waiting or list(reading[:1])

    def _race(self, waiting: Sequence[_Unit], calls: Sequence[Call[Any]], replies: list[Any]) -> Routing[bool]:
        """Lets reads wait until one gets entries. Returns whether none has, as slots have moved to other nodes."""
        names = Optional.UNBLOCK not in self._refusals
        parts = [Part(self._node_of(unit) or self.home, _blocked(unit, calls, names=names)) for unit in waiting]
        nodes = [part.node for part in parts]
        self._races.append(nodes)
        try:
            answers = yield Fanout(parts, race=True)
        finally:
            self._races.remove(nodes)
        redirected = []
        for unit, part, answer in zip(waiting, parts, answers, strict=True):
            if names and isinstance(answer, list) and (refusal := refused(answer[:1])):
                self._refusals.note(Optional.UNBLOCK, refusal)
            replies[unit.positions[0]] = reply = awaited_reply(answer)
            if isinstance(reply, LisaError):
                self._note_failure(part.node, reply)
            redirected.append(self._is_redirected(unit, part.node, replies))
        return any(redirected) and not any(isinstance(reply, list) for reply in replies)


def _is_answer(reply: Any) -> bool:
    """Whether a reply to a read ends it at once: with entries, or with an error of its topics."""
    return reply is not None and not isinstance(reply, LisaError)


def _too_many_redirections() -> Refused:
    return Refused(f"Redis refuses for now: {_REDIRECTIONS} redirections led to no node that serves the slot")
