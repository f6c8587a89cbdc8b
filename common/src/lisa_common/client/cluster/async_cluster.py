"""A Cluster, for the asyncio shell. `router` knows the way; `cluster` is the blocking twin."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from lisa_common.client.address import Address, NodeName
from lisa_common.client.async_node import AsyncNode
from lisa_common.client.async_tasks import cancel_all
from lisa_common.client.cluster.async_watch import AsyncWatch, any_answers
from lisa_common.client.cluster.fanout import STRAGGLE_S, Answer, Part, is_news, may_be_left, stray, unblock
from lisa_common.client.cluster.router import SLOTS, Router
from lisa_common.client.cluster.silence import PROBE_S
from lisa_common.client.cluster.slots import members
from lisa_common.client.translation import lisa_error
from lisa_common.errors import LisaError
from lisa_common.model.keys import ShardKeys
from lisa_common.protocol.call import Call
from lisa_common.settings import MAX_CONNECTIONS

__all__ = ["AsyncCluster"]


class AsyncCluster:
    """Connections to the nodes of a Cluster, for the tasks of one event loop. Promises what `Cluster` promises."""

    def __init__(
        self, address: Address, *, name: str, timeout_s: float, max_connections: int = MAX_CONNECTIONS
    ) -> None:
        self._address = address
        self._max_connections = address.options.get("max_connections", max_connections)
        self._name = name
        self._timeout_s = timeout_s
        self._router = Router(address.nodes, self._max_connections)
        self._nodes: dict[NodeName, AsyncNode] = {}
        self._watches: dict[NodeName, AsyncWatch] = {}
        self._node(address.nodes[0])  # which checks the options of the URL

    async def ask(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Makes calls, each at the node that serves it. Result: replies, and LisaErrors for what nobody has answered.

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
        parts = [Part(node, calls) for node in members(slots, self._router.home)]
        answers = await self._exchange(parts)
        return {"{}:{}".format(*part.node): answer for part, answer in zip(parts, answers, strict=True)}

    async def listen(self, channel: str) -> AsyncGenerator[bytes | None]:
        """See `AsyncConnection.listen`. Any node will do, as each hands on to all what is published."""
        home = self._router.home
        async with aclosing(self._node(home).listen(channel)) as messages:
            while True:
                try:
                    heard = await self._watch(home).over(anext(messages), may_be_left=True)
                except LisaError:
                    self._router.failed(home)
                    raise
                yield heard

    async def _exchange(self, parts: Sequence[Part]) -> list[Answer]:
        if len(parts) == 1:
            return [await self._ask(parts[0])]
        asking = [asyncio.create_task(self._ask(part)) for part in parts]
        try:
            return await asyncio.gather(*asking)
        except BaseException:
            await cancel_all(*asking)
            raise

    async def _ask(self, part: Part) -> Answer:
        asking = self._node(part.node).ask(part.calls)
        try:
            return await self._watch(part.node).over(asking, may_be_left=may_be_left(part.calls))
        except LisaError as error:
            return error
        except asyncio.CancelledError:
            # Perhaps its caller had no more patience with it: another node may have taken over.
            self._router.failed(part.node)
            raise

    async def _race(self, parts: Sequence[Part]) -> list[Answer]:
        clients: list[asyncio.Future[int]] = [asyncio.get_running_loop().create_future() for _ in parts]
        runners = [asyncio.create_task(self._run(*of)) for of in zip(parts, clients, strict=True)]
        tellers = []
        try:
            await _await_news(runners)
            for part, client, runner in zip(parts, clients, runners, strict=True):
                if not runner.done():
                    tellers.append(asyncio.create_task(self._unblock(part, client)))
            if tellers:
                await asyncio.wait((*runners, *tellers), timeout=STRAGGLE_S)
            return [
                runner.result() if runner.done() else stray(part.node)
                for runner, part in zip(runners, parts, strict=True)
            ]
        finally:
            await cancel_all(*runners, *tellers)

    async def _run(self, part: Part, client: "asyncio.Future[int]") -> Answer:
        try:
            return await self._watch(part.node).over(self._wait(part, client), may_be_left=True)
        except LisaError as error:
            return error
        finally:
            client.cancel()

    async def _wait(self, part: Part, client: "asyncio.Future[int]") -> list[Any]:
        node = self._node(part.node)
        connection = await node.send(part.calls)
        first = await node.receive_first(connection)
        if isinstance(first, int):
            client.set_result(first)
        return [first, *await node.receive(connection, part.calls[1:])]

    async def _unblock(self, part: Part, client: "asyncio.Future[int]") -> None:
        await self._ask(Part(part.node, unblock(await client)))

    def _node(self, name: NodeName) -> AsyncNode:
        if name not in self._nodes:
            self._nodes[name] = AsyncNode(
                self._address.of(name),
                name=self._name,
                timeout_s=self._timeout_s,
                max_connections=self._max_connections,
            )
        return self._nodes[name]

    def _watch(self, name: NodeName) -> AsyncWatch:
        if name not in self._watches:
            probe = AsyncNode(self._address.of(name), name=self._name, timeout_s=PROBE_S)
            self._watches[name] = AsyncWatch(name, self._router, probe, lambda: self._any_but(name))
        return self._watches[name]

    async def _any_but(self, name: NodeName) -> bool:
        """Whether any node but this one answers: who hears nobody has lost the others, and not they their life."""
        return await any_answers([self._watch(other) for other in self._router.others_than(name)])

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
