"""Calls that tasks share: what is asked for during a call goes out with the next one. `gathering` is the twin."""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Coroutine, Hashable
from typing import Any, TypeVar

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import LisaError
from lisa_common.validation import check_name
from lisa_producer.lanes import GATHERED_BATCHES, Lane, Member, SharedFlow, Step
from lisa_producer.settings import ProducerSettings

__all__ = ["AsyncGatherer"]

T = TypeVar("T")


class _Waiting(Member):
    """A task that waits."""

    __slots__ = ()

    def is_gone(self) -> bool:
        """Whether it was cancelled: its future is, before the task itself has a turn."""
        return bool(self.waiter.cancelled())


class AsyncGatherer:
    """Drives the flows of many tasks over few calls.

    Who finds its lane empty goes straight through. What is gathered meanwhile is carried by a task of its own, so that
    cancelling a caller never concerns another; of a caller that was cancelled nothing is sent that is not under way.
    """

    def __init__(self, connection: AsyncConnection, settings: ProducerSettings) -> None:
        self._connection = connection
        self._settings = settings
        self._most_bytes = GATHERED_BATCHES * settings.batch_bytes
        self._lanes: dict[Hashable, Lane | Step] = {}
        self._gathered: dict[str, int] = defaultdict(int)
        """Bytes, by topic."""
        self._outside: dict[str, deque[asyncio.Future[None]]] = {}
        """Who waits until there is room, by topic."""
        self._carriers: set[asyncio.Task[None]] = set()

    def run(self, topic: str, flow: SharedFlow[T]) -> Coroutine[Any, Any, T]:
        """Drives a flow to its result, with the producer's patience. Waits while too much of its topic is gathered."""
        deadline = time.monotonic() + self._settings.patience_s
        if self._gathered and self._is_full(check_name("topic", topic)):
            return self._run_later(topic, flow, deadline)
        return self._drive(flow, deadline)

    async def _drive(self, flow: SharedFlow[T], deadline: float) -> T:
        # Few coroutines in each other: with thousands of callers each level costs time in every one.
        try:
            step: Any = next(flow)
            while True:
                try:
                    there: Any = self._lanes.setdefault(step.lane, step)
                    if there is step:
                        result = await self._go_alone(step, deadline)
                    else:
                        member = self._join(there, step, deadline)
                        try:
                            await member.waiter
                        finally:
                            self._leave(step)
                        result = member.outcome
                    if isinstance(result, LisaError):
                        raise result
                except LisaError as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(result)
        except StopIteration as stop:
            end: T = stop.value
            return end

    async def _go_alone(self, step: Step, deadline: float) -> Any:
        failure: LisaError | None = None
        try:
            [result] = await self._connection.run(step.make([step.item]), deadline=deadline)
            if isinstance(result, LisaError):
                failure = result
        except LisaError as error:
            failure = error
            raise
        finally:
            self._end_alone(step, failure)
        return result

    def _end_alone(self, step: Step, failure: LisaError | None) -> None:
        """Has a task carry what was gathered behind a call that nobody shared."""
        lane = self._lanes[step.lane]
        # At the end of an event loop all are cancelled, and no new task is to begin.
        if isinstance(lane, Step) or all(member.is_gone() for member in lane.queue):
            del self._lanes[step.lane]
            return
        lane.failure = failure
        carrier = asyncio.create_task(self._carry(lane))
        self._carriers.add(carrier)
        carrier.add_done_callback(self._carriers.discard)

    def _join(self, lane: Lane | Step, step: Step, deadline: float) -> Member:
        if isinstance(lane, Step):
            lane = self._lanes[step.lane] = Lane(lane, self._settings)
        member = _Waiting(lane, step, deadline, asyncio.get_running_loop().create_future())
        lane.queue.append(member)
        self._gathered[step.topic] += step.size
        return member

    async def _carry(self, lane: Lane) -> None:
        try:
            while lane.queue:
                _tell(lane.drop_late())
                if batch := lane.take():
                    _tell(lane.settle(await self._call(lane.step, [member.item for member in batch])))
                # The woken callers may have more for the same call. After a failure the next call waits a while.
                await asyncio.sleep(lane.delay_s)
        finally:
            _tell(lane.break_off())
            del self._lanes[lane.step.lane]
            _tell(lane.close())

    async def _call(self, step: Step, items: list[Any]) -> list[Any]:
        try:
            return await self._connection.run(step.make(items))
        except LisaError as error:
            return [error] * len(items)

    def _is_full(self, topic: str) -> bool:
        return self._gathered.get(topic, 0) >= self._most_bytes

    async def _run_later(self, topic: str, flow: SharedFlow[T], deadline: float) -> T:
        was_first = False
        while self._is_full(topic):
            waiter = asyncio.get_running_loop().create_future()
            outside = self._outside.setdefault(topic, deque())
            (outside.appendleft if was_first else outside.append)(waiter)
            was_first = True
            try:
                await waiter
            except asyncio.CancelledError:
                if not waiter.cancelled():
                    self._admit(topic)
                raise
        try:
            return await self._drive(flow, deadline)
        finally:
            # Whatever became of it, the next one is not to wait for what was never gathered.
            self._admit(topic)

    def _leave(self, step: Step) -> None:
        self._gathered[step.topic] -= step.size
        if self._gathered[step.topic] <= 0:
            del self._gathered[step.topic]
        if self._outside:
            self._admit(step.topic)

    def _admit(self, topic: str) -> None:
        """Lets the first come in that waits outside, if there is room."""
        outside = None if self._is_full(topic) else self._outside.get(topic)
        while outside:
            waiter = outside.popleft()
            if not outside:
                del self._outside[topic]
            if not waiter.done():
                waiter.set_result(None)
                return

    def close(self) -> None:
        """Ends the calls of all that are not under way yet."""
        for lane in self._lanes.values():
            if isinstance(lane, Lane):
                _tell(lane.close())


def _tell(ended: list[Member]) -> None:
    for member in ended:
        if not member.waiter.done():
            member.waiter.set_result(None)
