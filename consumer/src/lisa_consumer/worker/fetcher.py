"""Reads the topics of a worker, as far as their prefetch windows have capacity."""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Collection, MutableMapping
from contextlib import suppress
from itertools import compress

from lisa_common.backoff import RECONNECT
from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.async_tasks import cancel_all, wait_at_most
from lisa_common.errors import OF_THE_SERVER, LisaError, UnknownTopic
from lisa_common.logs import event
from lisa_consumer.delivery.core import Core, ReadResult
from lisa_consumer.handling.handler import Route
from lisa_consumer.settings import ConsumerSettings
from lisa_consumer.worker.executor import Executor
from lisa_consumer.worker.held import HeldDelivery
from lisa_consumer.worker.leases import Leases
from lisa_consumer.worker.queue import Queue
from lisa_consumer.worker.start_marks import StartMarks
from lisa_consumer.worker.windows import Windows

__all__ = ["Fetcher"]

logger = logging.getLogger(__name__)

_ASIDE_S = 10.0
"""How long a topic is set aside after it could not be read."""

_DROPPED_S = 1.0
"""The same for a topic that the registry lacks: it may be declared again before this worker has forgotten it."""

_NARROW_RATIO, _AMPLE = 4, 128
"""A topic is read by itself if another has four times its capacity, unless its own is a quarter of this or more."""

_FIRST_LIMIT = 8
"""Limit of a read while no message size is known: the first message must not wait for many large ones."""

_GATHER_S, _LONGEST_GATHER_S, _SHORTEST_GATHER_S = 30e-6, 0.003, 0.0005
"""How long messages gather for each topic of a read, and in all at most, before the next read; shorter pauses are none.
To wait for a topic takes the server and the worker about 5 µs in every read."""

_SLOW_S = 5.0
"""A read that is under way for longer than it may wait, and this, makes the worker not ready."""

_BUSY_POLL_S = 0.05
"""How long to wait for topics that were full, beside a longer read of the others."""


class Fetcher:
    """Decides what to read next, reads until the worker stops, and puts what it reads into the queue.

    Deliveries count against the window of their topic from the read until they are settled. With `burst` it stops the
    worker once nothing is ready and nothing is held, and flushes the queue before it waits for what is held.
    """

    def __init__(
        self,
        connection: AsyncConnection,
        core: Core,
        queue: Queue,
        executor: Executor,
        *,
        routes: MutableMapping[str, Route],
        windows: Windows,
        leases: Leases,
        marks: StartMarks,
        settings: ConsumerSettings,
        stopping: asyncio.Event,
        burst: bool,
    ) -> None:
        self._connection, self._core = connection, core
        self._routes, self._windows = routes, windows
        self._leases, self._queue, self._marks, self._executor = leases, queue, marks, executor
        self._settings = settings
        self._stopping = stopping
        self._burst = burst
        self._changed = windows.changed
        self._leaving: set[str] = set()
        """Topics to remove."""
        self._failure = "it has not read yet"
        """Why the latest read failed; "" if it did not."""
        self._fetched = -math.inf
        """When the latest read brought several messages, and left none behind; minus infinity if it did not."""
        self._asked: set[float] = set()
        """When the reads that are under way were sent to the server."""

    def find_problem(self) -> str:
        """Why this cannot read; "" if it can, or if all topics are full."""
        now = time.monotonic()
        if (age_s := now - min(set(self._asked), default=now)) > self._settings.block_s + _SLOW_S:
            return f"a read has been under way for {age_s:.0f} s"
        return "" if self._queue.is_paused else self._failure

    def remove(self, topic: str) -> None:
        """Stops serving a topic once no read of it is under way and no delivery of it is held."""
        self._leaving.add(topic)
        self._changed.set()

    @property
    def _block_s(self) -> float:
        """How long a read may wait: not beyond the time when a topic that was set aside is read again."""
        return max(
            0.0, min([self._settings.block_s, *(end - time.monotonic() for end in self._windows.aside.values())])
        )

    def _remove_leaving(self) -> None:
        for topic in [topic for topic in self._leaving if not self._windows[topic].held]:
            self._leaving.remove(topic)
            del self._routes[topic]
            for known in (self._windows, self._queue, self._leases, self._marks, self._core):
                known.forget(topic)

    async def run(self) -> None:
        """Reads until the worker stops. Retries all errors."""
        failures, reported = 0, False
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                await self._leases.learn(self._windows)
                while not self._stopping.is_set():
                    began = time.monotonic()
                    all_answer = await self._read_once()
                    failures, self._failure = 0, ""
                    if reported and all_answer:
                        logger.info("the server is back", extra=event("reads_recovered", group=self._core.group))
                        reported = False
            except LisaError as error:
                failures, self._failure = failures + 1, str(error)
                log = logger.debug if reported else logger.warning
                fields = event("read_failed", group=self._core.group, error=str(error), failures=failures)
                log("cannot read, will retry: %s", error, extra=fields)
                reported = True
                # After a full wait, the servers that answer may have new messages at any moment: read at once.
                has_waited = time.monotonic() - began >= self._settings.block_s
                await wait_at_most(self._stopping, 0 if has_waited else RECONNECT.compute(failures))

    async def _read_once(self) -> bool:
        """Reads what there is capacity for. Returns whether this proves that all servers of the topics answer.

        A read that brings something proves it only for some of them.
        """
        await self._let_gather()
        if self._stopping.is_set():
            return False
        self._changed.clear()
        self._remove_leaving()
        if self._queue.is_paused:
            await self._changed.wait()
            return False
        if self._burst:
            return await self._read_or_stop()
        self._windows.tidy_aside()
        topics = self._windows.keys() - self._windows.aside.keys() if self._windows.aside else self._windows.keys()
        capacities = self._capacities(topics)
        if capacities and len(capacities) < len(topics):
            await self._read_beside(capacities, topics - capacities.keys())
        elif capacities:
            return not await self._read_capacities(capacities, wait=self._block_s)
        else:
            await wait_at_most(self._changed, self._block_s if self._windows.aside else None)
        return False

    async def _read_or_stop(self) -> bool:
        """Reads what is ready, and waits for nothing but handlers; stops when nothing is left."""
        capacities = self._capacities(self._windows.keys() - self._windows.aside.keys())
        if capacities and await self._read_capacities(capacities, wait=None):
            return True
        if any(window.held for window in self._windows.values()):
            if capacities:
                # All that is ready is here.
                self._queue.flush()
            await self._changed.wait()
        else:
            self._stopping.set()
        return True

    def _capacities(self, topics: Collection[str]) -> dict[str, int]:
        """Which of these topics are worth a read, and how many messages to read of each; few large ones."""
        return {
            topic: room for topic, window in self._windows.items() if (room := window.worth_a_read) and topic in topics
        }

    async def _read_beside(self, capacities: dict[str, int], full: set[str]) -> None:
        """Waits at the server for topics with capacity; meanwhile reads the full ones once they have capacity again."""
        waiting = asyncio.create_task(self._read_capacities(capacities, wait=self._block_s))
        waiting.add_done_callback(lambda _: self._changed.set())
        failure: LisaError | None = None
        failed: set[str] = set()
        try:
            # The waiting read must not be cancelled: messages that the server has handed out to it would be lost to
            # all until their leases run out.
            while not waiting.done():
                self._changed.clear()
                freed = self._capacities(full - self._windows.aside.keys() - failed)
                if freed and not self._stopping.is_set() and not self._queue.is_paused:
                    try:
                        await self._read_capacities(freed, wait=_BUSY_POLL_S)
                    except LisaError as error:
                        failure = error
                        failed |= freed.keys()
                else:
                    await self._changed.wait()
            if not waiting.result() and failure:
                raise failure
        finally:
            await cancel_all(waiting)

    async def _read_capacities(self, capacities: dict[str, int], *, wait: float | None) -> int:
        """Reads topics, each up to its capacity. Returns the number of deliveries."""
        widest = min(max(capacities.values()), _AMPLE)
        if min(capacities.values()) * _NARROW_RATIO < widest:
            # One read has one limit for all of its topics: a nearly full topic must not hold up the others.
            narrow = {topic: capacity for topic, capacity in capacities.items() if capacity * _NARROW_RATIO < widest}
            wide = {topic: capacity for topic, capacity in capacities.items() if topic not in narrow}
            if count := await self._read_apart(wide, narrow):
                return count
        readable = capacities
        if self._windows.aside:
            readable = {topic: capacity for topic, capacity in capacities.items() if topic not in self._windows.aside}
        return await self._read_topics(list(readable), min(readable.values()), wait=wait) if readable else 0

    async def _read_apart(self, *parts: dict[str, int]) -> int:
        """Reads each part by itself, without a wait. The read of all parts that follows meets the same errors again."""
        count = 0
        for capacities in parts:
            with suppress(LisaError):
                count += await self._read_topics(list(capacities), min(capacities.values()), wait=None)
        return count

    async def _read_topics(self, topics: list[str], limit: int, *, wait: float | None) -> int:
        """Reads topics and passes their deliveries on. Sets an unreadable topic aside, so that the others are read."""
        if not any(map(self._core.knows_size, topics)):
            limit = min(limit, _FIRST_LIMIT)
        try:
            result = await self._read_declared(topics, limit, wait)
        except OF_THE_SERVER:
            raise
        except LisaError as error:
            if len(topics) > 1:
                return sum([await self._read_topics([topic], limit, wait=None) for topic in topics])
            place = {"topic": topics[0], "group": self._core.group}
            fields = event("topic_unreadable", **place, error=str(error), retry_in_s=_ASIDE_S)
            logger.error("topic %s cannot be read, will retry in %g s: %s", topics[0], _ASIDE_S, error, extra=fields)
            self._windows.set_aside(topics[0], time.monotonic() + _ASIDE_S)
            return 0
        if result is None:
            return 0
        counts = Counter[str]()
        for batch, _ in result.batches:
            counts[batch[0].topic] += len(batch)
        for topic, count in counts.items():
            window = self._windows[topic]
            window.take(count)
            window.limit(self._core.max_per_read(topic))
        self._put(result)
        # Messages that come one by one do not wait for others, nor does what a full read has left behind.
        gathers = counts.total() > 1 and max(counts.values()) < limit
        self._fetched = time.monotonic() if gathers else -math.inf
        return counts.total()

    async def _read_declared(self, topics: list[str], limit: int, wait: float | None) -> ReadResult | None:
        """Reads topics, and sets those aside that were dropped, until they are removed; None if all of them were."""
        while topics:
            asked = time.monotonic()
            self._asked.add(asked)
            try:
                flow = self._core.read(topics, limit=limit, wait=wait, block=self._settings.block_s)
                return await self._connection.run(flow)
            except UnknownTopic as dropped:
                self._windows.set_aside(dropped.topic, time.monotonic() + _DROPPED_S)
                topics = [topic for topic in topics if topic != dropped.topic]
            finally:
                self._asked.discard(asked)
        return None

    def _put(self, result: ReadResult) -> None:
        """Passes on what a read has brought, unless it must not begin any more."""
        held = [
            HeldDelivery(delivery, result.leased_at, number < marked)
            for batch, marked in result.batches
            for number, delivery in enumerate(batch)
        ]
        self._leases.hold(held)
        if self._queue.is_paused or self._windows.aside:
            # The read was under way when that came.
            is_unwanted = [self._queue.is_paused or self._windows.is_aside(each.delivery.topic) for each in held]
            self._executor.give_back_each(list(compress(held, is_unwanted)))
            held = [each for each in held if each.is_unbegun]
        if held:
            self._queue.put(held)
            self._marks.take(held)

    async def _let_gather(self) -> None:
        """Waits for more messages after those of the latest read, if there are many topics."""
        pause_s = self._fetched + min(len(self._windows) * _GATHER_S, _LONGEST_GATHER_S) - time.monotonic()
        if pause_s > _SHORTEST_GATHER_S and not self._burst:
            await asyncio.sleep(pause_s)
