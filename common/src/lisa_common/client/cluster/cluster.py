"""A Cluster, for the blocking shell. `router` routes the calls; `async_cluster` is the asyncio twin."""

import select
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import redis.exceptions

from lisa_common.client.address import Address, NodeName
from lisa_common.client.cluster.fanout import STRAGGLE_S, Answer, Part, is_news, may_abandon, no_reply, unblock
from lisa_common.client.cluster.nodes import PATIENCE_S, PROBE_S, QUIET_S, REPEAT_S, Nodes
from lisa_common.client.cluster.router import Router
from lisa_common.client.node import Node
from lisa_common.client.options import Connecting
from lisa_common.errors import LisaError, OutcomeUnknown
from lisa_common.protocol.call import PING, Call

__all__ = ["Cluster"]


class _Probes:
    """Sends a PING to nodes that do not answer calls; for silent nodes repeats it in threads."""

    def __init__(self, router: Router, connect: Callable[[NodeName, float], Node]) -> None:
        self._router = router
        self._connect = connect
        self._threads: dict[NodeName, threading.Thread] = {}
        self._closing = threading.Event()

    def is_silent(self, name: NodeName) -> bool:
        """Whether a node is known to be silent, or does not answer a PING now. An unreachable node is not silent."""
        if self._router.is_silent(name):
            return True
        began = time.monotonic()
        if self._answers(name, PATIENCE_S) or time.monotonic() - began < PATIENCE_S:
            return False
        self._router.mark_silent(name)
        return True

    def ensure_probing(self) -> None:
        """Starts a probe for each silent node without one; a forked process has none of its parent's threads."""
        for name in self._router.silent:
            if name not in self._threads or not self._threads[name].is_alive():
                self._threads[name] = threading.Thread(
                    target=self._probe_until_answered, args=(name,), name="lisa-probe", daemon=True
                )
                self._threads[name].start()

    def _probe_until_answered(self, name: NodeName) -> None:
        while name in self._router.known and not self._answers(name, PROBE_S):
            # Another node may have taken over.
            self._router.mark_failed(name)
            if self._closing.wait(REPEAT_S):
                return
        self._router.mark_answering(name)

    def _answers(self, name: NodeName, patience_s: float) -> bool:
        node = self._connect(name, patience_s)
        try:
            node.ask([PING])
        except LisaError:
            return False
        finally:
            node.close()
        return True

    def close(self) -> None:
        """Ends the threads, soon."""
        self._closing.set()


class Cluster(Nodes[Node]):
    """Connections to the nodes of a Cluster, safe to share among threads; used like `Node`."""

    _node_type = Node

    def __init__(self, address: Address, connecting: Connecting) -> None:
        super().__init__(address, connecting)
        self._probes = _Probes(self._router, self._connect_for_probes)

    def ask(self, calls: Sequence[Call[Any]], meanwhile: Callable[[], object] | None = None) -> list[Any]:
        """Makes calls, each at the node that serves it. Returns for each call its reply, or a LisaError.

        `meanwhile` is called between the calls and their replies. Raises a LisaError where no node has answered.
        """
        if self._router.silent:
            self._probes.ensure_probing()
        routing = self._router.ask(calls)
        try:
            step = next(routing)
            while True:
                work, meanwhile = (None, meanwhile) if step.race else (meanwhile, None)
                step = routing.send(self._race(step.parts) if step.race else self._exchange(step.parts, work))
        except StopIteration as stop:
            replies: list[Any] = stop.value
            return replies

    def _exchange(self, parts: Sequence[Part], meanwhile: Callable[[], object] | None = None) -> list[Answer]:
        """Sends to all nodes before it waits for any."""
        if len(parts) == 1:
            return [self._ask(parts[0], meanwhile)]
        requests: list[_Request] = []
        try:
            requests.extend(map(self._send, parts))
            if meanwhile is not None:
                meanwhile()
            self._await(requests, self._timeout_s)
        finally:
            for request in requests:
                request.give_up()
        return [request.answer or no_reply(request.name) for request in requests]

    def _ask(self, part: Part, meanwhile: Callable[[], object] | None) -> Answer:
        began = time.monotonic()
        try:
            return self._node(part.node).ask(part.calls, meanwhile)
        except LisaError as error:
            self._suspect(part.node, began)
            return error

    def _suspect(self, name: NodeName, began: float) -> None:
        """Checks whether a node that failed slowly is silent."""
        if time.monotonic() - began >= PATIENCE_S:
            self._probes.is_silent(name)

    def _race(self, parts: Sequence[Part]) -> list[Answer]:
        runners: list[_Request] = []
        unblockers: list[_Request] = []
        try:
            runners.extend(self._send(part, race=True) for part in parts)
            # Until the first one ends, every wait is meant.
            _await(runners, self._timeout_s, until=lambda _: True)
            self._await(runners, self._timeout_s, until=is_news)
            unblockers.extend(self._send(part) for part in _unblocking(runners) if self._may_send(part.node))
            self._await([*runners, *unblockers], STRAGGLE_S)
            for unblocker in unblockers:
                self._router.note_unblocked(unblocker.answer)
        finally:
            for request in (*runners, *unblockers):
                request.give_up()
        return [runner.answer or no_reply(runner.name) for runner in runners]

    def _send(self, part: Part, *, race: bool = False) -> "_Request":
        began = time.monotonic()
        request = _Request(self._node(part.node), part, race=race)
        if request.answer is not None:
            self._suspect(part.node, began)
        return request

    def _may_send(self, name: NodeName) -> bool:
        """Whether sending to a node does not wait for a connection to a node that hangs."""
        return self._node(name).sends_at_once or not self._probes.is_silent(name)

    def _await(
        self, requests: Collection["_Request"], wait_s: float, until: Callable[[Answer], bool] = lambda _: False
    ) -> None:
        """Receives answers as `_await` does, but abandons silent nodes once others have answered."""
        deadline = time.monotonic() + wait_s
        while (left := deadline - time.monotonic()) > 0:
            _await(requests, min(left, QUIET_S), until)
            answers = [request.answer for request in requests if request.answer is not None]
            if len(answers) == len(requests) or any(map(until, answers)):
                return
            for request in requests if answers else ():
                if request.answer is None and request.may_abandon and self._probes.is_silent(request.name):
                    request.give_up()

    def close(self) -> None:
        """Closes all connections."""
        self._probes.close()
        for node in self._nodes.values():
            node.close()


class _Request:
    """Calls that were sent to a node, and their answer once it has come.

    In a race it first receives all replies but the last, and then waits for that.
    """

    def __init__(self, node: Node, part: Part, *, race: bool) -> None:
        self.name = part.node
        self.answer: Answer | None = None
        self.may_abandon = may_abandon(part.calls)
        self._node = node
        self._calls = part.calls
        self._race = race
        self._first: list[Any] = []
        self._place = self._attempt(lambda: node.send(part.calls))

    def receive(self) -> None:
        """Waits for the next replies."""
        if self._race and len(self._calls) > 1:
            self._receive_first()
        elif self.answer is None:
            replies = self._attempt(lambda: self._node.receive(self._place, self._calls))
            if replies is not None:
                self.answer = [*self._first, *replies]

    def _receive_first(self) -> None:
        while len(self._calls) > 1 and self.answer is None:
            self._first.append(self._attempt(lambda: self._node.receive_first(self._place)))
            self._calls = self._calls[1:]

    @property
    def client(self) -> int:
        """The client id of a runner's connection; 0, which no client has, if it is unknown."""
        return next((first for first in self._first[:1] if isinstance(first, int)), 0)

    @property
    def is_ready(self) -> bool:
        """Whether a reply has come, or the connection has ended."""
        try:
            return bool(self._place.connection.can_read())
        except (redis.exceptions.RedisError, OSError):
            return True

    def fileno(self) -> int:
        """The descriptor to wait for."""
        descriptor: int = self._place.connection._sock.fileno()  # noqa: SLF001 - the client offers no other way to wait for several
        return descriptor

    def give_up(self) -> None:
        """Ends the request, unless it is answered."""
        if self.answer is None:
            self._node.end(self._place)
            self.answer = no_reply(self.name)

    def _attempt(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except LisaError as error:
            self.answer = error
            return None
        except BaseException:
            # The node has ended its place.
            self.answer = OutcomeUnknown("the call was interrupted")
            raise


def _unblocking(runners: Sequence[_Request]) -> Iterator[Part]:
    """Ends the waits of unanswered runners once the race is over, over one connection to each node."""
    clients: dict[NodeName, list[int]] = defaultdict(list)
    for runner in runners:
        if runner.answer is None and runner.client:
            clients[runner.name].append(runner.client)
    for name, waiting in clients.items():
        yield Part(name, unblock(*waiting))


def _await(requests: Collection[_Request], wait_s: float, until: Callable[[Answer], bool] = lambda _: False) -> None:
    """Receives answers for up to `wait_s` seconds, until all have come or `until` holds for one."""
    deadline = time.monotonic() + wait_s
    while not any(until(request.answer) for request in requests if request.answer is not None):
        waiting = [request for request in requests if request.answer is None]
        left = deadline - time.monotonic()
        if not waiting or left <= 0:
            return
        for request in [request for request in waiting if request.is_ready] or _poll(waiting, left):
            request.receive()


def _poll(waiting: Sequence[_Request], left: float) -> list[_Request]:
    poll, by_descriptor = select.poll(), {request.fileno(): request for request in waiting}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    return [by_descriptor[descriptor] for descriptor, _ in poll.poll(left * 1000)]
