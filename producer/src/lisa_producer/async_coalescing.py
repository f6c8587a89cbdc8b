"""Calls that tasks share: requests made during a call go out with the next one. `coalescing` is the twin."""

import asyncio
import time
from collections.abc import Coroutine, Hashable
from typing import Any, TypeVar

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.per_loop import PerLoop
from lisa_common.errors import LisaError
from lisa_producer.request_queue import PendingRequest, RequestQueue
from lisa_producer.settings import ProducerSettings
from lisa_producer.shared_flow import Request, SharedFlow

__all__ = ["AsyncCoalescer"]

T = TypeVar("T")


class _TaskRequest(PendingRequest):
    """A request of a task, which waits for a future."""

    __slots__ = ()

    def is_abandoned(self) -> bool:
        """Whether the task was cancelled. Its future shows that before the task itself has run."""
        return bool(self.waiter.cancelled())


class AsyncCoalescer:
    """Drives the flows of many tasks over few calls, those of each event loop apart."""

    def __init__(self, connection: AsyncConnection, settings: ProducerSettings) -> None:
        self._of_loops = PerLoop(lambda: _LoopCoalescer(connection, settings))

    def run(self, flow: SharedFlow[T]) -> Coroutine[Any, Any, T]:
        """Drives a flow to its result, with the producer's patience."""
        return self._of_loops.get().run(flow)

    def close(self) -> None:
        """Finishes all pending requests of the running loop that are not under way."""
        self._of_loops.get().close()


class _LoopCoalescer:
    """Drives the flows of the tasks of one event loop.

    A request whose key has no call under way is sent at once. A sender task carries the requests that queue up
    meanwhile, so that a cancelled caller affects no other; its request is not sent unless it is under way already.
    """

    def __init__(self, connection: AsyncConnection, settings: ProducerSettings) -> None:
        self._connection = connection
        self._settings = settings
        self._queues: dict[Hashable, RequestQueue | Request] = {}
        """By key; a `Request` where one call is under way and nothing waits."""
        self._senders: set[asyncio.Task[None]] = set()

    async def run(self, flow: SharedFlow[T]) -> T:
        """Drives a flow to its result, with the producer's patience."""
        deadline = time.monotonic() + self._settings.patience_s
        # Few nested coroutines: with thousands of callers each level costs time in every one.
        try:
            request: Any = next(flow)
            while True:
                try:
                    queue: Any = self._queues.setdefault(request.key, request)
                    if queue is request:
                        result = await self._send_unshared(request, deadline)
                    else:
                        pending = self._enqueue(queue, request, deadline)
                        await pending.waiter
                        result = pending.outcome
                    if isinstance(result, LisaError):
                        raise result
                except LisaError as error:
                    request = flow.throw(error)
                else:
                    request = flow.send(result)
        except StopIteration as stop:
            end: T = stop.value
            return end

    async def _send_unshared(self, request: Request, deadline: float) -> Any:
        failure: LisaError | None = None
        try:
            [result] = await self._connection.run(request.make([request.item]), deadline=deadline)
            if isinstance(result, LisaError):
                failure = result
        except LisaError as error:
            failure = error
            raise
        finally:
            self._end_unshared(request, failure)
        return result

    def _end_unshared(self, request: Request, failure: LisaError | None) -> None:
        """Starts a sender for the requests that queued up behind an unshared call."""
        queue = self._queues[request.key]
        # When an event loop ends, all tasks are cancelled; no new one must start.
        if isinstance(queue, Request) or all(pending.is_abandoned() for pending in queue.pending):
            del self._queues[request.key]
            return
        queue.failure = failure
        sender = asyncio.create_task(self._send_queued(queue))
        self._senders.add(sender)
        sender.add_done_callback(self._senders.discard)

    def _enqueue(self, queue: RequestQueue | Request, request: Request, deadline: float) -> PendingRequest:
        if isinstance(queue, Request):
            queue = self._queues[request.key] = RequestQueue(queue, self._settings, self._connection.outage)
        pending = _TaskRequest(queue, request, deadline, asyncio.get_running_loop().create_future())
        queue.pending.append(pending)
        return pending

    async def _send_queued(self, queue: RequestQueue) -> None:
        try:
            while queue.pending:
                _wake(queue.expire())
                if batch := queue.take_batch():
                    _wake(queue.settle(await self._call(queue.first, queue.items(batch))))
                # Woken callers may have more for the next call. After a failure it waits a while.
                await asyncio.sleep(queue.delay_s)
        finally:
            _wake(queue.abort())
            del self._queues[queue.first.key]
            _wake(queue.close())

    async def _call(self, request: Request, items: list[Any]) -> list[Any]:
        try:
            return await self._connection.run(request.make(items))
        except LisaError as error:
            return [error] * len(items)

    def close(self) -> None:
        """Finishes all pending requests that are not under way."""
        for queue in self._queues.values():
            if isinstance(queue, RequestQueue):
                _wake(queue.close())


def _wake(finished: list[PendingRequest]) -> None:
    for pending in finished:
        if not pending.waiter.done():
            pending.waiter.set_result(None)
