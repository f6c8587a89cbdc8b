"""The asyncio shell: drives flows over connections to a server, or to the nodes of a Cluster.

`lisa_common.client.connection` is its blocking twin.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from itertools import starmap
from typing import Any, TypeVar

from lisa_common.client.async_node import AsyncNode
from lisa_common.client.closing import AsyncClosing
from lisa_common.client.cluster.async_cluster import AsyncCluster
from lisa_common.client.per_loop import PerLoop, close_with_loop
from lisa_common.client.shell import Shell, one
from lisa_common.client.wire import read_reply
from lisa_common.errors import LisaError
from lisa_common.model.keys import ShardKeys
from lisa_common.protocol.call import Call, Flow, error_in

__all__ = ["AsyncConnection"]

T = TypeVar("T")


class AsyncConnection(Shell[AsyncCluster | AsyncNode], AsyncClosing):
    """Connections to one server, or to all nodes of a Cluster. Same guarantees as `Connection`.

    Each event loop that uses it has its own, up to `max_connections`, which end with that loop.
    """

    _node_type = AsyncNode
    _cluster_type = AsyncCluster

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self._servers = PerLoop(self._open_here)

    def _open_here(self) -> tuple[AsyncCluster | AsyncNode, AsyncGenerator[None]]:
        server = self._open()
        return server, close_with_loop(server.close)

    @property
    def _server(self) -> AsyncCluster | AsyncNode:
        return self._servers.get()[0]

    async def run(self, flow: Flow[T], *, patience_s: float = 0.0, deadline: float | None = None) -> T:
        """Drives a flow to its result. Patience ends after `patience_s`, or at `deadline` of the monotonic clock."""
        driven = self._driven(flow, time.monotonic() + patience_s if deadline is None else deadline)
        try:
            step = next(driven)
            while True:
                if isinstance(step, float | int):
                    await asyncio.sleep(step)
                    step = driven.send([])
                else:
                    step = driven.send(await self._try(step))
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            driven.close()

    async def call(self, call: Call[T], *, patience_s: float = 0.0) -> T:
        """Makes one call."""
        return await self.run(one(call), patience_s=patience_s)

    async def _try(self, calls: Sequence[Call[Any]]) -> list[Any]:
        try:
            return await self.execute_each(calls)
        except LisaError as error:
            return [error] * len(calls)

    async def execute(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Makes calls in one round trip; raises the first error among their replies."""
        results = await self.execute_each(calls)
        if error := error_in(results):
            raise error
        return results

    async def execute_each(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Makes calls in one round trip. Returns for each call its result, or its LisaError.

        Loads scripts that a server lacks. Raises errors of the connection as a whole; of a Cluster, when no node has
        answered.
        """
        self._check_open()
        replies = await self._server.ask(calls)
        return list(starmap(read_reply, zip(calls, replies, strict=True)))

    def node_of(self, keys: ShardKeys) -> object:
        """A value that stands for the server of these keys, if known: equal for keys that share a clock."""
        return self._server.node_of(keys)

    async def survey(self, calls: Sequence[Call[Any]]) -> dict[str, list[Any] | LisaError]:
        """Makes calls at each node of a Cluster, replicas included, or at the one server.

        Returns by `host:port`, or "" for the one server, the results as of `execute_each`, or the node's error.
        Raises when the one server does not answer, or no node lists the others.
        """
        self._check_open()
        answers = await self._server.survey(calls)
        return {
            name: answer if isinstance(answer, LisaError) else list(map(read_reply, calls, answer))
            for name, answer in answers.items()
        }

    def listen(self, channel: str) -> AsyncGenerator[bytes | None]:
        """Yields the messages of a channel; None first, once it is subscribed, and None at least once a second.

        Raises when the subscription breaks.
        """
        self._check_open()
        return self._server.listen(channel)

    async def close(self) -> None:
        """Closes all connections. Later calls raise Closed."""
        self._is_closed = True
        for loop, (server, ending) in self._servers.take_all():
            if loop is asyncio.get_running_loop():
                await ending.aclose()
            elif loop.is_running():
                asyncio.run_coroutine_threadsafe(server.close(), loop)
