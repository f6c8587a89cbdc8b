"""A Cluster, for the asyncio shell. `router` routes the calls; `cluster` is the blocking twin."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from lisa_common.client.address import Address, NodeName
from lisa_common.client.async_node import AsyncNode
from lisa_common.client.async_tasks import cancel_all
from lisa_common.client.cluster.fanout import STRAGGLE_S, Answer, Part, is_news, may_abandon, no_reply, silent, unblock
from lisa_common.client.cluster.nodes import PATIENCE_S, PROBE_S, QUIET_S, REPEAT_S, Nodes
from lisa_common.client.cluster.router import SLOTS, Router
from lisa_common.client.cluster.slots import members
from lisa_common.client.options import Connecting
from lisa_common.client.translation import lisa_error
from lisa_common.errors import LisaError
from lisa_common.model.keys import ShardKeys
from lisa_common.protocol.call import PING, Call

__all__ = ["AsyncCluster"]

T = TypeVar("T")

_STEPS = 4
"""Parts of a wait: an event loop that was held up misses only one of them."""


class _Watch:
    """Watches the calls under way at one node, and whether the node answers.

    While calls wait and none is answered, it sends the node a PING on a separate connection. A node that sends nothing
    there, though other nodes answer, is silent: its calls are abandoned, and no more are made, until it answers a later
    PING.
    """

    def __init__(
        self, name: NodeName, router: Router, probe: AsyncNode, others_answer: Callable[[], Awaitable[bool]]
    ) -> None:
        self._name = name
        self._router = router
        self._probe = probe
        self._others_answer = others_answer
        self._under_way = 0
        self._quiet_since = 0.0
        """When a call ended, the first one began, or a PING was answered; by the event loop's clock."""
        self._scopes: set[asyncio.Timeout] = set()
        """Scopes of the calls to abandon once the node is silent."""
        self._timer: asyncio.TimerHandle | None = None
        self._check: asyncio.Task[None] | None = None

    async def run(self, request: Awaitable[T], *, may_abandon: bool) -> T:
        """Awaits a request. Raises OutcomeUnknown when it abandons the request because the node is silent."""
        clock = asyncio.get_running_loop().time
        if not self._under_way:
            self._quiet_since = clock()
        self._under_way += 1
        if self._timer is None:
            self._schedule_check()
        scope = asyncio.timeout(None)
        try:
            async with scope:
                if may_abandon:
                    self._scopes.add(scope)
                return await request
        except TimeoutError:
            if scope.expired():
                raise no_reply(self._name) from None
            raise
        finally:
            self._scopes.discard(scope)
            self._under_way -= 1
            self._quiet_since = clock()

    async def ping(self) -> bool:
        """Whether the node answers a PING, even with an error."""
        try:
            await self._probe.ask([PING])
        except LisaError:
            return False
        self._quiet_since = asyncio.get_running_loop().time()
        return True

    def _schedule_check(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(max(self._quiet_since, loop.time() - QUIET_S / 2) + QUIET_S, self._check_quiet)

    def _check_quiet(self) -> None:
        self._timer = None
        if not self._under_way:
            return
        is_quiet = asyncio.get_running_loop().time() - self._quiet_since >= QUIET_S
        if is_quiet and (self._check is None or self._check.done()):
            self._check = asyncio.create_task(self._check_node())
        self._schedule_check()

    async def _check_node(self) -> None:
        ping = asyncio.create_task(self.ping())
        try:
            await self._wait(ping)
            # A failed PING is not silence: the calls will meet the same error.
            if ping.done() or not await self._others_answer() or ping.done():
                return
            self._router.mark_silent(self._name)
            for scope in tuple(self._scopes):
                scope.reschedule(asyncio.get_running_loop().time())
            await self._probe_until_answered(ping)
        finally:
            await cancel_all(ping)

    async def _wait(self, ping: "asyncio.Task[bool]") -> None:
        """Waits for a PING for as long as the node sends anything, as in the round trips that open its connection."""
        left, arrived_at = _STEPS, self._probe.arrived_at
        while left and not ping.done():
            await asyncio.wait((ping,), timeout=PATIENCE_S / _STEPS)
            left -= 1
            if self._probe.arrived_at > arrived_at:
                left, arrived_at = _STEPS, self._probe.arrived_at

    async def _probe_until_answered(self, ping: "asyncio.Task[bool]") -> None:
        try:
            while self._name in self._router.known:
                await asyncio.wait((ping,), timeout=REPEAT_S)
                if ping.done():
                    if ping.result():
                        return
                    await asyncio.sleep(REPEAT_S)
                    ping = asyncio.create_task(self.ping())
                # Another node may have taken over.
                self._router.mark_failed(self._name)
        finally:
            await cancel_all(ping)
            self._router.mark_answering(self._name)

    async def close(self) -> None:
        """Ends the watch."""
        if self._timer:
            self._timer.cancel()
        if self._check:
            await cancel_all(self._check)
        await self._probe.close()


async def _any_answers(watches: "list[_Watch]") -> bool:
    """Whether one of several nodes answers a PING in time."""
    pings = [asyncio.create_task(watch.ping()) for watch in watches]
    try:
        with suppress(TimeoutError):
            for answered in asyncio.as_completed(pings, timeout=PATIENCE_S):
                if await answered:
                    return True
        return False
    finally:
        await cancel_all(*pings)


class AsyncCluster(Nodes[AsyncNode]):
    """Connections to the nodes of a Cluster, for the tasks of one event loop. Same guarantees as `Cluster`."""

    _node_type = AsyncNode

    def __init__(self, address: Address, connecting: Connecting) -> None:
        super().__init__(address, connecting)
        self._watches: dict[NodeName, _Watch] = {}

    async def ask(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Makes calls, each at the node that serves it. Returns for each call its reply, or a LisaError.

        Raises a LisaError where no node has answered.
        """
        routing = self._router.ask(calls)
        try:
            step = next(routing)
            while True:
                answers = await (self._race(step.parts) if step.race else self._exchange(step.parts))
                step = routing.send(answers)
        except StopIteration as stop:
            replies: list[Any] = stop.value
            return replies

    def node_of(self, keys: ShardKeys) -> object:
        """See `AsyncConnection.node_of`."""
        return self._router.node_of(keys.of("ready"))

    async def survey(self, calls: Sequence[Call[Any]]) -> dict[str, Answer]:
        """See `AsyncConnection.survey`."""
        [slots] = await self.ask([SLOTS])
        if isinstance(slots, Exception):
            raise lisa_error(slots)
        nodes = members(slots, self._router.home)
        parts = [Part(node, calls) for node in nodes if not self._router.is_silent(node)]
        answers = {part.node: answer for part, answer in zip(parts, await self._exchange(parts), strict=True)}
        return {"{}:{}".format(*node): answers.get(node) or silent(node) for node in nodes}

    async def listen(self, channel: str) -> AsyncGenerator[bytes | None]:
        """See `AsyncConnection.listen`. Any node will do, as each forwards all messages to the others."""
        home = self._router.home
        async with aclosing(self._node(home).listen(channel)) as messages:
            while True:
                try:
                    message = await self._watch(home).run(anext(messages), may_abandon=True)
                except LisaError:
                    self._router.mark_failed(home)
                    raise
                yield message

    async def _exchange(self, parts: Sequence[Part]) -> list[Answer]:
        if len(parts) == 1:
            return [await self._ask(parts[0])]
        tasks = [asyncio.create_task(self._ask(part)) for part in parts]
        try:
            return await asyncio.gather(*tasks)
        except BaseException:
            await cancel_all(*tasks)
            raise

    async def _ask(self, part: Part) -> Answer:
        request = self._node(part.node).ask(part.calls)
        try:
            return await self._watch(part.node).run(request, may_abandon=may_abandon(part.calls))
        except LisaError as error:
            return error
        except asyncio.CancelledError:
            # The caller may have lost patience with the node: another may have taken over.
            self._router.mark_failed(part.node)
            raise

    async def _race(self, parts: Sequence[Part]) -> list[Answer]:
        clients: list[asyncio.Future[int]] = [asyncio.get_running_loop().create_future() for _ in parts]
        runners = [asyncio.create_task(self._run(part, client)) for part, client in zip(parts, clients, strict=True)]
        unblockers = []
        try:
            await _await_news(runners)
            for part, client, runner in zip(parts, clients, runners, strict=True):
                if not runner.done():
                    unblockers.append(asyncio.create_task(self._unblock(part, client)))
            if unblockers:
                await asyncio.wait((*runners, *unblockers), timeout=STRAGGLE_S)
            return [
                runner.result() if runner.done() else no_reply(part.node)
                for runner, part in zip(runners, parts, strict=True)
            ]
        finally:
            await cancel_all(*runners, *unblockers)

    async def _run(self, part: Part, client: "asyncio.Future[int]") -> Answer:
        try:
            return await self._watch(part.node).run(self._wait(part, client), may_abandon=True)
        except LisaError as error:
            return error
        finally:
            client.cancel()

    async def _wait(self, part: Part, client: "asyncio.Future[int]") -> list[Any]:
        node = self._node(part.node)
        place = await node.send(part.calls)
        first = await node.receive_first(place)
        if isinstance(first, int):
            client.set_result(first)
        return [first, *await node.receive(place, part.calls[1:])]

    async def _unblock(self, part: Part, client: "asyncio.Future[int]") -> None:
        self._router.note_unblocked(await self._ask(Part(part.node, unblock(await client))))

    def _watch(self, name: NodeName) -> _Watch:
        if name not in self._watches:
            probe = self._connect_for_probes(name, PROBE_S)
            self._watches[name] = _Watch(name, self._router, probe, lambda: self._any_other_answers(name))
        return self._watches[name]

    async def _any_other_answers(self, name: NodeName) -> bool:
        """Whether any other node answers; if none does, the fault is more likely on this side."""
        return await _any_answers([self._watch(other) for other in self._router.witnesses(name)])

    async def close(self) -> None:
        """Closes all connections."""
        for watch in self._watches.values():
            await watch.close()
        for node in self._nodes.values():
            await node.close()


async def _await_news(runners: "Sequence[asyncio.Task[Answer]]") -> None:
    running = set(runners)
    while running:
        done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        if any(is_news(runner.result()) for runner in done):
            return
