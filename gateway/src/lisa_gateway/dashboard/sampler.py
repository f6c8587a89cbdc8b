"""One sampler in each process reads the sizes of topics, however many people look at them."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from lisa_common.errors import LisaError
from lisa_common.logs import event
from lisa_gateway.gateway import Gateway
from lisa_manager import Sample, Topic, TopicStatus, TopicTraffic

__all__ = ["Known", "Sampler"]

logger = logging.getLogger(__name__)

_INTERVAL_S = 1.0
_SHARE = 20
"""Samples take at most one part of the time in so many, so that they cost the server little."""

_LONGEST_REST_S = 10.0
"""A machine that is slow for a moment must not make people wait for longer."""

_AT_ONCE = 250
"""Topics in one sample, beside those that somebody looks at."""

_IDLE_S = 30.0
"""After this time without anybody who looks, sampling ends."""

_MOST_WATCHED = 1_000

_FRESH_S = 2.0
"""A page about one topic shows numbers that are no older."""

_LEAST_REST_S = 0.2

_SPARK_S = 60.0
"""How old the history for the small charts of a list may be."""


@dataclass(slots=True)
class Known:
    """The latest that is known of a topic."""

    status: TopicStatus
    at: float
    """The monotonic clock, in seconds."""
    traffic: TopicTraffic | None = None
    ready_s: float | None = None
    """How many messages became ready a second; None where two samples give no rate."""
    read_s: float | None = None
    """How many were delivered a second, to all groups together."""

    def add(self, status: TopicStatus, traffic: TopicTraffic | None, at: float) -> None:
        """Takes the next sample."""
        seconds = at - self.at
        if traffic and self.traffic and seconds > 0:
            self.ready_s = _rate(self.traffic.added, traffic.added, seconds)
            self.read_s = _rate(sum(self.traffic.read.values()), sum(traffic.read.values()), seconds)
        self.status, self.traffic, self.at = status, traffic or self.traffic, at


def _rate(before: int, now: int, seconds: float) -> float | None:
    # A counter that went back has restarted from 0.
    return None if now < before else (now - before) / seconds


class Sampler:
    """Samples while somebody looks: topics that are shown each second, the others in turn."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._watched: Counter[str] = Counter()
        self._wanted_until = 0.0
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._hurry = asyncio.Event()
        """Set when somebody looks at a topic that has not been sampled yet."""
        self._swept: list[str] = []
        self._sparks: dict[str, tuple[float, list[Sample]]] = {}
        self.topics: dict[str, Topic] = {}
        """All topics and their policies."""
        self.known: dict[str, Known] = {}
        self._sampled_at = 0.0
        self.number = 0
        """The number of samples so far."""
        self.error = ""
        """Why the last sample failed; empty if it did not."""
        self.answered_at: float | None = None
        """When the server answered last, by the monotonic clock; None: never."""
        gateway.on_close.append(self.close)

    @property
    def silent_s(self) -> float | None:
        """How long the server has not answered, in seconds; None while it does."""
        if not self.error:
            return None
        return 0.0 if self.answered_at is None else time.monotonic() - self.answered_at

    @contextmanager
    def watching(self, topics: Collection[str]) -> Iterator[None]:
        """Samples these topics each second while its block runs."""
        self._watched.update(topics)
        try:
            yield
        finally:
            self._watched.subtract(topics)
            self._watched = +self._watched

    def want(self) -> None:
        """Begins to sample, or goes on."""
        self._wanted_until = time.monotonic() + _IDLE_S
        if self._task is None or self._task.done():
            # What is known is old.
            self.error, self.number = "", 0
            self._task = asyncio.create_task(self._run())

    async def first(self, topics: Collection[str] | None = None, *, wait_s: float) -> None:
        """Waits until these topics, or some, have lately been sampled; at most so long, and not for a silent server."""
        self.want()
        try:
            async with asyncio.timeout(wait_s):
                while not self.error and not self._is_fresh(topics):
                    self._hurry.set()
                    await self.news()
        except TimeoutError:
            return

    def _is_fresh(self, topics: Collection[str] | None) -> bool:
        if not self.number:
            return False
        oldest = time.monotonic() - _FRESH_S

        def is_fresh(topic: str) -> bool:
            known = self.known.get(topic)
            # A topic that no sample has found may have been made since.
            return self._sampled_at > oldest if known is None else known.at > oldest

        return all(map(is_fresh, topics or ()))

    async def news(self) -> None:
        """Waits for the next sample, or for its failure."""
        self.want()
        await self._news.wait()

    async def close(self) -> None:
        """Ends sampling."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def sparks(self, topics: Sequence[str]) -> dict[str, list[Sample]]:
        """The last hour of topics, at most a minute old. Raises LisaError."""
        now = time.monotonic()
        stale = [topic for topic in topics if self._sparks.get(topic, (0.0, []))[0] < now - _SPARK_S]
        if stale:
            if len(self._sparks) > 10 * _MOST_WATCHED:
                self._sparks.clear()
            read = await self._gateway.admin.history(stale, hours=1)
            self._sparks |= {topic: (now, samples) for topic, samples in read.items()}
        return {topic: self._sparks.get(topic, (0.0, []))[1] for topic in topics}

    async def _run(self) -> None:
        while time.monotonic() < self._wanted_until and not self._gateway.stopping.is_set():
            began = time.monotonic()
            try:
                await self._sample()
            except LisaError as error:
                if not self.error:
                    logger.warning("cannot sample topics: %s", error, extra=event("sample_failed", error=str(error)))
                self.error = str(error)
            else:
                self.error, self.answered_at = "", time.monotonic()
                self._sampled_at = self.answered_at
                self.number += 1
            news, self._news = self._news, asyncio.Event()
            news.set()
            used_s = time.monotonic() - began
            # The first round over all topics is quick, as people wait for it.
            is_first = not self.error and len(self.known) < len(self.topics)
            rest_s = max(_INTERVAL_S - used_s, min(_SHARE * used_s, _LONGEST_REST_S))
            await self._rest(used_s if is_first else rest_s)

    async def _rest(self, seconds: float) -> None:
        self._hurry.clear()
        least_s = min(seconds, _LEAST_REST_S)
        await asyncio.sleep(least_s)
        try:
            async with asyncio.timeout(seconds - least_s):
                await self._hurry.wait()
        except TimeoutError:
            return

    async def _sample(self) -> None:
        admin = self._gateway.admin
        self.topics = {topic.name: topic for topic in await admin.topics()}
        names = [name for name in self._watched if name in self.topics][:_MOST_WATCHED]
        self._swept = [name for name in self._swept if name in self.topics] or sorted(self.topics)
        turn, self._swept = self._swept[:_AT_ONCE], self._swept[_AT_ONCE:]
        names = list(dict.fromkeys([*names, *turn]))
        statuses = await admin.status(names)
        traffic = {each.topic: each for each in await admin.traffic(names)}
        now = time.monotonic()
        for status in statuses:
            known = self.known.setdefault(status.topic, Known(status, now))
            known.add(status, traffic.get(status.topic), now)
        self.known = {name: known for name, known in self.known.items() if name in self.topics}
