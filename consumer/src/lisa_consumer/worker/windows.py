"""How many deliveries of a topic a worker holds: those that may run at once, and those that start soon after."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from lisa_consumer.delivery.core import MAX_BATCH
from lisa_consumer.handling.handler import Route
from lisa_consumer.worker.held import HeldDelivery

__all__ = ["PrefetchWindow", "Windows"]

_AHEAD_S = 0.1
"""Prefetch only what can start within this time; an idle worker cannot take it."""

_READ_AHEAD = 384
"""Most deliveries of one read beyond those that may run at once: their size is a guess, from the latest messages."""

_MOST_SOON = 500
"""As many as a worker begins in 4 ms, however quick their handler is. A busy server may take as long to mark them."""

_SOON_S = 0.002
"""What starts within this time is marked as begun together with what starts now: a mark takes a round trip."""

_WEIGHT = 1 / 8
"""Weight of the latest handling time in the moving average."""

_FADE = 63 / 64
"""What is left of the known parallelism with each observation of less: while marks are late, fewer handlers run."""


class PrefetchWindow:
    """Deliveries of one topic that a worker holds, from reading to settling.

    Beyond the `concurrency` deliveries that may run at once, the window has capacity for as many as are handled in
    `_AHEAD_S`, by the average handling time. That is at least one, so that the next handler starts without a read, and
    at most `prefetch`, or fewer if messages are large.
    """

    def __init__(self, concurrency: int, prefetch: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._concurrency = concurrency
        self._clock = clock
        self._parallelism = 1.0
        """How many handlers run at once: one, where they keep the event loop busy."""
        self._observed_at = clock()
        self._prefetch = self._most_ahead = prefetch
        self._most = MAX_BATCH
        self._widest = self._most_per_read = min(concurrency + _READ_AHEAD, MAX_BATCH)
        self._mean_s: float | None = None
        self.held = 0
        self.worth_a_read = 0
        """The capacity if it is that of a batch, or if handlers would be idle without a read; else 0."""
        self._resize(min(1, prefetch))

    def take(self, count: int) -> None:
        """Counts deliveries that are held from now on."""
        self.held += count
        self._update()

    def release(self, count: int) -> None:
        """Counts deliveries that are held no longer."""
        self.take(-count)

    @property
    def mean_s(self) -> float:
        """The average handling time; 0 before the first observation."""
        return self._mean_s or 0.0

    @property
    def observed_at(self) -> float:
        """When a handler of the topic last ended; before the first observation, when the topic was added."""
        return self._observed_at

    def observe(self, times: Sequence[float]) -> None:
        """Updates the average handling time with others, in seconds, of handlers that ended since the last call."""
        now, mean_s = self._clock(), self._mean_s
        parallelism = sum(times) / max(now - self._observed_at, 1e-9)
        self._parallelism = min(max(parallelism, self._parallelism * _FADE, 1.0), self._concurrency)
        self._observed_at = now
        for handling_s in times:
            mean_s = handling_s if mean_s is None else mean_s + _WEIGHT * (handling_s - mean_s)
        self._mean_s = mean_s
        self._adapt()

    def limit(self, most: int) -> None:
        """Limits a read, and what is held beyond those that may run at once: few messages if they are large."""
        if most != self._most:
            self._most = most
            self._most_per_read = min(self._widest, most)
            self._most_ahead = min(self._prefetch, most)
            self._adapt()
            self._update()

    def _adapt(self) -> None:
        in_time, mean_s, ahead = self._concurrency * _AHEAD_S, self._mean_s, self._most_ahead
        if mean_s is None:
            ahead = min(1, ahead)
        elif mean_s * ahead > in_time:
            ahead = max(1, int(in_time / mean_s))
        if ahead != self._ahead:
            self._resize(ahead)

    def _resize(self, ahead: int) -> None:
        self._ahead = ahead
        self._size = self._concurrency + ahead
        # Wait for capacity for a batch, unless handlers would be idle meanwhile.
        self._batch = max(1, min(self._size // 2, ahead))
        self._update()

    def _update(self) -> None:
        capacity = self.capacity
        self.worth_a_read = capacity if capacity >= min(self._batch, self._most_per_read) else 0

    @property
    def capacity(self) -> int:
        """How many more deliveries one read may bring; negative if the window has shrunk below what is held."""
        return min(self._size - self.held, self._most_per_read)

    @property
    def expected_s(self) -> float:
        """Expected time to handle all held deliveries; infinite before the first observation."""
        rounds = -(-self.held // self._concurrency)
        return math.inf if self._mean_s is None else self._mean_s * rounds

    @property
    def soon(self) -> int:
        """How many deliveries start within `_SOON_S`, beside those that start now; 0 before the first observation."""
        if self._mean_s is None:
            return 0
        return min(_MOST_SOON, int(_SOON_S / max(self._mean_s / self._parallelism, 1e-9)))


class Windows(dict[str, PrefetchWindow]):
    """The windows of all topics that a worker reads, and until when some of them are not read."""

    def __init__(self, routes: Mapping[str, Route], prefetch: int) -> None:
        super().__init__({topic: PrefetchWindow(route.slots, prefetch) for topic, route in routes.items()})
        self._prefetch = prefetch
        self.aside: dict[str, float] = {}
        """Topics that cannot or must not be read, and until when."""
        self.changed = asyncio.Event()
        """Set when there may be more to read, and when the worker stops."""

    def add(self, route: Route) -> None:
        """Adds a topic."""
        self[route.topic] = PrefetchWindow(route.slots, self._prefetch)
        self.changed.set()

    def forget(self, topic: str) -> None:
        """Forgets a topic. Call it once none of its deliveries is held."""
        del self[topic]
        self.aside.pop(topic, None)

    def release(self, held: Sequence[HeldDelivery]) -> None:
        """Frees the room of deliveries that are held no longer."""
        for topic, count in Counter(each.delivery.topic for each in held).items():
            self[topic].release(count)
        self.changed.set()

    def set_aside(self, topic: str, until: float) -> None:
        """Reads no more of a topic until this moment, or a later one that was set before."""
        self.aside[topic] = max(until, self.aside.get(topic, 0.0))

    def tidy_aside(self) -> None:
        """Forgets what is aside no longer."""
        if self.aside:
            now = time.monotonic()
            self.aside = {topic: until for topic, until in self.aside.items() if until > now}

    def is_aside(self, topic: str) -> bool:
        """Whether a topic is set aside: what a read under way still brings of it must not begin."""
        return self.aside.get(topic, 0.0) > time.monotonic()

    def read_again(self, topic: str) -> None:
        """Reads a topic again that was set aside."""
        self.aside.pop(topic, None)
        self.changed.set()
