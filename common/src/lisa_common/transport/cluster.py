"""A Cluster, for the blocking shell. `routes` knows the way; `aio_cluster` is the twin."""

import select
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Any

import redis.exceptions

from lisa_common.call import Call
from lisa_common.errors import LisaError, OutcomeUnknown
from lisa_common.transport.address import Address, NodeName
from lisa_common.transport.lending import MAX_CONNECTIONS
from lisa_common.transport.node import Node
from lisa_common.transport.rounds import STRAGGLE_S, Answer, Part, is_news, stray, unblock
from lisa_common.transport.routes import Routes

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
        self._routes = Routes(address.nodes, self._max_connections)
        self._nodes: dict[NodeName, Node] = {}
        self._node(address.nodes[0])  # which checks the options of the URL

    def ask(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Makes calls, each at the node that serves it. Result: replies, and LisaErrors for what nobody has answered.

        Raises a LisaError where no node has answered.
        """
        routing = self._routes.ask(calls)
        try:
            step = next(routing)
            while True:
                step = routing.send(self._race(step.parts) if step.race else self._exchange(step.parts))
        except StopIteration as stop:
            replies: list[Any] = stop.value
            return replies

    def _exchange(self, parts: Sequence[Part]) -> list[Answer]:
        """Asks all nodes before it waits for any."""
        under_way: list[_UnderWay] = []
        try:
            under_way.extend(_UnderWay(self._node(part.node), part.calls) for part in parts)
            for sent in under_way:
                sent.receive()
        finally:
            for sent in under_way:
                sent.give_up()
        return [sent.answer or stray(part.node) for sent, part in zip(under_way, parts, strict=True)]

    def _race(self, parts: Sequence[Part]) -> list[Answer]:
        runners: list[_UnderWay] = []
        tellers: list[_UnderWay] = []
        try:
            runners.extend(_UnderWay(self._node(part.node), part.calls) for part in parts)
            for runner in runners:
                runner.receive_first()
            _await(runners, self._timeout_s, until=is_news)
            for node, clients in _still_waiting(runners).items():
                tellers.append(_UnderWay(node, unblock(*clients)))
            _await([*runners, *tellers], STRAGGLE_S)
        finally:
            for either in (*runners, *tellers):
                either.give_up()
        return [runner.answer or stray(part.node) for runner, part in zip(runners, parts, strict=True)]

    def _node(self, name: NodeName) -> Node:
        known = self._nodes.get(name)
        return known or self._nodes.setdefault(
            name,
            Node(
                self._address.of(name),
                name=self._name,
                timeout_s=self._timeout_s,
                max_connections=self._max_connections,
            ),
        )

    def close(self) -> None:
        """Closes all connections."""
        for node in self._nodes.values():
            node.close()


class _UnderWay:
    """Calls that were sent to a node, until there is an answer to them."""

    def __init__(self, node: Node, calls: Sequence[Call[Any]]) -> None:
        self.node = node
        self.answer: Answer | None = None
        self._calls = calls
        self._first: list[Any] = []
        self._connection = self._tried(lambda: node.send(calls))

    def receive(self) -> None:
        """Waits for all replies that are still to come."""
        if self.answer is None:
            replies = self._tried(lambda: self.node.receive(self._connection, self._calls))
            if replies is not None:
                self.answer = [*self._first, *replies]

    def receive_first(self) -> None:
        """Waits for all replies but the last, which is another matter in a race."""
        while len(self._calls) > 1 and self.answer is None:
            self._first.append(self._tried(lambda: self.node.receive_first(self._connection)))
            self._calls = self._calls[1:]

    @property
    def client(self) -> int:
        """The id of a runner's client, 0 if it is not known: there is none of that id."""
        return self._first[0] if isinstance(self._first[0], int) else 0

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
            self.node.give_up(self._connection)

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


def _still_waiting(runners: Sequence[_UnderWay]) -> dict[Node, list[int]]:
    """The clients that wait though the race is over, by node: to tell them takes one connection to each."""
    by_node: dict[Node, list[int]] = defaultdict(list)
    for runner in runners:
        if runner.answer is None:
            by_node[runner.node].append(runner.client)
    return by_node


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
