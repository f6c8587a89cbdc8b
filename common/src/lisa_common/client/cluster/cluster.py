"""A Cluster, for the blocking shell. `router` knows the way; `async_cluster` is the twin."""

import select
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import redis.exceptions

from lisa_common.client.address import Address, NodeName
from lisa_common.client.cluster.fanout import STRAGGLE_S, Answer, Part, is_news, may_be_left, stray, unblock
from lisa_common.client.cluster.probes import Probes
from lisa_common.client.cluster.router import Router
from lisa_common.client.cluster.silence import LOOK_S, PATIENCE_S
from lisa_common.client.node import Node
from lisa_common.errors import LisaError, OutcomeUnknown
from lisa_common.protocol.call import Call
from lisa_common.settings import MAX_CONNECTIONS

__all__ = ["Cluster"]


class Cluster:
    """Connections to the nodes of a Cluster, safe to share among threads. It is asked as `Node` is."""

    def __init__(
        self, address: Address, *, name: str, timeout_s: float, max_connections: int = MAX_CONNECTIONS
    ) -> None:
        self._address = address
        self._max_connections = address.options.get("max_connections", max_connections)
        self._name = name
        self._timeout_s = timeout_s
        self._router = Router(address.nodes, self._max_connections)
        self._nodes: dict[NodeName, Node] = {}
        self._probes = Probes(self._router, self._connect)
        self._node(address.nodes[0])  # which checks the options of the URL

    def ask(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Makes calls, each at the node that serves it. Result: replies, and LisaErrors for what nobody has answered.

        Raises a LisaError where no node has answered.
        """
        if self._router.silent:
            self._probes.go_on()
        routing = self._router.ask(calls)
        try:
            step = next(routing)
            while True:
                step = routing.send(self._race(step.parts) if step.race else self._exchange(step.parts))
        except StopIteration as stop:
            replies: list[Any] = stop.value
            return replies

    def _exchange(self, parts: Sequence[Part]) -> list[Answer]:
        """Asks all nodes before it waits for any."""
        if len(parts) == 1:
            return [self._ask(parts[0])]
        under_way: list[_UnderWay] = []
        try:
            under_way.extend(map(self._send, parts))
            self._await(under_way, self._timeout_s)
        finally:
            for sent in under_way:
                sent.give_up()
        return [sent.answer or stray(sent.name) for sent in under_way]

    def _ask(self, part: Part) -> Answer:
        began = time.monotonic()
        try:
            return self._node(part.node).ask(part.calls)
        except LisaError as error:
            self._suspect(part.node, began)
            return error

    def _suspect(self, name: NodeName, began: float) -> None:
        """Looks whether a node is silent that has taken its time to fail."""
        if time.monotonic() - began >= PATIENCE_S:
            self._probes.is_silent(name)

    def _race(self, parts: Sequence[Part]) -> list[Answer]:
        runners: list[_UnderWay] = []
        tellers: list[_UnderWay] = []
        try:
            runners.extend(self._send(part, race=True) for part in parts)
            # Until the first has ended nobody is waited for in vain.
            _await(runners, self._timeout_s, until=lambda _: True)
            self._await(runners, self._timeout_s, until=is_news)
            tellers.extend(self._send(part) for part in _unblocking(runners) if self._may_send(part.node))
            self._await([*runners, *tellers], STRAGGLE_S)
        finally:
            for either in (*runners, *tellers):
                either.give_up()
        return [runner.answer or stray(runner.name) for runner in runners]

    def _send(self, part: Part, *, race: bool = False) -> "_UnderWay":
        began = time.monotonic()
        sent = _UnderWay(self._node(part.node), part, race=race)
        if sent.answer is not None:
            self._suspect(part.node, began)
        return sent

    def _may_send(self, name: NodeName) -> bool:
        """Whether a node need not be waited for before anything is sent to it, in vain where it hangs."""
        return self._node(name).sends_at_once or not self._probes.is_silent(name)

    def _await(
        self, sent: Collection["_UnderWay"], wait_s: float, until: Callable[[Answer], bool] = lambda _: False
    ) -> None:
        """Receives answers as `_await` does, but leaves those of nodes that are silent while others have answered."""
        deadline = time.monotonic() + wait_s
        while (left := deadline - time.monotonic()) > 0:
            _await(sent, min(left, LOOK_S), until)
            answers = [one.answer for one in sent if one.answer is not None]
            if len(answers) == len(sent) or any(map(until, answers)):
                return
            for one in [one for one in sent if answers and one.answer is None and one.may_be_left]:
                if self._probes.is_silent(one.name):
                    one.give_up()

    def _node(self, name: NodeName) -> Node:
        known = self._nodes.get(name)
        return known or self._nodes.setdefault(name, self._connect(name, self._timeout_s))

    def _connect(self, name: NodeName, timeout_s: float) -> Node:
        return Node(self._address.of(name), name=self._name, timeout_s=timeout_s, max_connections=self._max_connections)

    def close(self) -> None:
        """Closes all connections."""
        self._probes.close()
        for node in self._nodes.values():
            node.close()


class _UnderWay:
    """Calls that were sent to a node, until there is an answer to them.

    Of a part of a race all replies but the last, for which it waits, are received first.
    """

    def __init__(self, node: Node, part: Part, *, race: bool) -> None:
        self.name = part.node
        self.answer: Answer | None = None
        self.may_be_left = may_be_left(part.calls)
        self._node = node
        self._calls = part.calls
        self._race = race
        self._first: list[Any] = []
        self._connection = self._tried(lambda: node.send(part.calls))

    def receive(self) -> None:
        """Waits for the replies that are to come next."""
        if self._race and len(self._calls) > 1:
            self._receive_first()
        elif self.answer is None:
            replies = self._tried(lambda: self._node.receive(self._connection, self._calls))
            if replies is not None:
                self.answer = [*self._first, *replies]

    def _receive_first(self) -> None:
        while len(self._calls) > 1 and self.answer is None:
            self._first.append(self._tried(lambda: self._node.receive_first(self._connection)))
            self._calls = self._calls[1:]

    @property
    def client(self) -> int:
        """The id of a runner's client, 0 if it is not known: there is none of that id."""
        return next((first for first in self._first[:1] if isinstance(first, int)), 0)

    @property
    def is_ready(self) -> bool:
        """Whether a reply has come, or the connection has ended."""
        try:
            return bool(self._connection.can_read())
        except (redis.exceptions.RedisError, OSError):
            return True

    def fileno(self) -> int:
        """The descriptor to wait for."""
        descriptor: int = self._connection._sock.fileno()  # noqa: SLF001 - the client offers no other way to wait for several
        return descriptor

    def give_up(self) -> None:
        """Ends what has no answer yet."""
        if self.answer is None:
            self._node.give_up(self._connection)
            self.answer = stray(self.name)

    def _tried(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except LisaError as error:
            self.answer = error
            return None
        except BaseException:
            # The node has taken the connection back.
            self.answer = OutcomeUnknown("the call was broken off")
            raise


def _unblocking(runners: Sequence[_UnderWay]) -> Iterator[Part]:
    """Ends the waits of those that still wait though the race is over, over one connection to each node."""
    clients: dict[NodeName, list[int]] = defaultdict(list)
    for runner in runners:
        if runner.answer is None and runner.client:
            clients[runner.name].append(runner.client)
    for name, waiting in clients.items():
        yield Part(name, unblock(*waiting))


def _await(sent: Collection[_UnderWay], wait_s: float, until: Callable[[Answer], bool] = lambda _: False) -> None:
    """Receives answers as they come, for so many seconds, until all are there or one is of that kind."""
    deadline = time.monotonic() + wait_s
    while not any(until(one.answer) for one in sent if one.answer is not None):
        waiting = [one for one in sent if one.answer is None]
        left = deadline - time.monotonic()
        if not waiting or left <= 0:
            return
        for one in [one for one in waiting if one.is_ready] or _poll(waiting, left):
            one.receive()


def _poll(waiting: Sequence[_UnderWay], left: float) -> list[_UnderWay]:
    poll, by_descriptor = select.poll(), {one.fileno(): one for one in waiting}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    return [by_descriptor[descriptor] for descriptor, _ in poll.poll(left * 1000)]
