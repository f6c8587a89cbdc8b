"""Reads topics for a worker, as there is room for their messages."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from lisa_common.backoff import RECONNECT
from lisa_common.client.async_connection import AsyncConnection, cancel_all
from lisa_common.errors import OF_THE_SERVER, LisaError
from lisa_consumer.core import Core, ReadResult
from lisa_consumer.hand import Hand
from lisa_consumer.leases import Leases
from lisa_consumer.settings import ConsumerSettings

__all__ = ["Fetcher"]

logger = logging.getLogger(__name__)

_ASIDE_S = 10.0
"""How long a topic is left alone that could not be read."""

_NARROW = 4
"""A topic that has so many times less room than another is read by itself."""

_FIRST = 8
"""How many messages are read at once while the size of none is known: the first must not wait for many large ones."""

_BUSY_POLL_S = 0.05
"""How long a topic that was full is waited for at the server while the others are, or one that was left alone."""


class Fetcher:
    """Decides what to read next, and hands over what it brings, until the worker stops."""

    def __init__(
        self,
        connection: AsyncConnection,
        core: Core,
        leases: Leases,
        hands: Mapping[str, Hand],
        *,
        settings: ConsumerSettings,
        stopping: asyncio.Event,
        on_taken: Callable[[ReadResult], None],
    ) -> None:
        self._connection = connection
        self._core = core
        self._leases = leases
        self._hands = hands
        self._settings = settings
        self._stopping = stopping
        self._on_taken = on_taken
        self._room = asyncio.Event()
        self._aside: dict[str, float] = {}
        """Topics that cannot be read, and until when they are left alone."""

    def wake(self) -> None:
        """Looks again what there is room for, or whether to stop."""
        self._room.set()

    async def run(self) -> None:
        """Reads until told to stop, also while the server is away."""
        failures, complained = 0, False
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                await self._leases.learn(list(self._hands))
                while not self._stopping.is_set():
                    began = time.monotonic()
                    all_well = await self._read_once()
                    failures = 0
                    if complained and all_well:
                        logger.info("the server is back")
                        complained = False
            except LisaError as error:
                failures += 1
                log = logger.debug if complained else logger.warning
                log("cannot read, will try again: %s", error)
                complained = True
                # A read that has waited its time did so at servers that answer, which may have something any moment.
                has_waited = time.monotonic() - began >= self._settings.block_s
                with suppress(TimeoutError):
                    async with asyncio.timeout(0 if has_waited else RECONNECT.compute(failures)):
                        await self._stopping.wait()

    async def _read_once(self) -> bool:
        """Reads what there is room for. Result: whether that tells that all servers of the topics answer.

        A read of several servers that brings something tells it of some only.
        """
        self._room.clear()
        self._aside = {topic: end for topic, end in self._aside.items() if end > time.monotonic()}
        topics = self._hands.keys() - self._aside.keys()
        rooms = self._rooms(topics)
        if rooms and len(rooms) < len(topics):
            await self._read_beside(rooms, topics - rooms.keys())
        elif rooms:
            return not await self._read_rooms(rooms, wait=self._settings.block_s)
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(_BUSY_POLL_S if self._aside else None):
                    await self._room.wait()
        return False

    def _rooms(self, topics: set[str]) -> dict[str, int]:
        """Of these topics those that are worth a read, and how many messages they have room for; few large ones."""
        most = self._core.most_at_once
        return {t: min(hand.room, most(t)) for t, hand in self._hands.items() if t in topics and hand.is_worth_a_read}

    async def _read_beside(self, rooms: dict[str, int], full: set[str]) -> None:
        """Waits at the server for topics that have room; meanwhile reads those that were full, as they get room."""
        waiting = asyncio.create_task(self._read_rooms(rooms, wait=self._settings.block_s))
        waiting.add_done_callback(lambda _: self._room.set())
        failure: LisaError | None = None
        failed: set[str] = set()
        try:
            # Until it ends by itself: were it broken off, it might be given messages that nobody has then until their
            # leases run out.
            while not waiting.done():
                self._room.clear()
                freed = self._rooms(full - self._aside.keys() - failed)
                if freed and not self._stopping.is_set():
                    try:
                        await self._read_rooms(freed, wait=_BUSY_POLL_S)
                    except LisaError as error:
                        failure = error
                        failed |= freed.keys()
                else:
                    await self._room.wait()
            if not waiting.result() and failure:
                raise failure
        finally:
            await cancel_all(waiting)

    async def _read_rooms(self, rooms: dict[str, int], *, wait: float | None) -> int:
        """Reads topics, each up to its room. Result: how many messages that has brought."""
        widest = max(rooms.values())
        narrow = {topic: room for topic, room in rooms.items() if room * _NARROW < widest}
        if narrow:
            # One read has one limit for all of its topics: what is nearly full must not hold up the others.
            wide = {topic: room for topic, room in rooms.items() if topic not in narrow}
            if brought := await self._read_apart(wide, narrow):
                return brought
        left = {topic: room for topic, room in rooms.items() if topic not in self._aside}
        return await self._read_topics(list(left), min(left.values()), wait=wait) if left else 0

    async def _read_apart(self, *parts: dict[str, int]) -> int:
        """Reads what there is, by one read for each part. What fails is met again by who waits for all of them."""
        brought = 0
        for rooms in parts:
            with suppress(LisaError):
                brought += await self._read_topics(list(rooms), min(rooms.values()), wait=None)
        return brought

    async def _read_topics(self, topics: list[str], limit: int, *, wait: float | None) -> int:
        """Reads topics and takes what they bring; one that cannot be read is set aside, so that the others are."""
        if not any(map(self._core.knows_size, topics)):
            limit = min(limit, _FIRST)
        flow = self._core.take(topics, limit=limit, wait=wait, block=self._settings.block_s)
        try:
            taken = await self._connection.run(flow)
        except OF_THE_SERVER:
            raise
        except LisaError as error:
            if len(topics) > 1:
                return sum([await self._read_topics([topic], limit, wait=None) for topic in topics])
            logger.error("topic %s cannot be read, will try again in %g s: %s", topics[0], _ASIDE_S, error)
            self._aside[topics[0]] = time.monotonic() + _ASIDE_S
            return 0
        self._on_taken(taken)
        return len(taken.deliveries)
