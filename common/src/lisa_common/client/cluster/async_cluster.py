"""A Cluster, for the asyncio shell. `router` routes the calls; `cluster` is the blocking twin."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from lisa_common.client.address import Address, NodeName
from lisa_common.client.async_node import AsyncNode
from lisa_common.client.async_tasks import cancel_all
from lisa_common.client.cluster.async_watch import AsyncWatch, any_answers
from lisa_common.client.cluster.fanout import STRAGGLE_S, Answer, Part, is_news, may_abandon, no_reply, silent, unblock
from lisa_common.client.cluster.nodes import Nodes
from lisa_common.client.cluster.router import SLOTS
from lisa_common.client.cluster.silence import PROBE_S
from lisa_common.client.cluster.slots import members
from lisa_common.client.options import Connecting
from lisa_common.client.translation import lisa_error
from lisa_common.errors import LisaError
from lisa_common.model.keys import ShardKeys
from lisa_common.protocol.call import Call

__all__ = ["AsyncCluster"]


class AsyncCluster(Nodes[AsyncNode]):
    """Connections to the nodes of a Cluster, for the tasks of one event loop. Same guarantees as `Cluster`."""

    _node_type = AsyncNode

    def __init__(self, address: Address, connecting: Connecting) -> None:
        super().__init__(address, connecting)
        self._watches: dict[NodeName, AsyncWatch] = {}

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

    def _watch(self, name: NodeName) -> AsyncWatch:
        if name not in self._watches:
            probe = self._connect_for_probes(name, PROBE_S)
            self._watches[name] = AsyncWatch(name, self._router, probe, lambda: self._any_other_answers(name))
        return self._watches[name]

    async def _any_other_answers(self, name: NodeName) -> bool:
        """Whether any other node answers; if none does, the fault is more likely on this side."""
        return await any_answers([self._watch(other) for other in self._router.witnesses(name)])

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
