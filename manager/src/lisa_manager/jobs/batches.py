"""One call for each of many shards, in few round trips. The promoter, the trimmer and the sweeper share this."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import OF_A_NODE, LisaError
from lisa_common.protocol.call import Call, command
from lisa_manager.due_queue import DueQueue
from lisa_manager.jobs.node_queues import NodeQueues
from lisa_manager.metrics import METRICS
from lisa_manager.problem_log import ProblemLog
from lisa_manager.settings import ManagerSettings
from lisa_manager.shard_table import Shards, ShardTable, WatchedShard

__all__ = ["Batches"]

T = TypeVar("T")


class Batches:
    """Runs one job over the shards of one queue, and reports the shards that the server answers with an error.

    `job` names the work in metrics, `label` a shard in problems: "sweep of {}".
    """

    def __init__(
        self,
        connection: AsyncConnection,
        table: ShardTable,
        queue: DueQueue,
        settings: ManagerSettings,
        *,
        logger: logging.Logger,
        job: str,
        label: str,
    ) -> None:
        self._connection = connection
        self._table = table
        self._queue = queue
        self._settings = settings
        self._problems = ProblemLog(logger)
        self._job = job
        self._label = label
        self.nodes = NodeQueues(connection.node_of)

    async def run_due(self, work: Callable[[Shards], Awaitable[None]]) -> None:
        """Does the work for the shards that are due now, node by node in parallel.

        Where an earlier call still serves a node, it also serves the shards due now. Raises LisaError for a single
        server; a node of a Cluster becomes a problem instead.
        """
        nodes = self.nodes.add(self._table.take_due(self._queue))
        if nodes == [None]:
            await self.nodes.serve(None, work)
        else:
            async with asyncio.TaskGroup() as tasks:
                for node in nodes:
                    tasks.create_task(self._serve(node, work))

    async def _serve(self, node: object, work: Callable[[Shards], Awaitable[None]]) -> None:
        try:
            await self.nodes.serve(node, work)
        except LisaError as error:
            self._problems.report(self._label_node(node), error)

    async def repeat(self, busy: Shards, step: Callable[[Shards], Awaitable[Shards]]) -> None:
        """Repeats a step for shards that have more to do; the step returns those that still have.

        The shards take turns, one step each, so that none waits for all of another's. Each step is a round trip of its
        own, so that other clients come in between. After half the time between two turns of the job the next turn
        takes over, so that the server has as much time for others.
        """
        until = self._table.clock() + self._settings.housekeeping_s / 2
        left = deque(busy)
        while left and self._table.clock() < until:
            left.extend(await step([left.popleft()]))

    async def call_each(self, shards: Shards, call: Callable[[WatchedShard], Call[T]]) -> list[tuple[WatchedShard, T]]:
        """Makes the call for each shard, in one round trip. Returns the results of shards that still exist.

        A shard that answers with an error does not stop the others: it is reported, and next due like a quiet one.
        """
        results = await self.peek_each(shards, call)
        if self._problems:
            for shard, _ in results:
                self._problems.resolve(self._label.format(shard.tag))
            if len(results) == len(shards):
                self._problems.resolve(self._label_node(self._node_of(shards)))
        return results

    async def peek_each(self, shards: Shards, call: Callable[[WatchedShard], Call[T]]) -> list[tuple[WatchedShard, T]]:
        """Like `call_each`, for calls whose success resolves no problem. The shards share a node."""
        replies = await self._connection.execute_each([call(shard) for shard in shards])
        results = []
        for shard, reply in zip(shards, replies, strict=True):
            if not isinstance(reply, LisaError):
                if shard.tag in self._table.shards:
                    results.append((shard, reply))
                continue
            METRICS.count("lisa_manager_errors_total", self._job)
            if isinstance(reply, OF_A_NODE):
                # One problem for the node, which may have thousands of shards.
                self._problems.report(self._label_node(self._node_of(shards)), reply)
                self._queue.put(shard.tag, self._table.clock() + self._settings.poll_s)
            else:
                self._problems.report(self._label.format(shard.tag), reply, **shard.place)
                self._queue.put(shard.tag, self._table.clock() + self._settings.quiet_poll_s)
        return results

    async def any_exist(self, shards: Shards, *names: str) -> bool:
        """Whether any of the shards has any of these keys, by one command for all; True where that fails."""
        keys = [shard.keys.of(name) for shard in shards for name in names]
        (count,) = await self._connection.execute_each([command("EXISTS", *keys)])
        return isinstance(count, LisaError) or count > 0

    def _node_of(self, shards: Shards) -> object:
        return self._connection.node_of(shards[0].keys)

    def _label_node(self, node: object) -> str:
        """Names the shards of one node in problems; None is the one server."""
        return self._label.format("shards at {}:{}".format(*node) if isinstance(node, tuple) else "some shards")
