"""Quotas: how much the callers of one grant may do at one gateway."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.types import Message, Receive, Send

from lisa_gateway.limits import is_streamed
from lisa_gateway.problems import OverQuota

__all__ = ["Quota", "Quotas"]

_MIB = 1024 * 1024
_HOUR_S = 3_600
_GROUP_S = 60
"""A gateway forgets a group that nobody has used for so long."""

_PREPAID = 8 * _MIB
"""Bytes of a body that count before they arrive; those of a longer stream count as they come."""


class Quotas(BaseModel):
    """The fields of a grant that limit its use, at each gateway."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    requests_s: Annotated[float, Field(gt=0, description="requests a second")] = 1_000
    bytes_s: Annotated[float, Field(ge=1_024, description="bytes a second, of bodies and of answers")] = 8 * _MIB
    bytes_at_once: Annotated[float, Field(ge=1_024, description="bytes of bodies in memory at once")] = 64 * _MIB
    polls: Annotated[float, Field(ge=0, description="reads that wait at once")] = 1_000
    groups: Annotated[float, Field(ge=1, description="consumer groups in use at once")] = 32
    new_topics: Annotated[float, Field(ge=0, description="topics an hour that a send or a read makes")] = 100


_NONE = Quotas(**dict.fromkeys(Quotas.model_fields, math.inf))


class Quota:
    """What one grant has used. By default there are no limits."""

    def __init__(self, quotas: Quotas = _NONE, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = quotas
        self._requests = _Bucket(quotas.requests_s, max(1, quotas.requests_s), clock)
        self._bytes = _Bucket(quotas.bytes_s, quotas.bytes_s, clock)
        self._topics = _Bucket(quotas.new_topics / _HOUR_S, quotas.new_topics, clock)
        self._held = 0
        self._polls = 0
        self._groups: set[str] = set()
        self._made: set[str] = set()
        """New topics of lately: many requests may come before the first of them has made its topic."""

    def admit_request(self, length: int) -> None:
        """Counts a request with a body of so many bytes, 0 where that is not known. Raises OverQuota.

        Bytes are admitted while any are left, so that there is no body that never fits.
        """
        if self._bytes.left <= 0:
            raise OverQuota("bytes_s", self._most.bytes_s, self._bytes.wait_s(1))
        if not self._requests.take():
            raise OverQuota("requests_s", self._most.requests_s, self._requests.wait_s(1))
        self._bytes.spend(min(length, _PREPAID))

    @contextmanager
    def holding(self) -> Iterator[Callable[[int], None]]:
        """Counts bytes of a body that are in memory while its block runs, which says how many they are by now.

        That raises OverQuota where others are too many already: so there is no body that never fits.
        """
        held = 0

        def hold(size: int) -> None:
            nonlocal held
            self._held += size - held
            held = size
            if size and self._held - size >= self._most.bytes_at_once:
                raise OverQuota("bytes_at_once", self._most.bytes_at_once, 1)

        try:
            yield hold
        finally:
            self._held -= held

    def counting(
        self, scope: Any, length: int, receive: Receive, send: Send, hold: Callable[[int], None]
    ) -> tuple[Receive, Send]:
        """`receive` and `send` of an admitted request. They count bytes, and slow down what comes too fast.

        `hold` is told how long the body is. Of a stream, whoever takes its lines knows what is kept.
        """
        paid = min(length, _PREPAID)
        arrived = 0
        is_whole = False

        async def counted_receive() -> Message:
            nonlocal paid, arrived, is_whole
            # Behind the body, whoever receives only waits for the client to hang up.
            if not is_whole and not is_streamed(scope):
                hold(max(arrived, length))
            message = await receive()
            is_whole = not message.get("more_body", False)
            size = len(message.get("body", b""))
            arrived += size
            free = min(paid, size)
            paid -= free
            if size > free:
                self._bytes.spend(size - free)
                await asyncio.sleep(self._bytes.wait_s(0))
            return message

        def counted_send(message: Message) -> Awaitable[None]:
            self._bytes.spend(len(message.get("body", b"")))
            return send(message)

        return counted_receive, counted_send

    @contextmanager
    def poll(self) -> Iterator[None]:
        """Counts a read that waits while its block runs. Raises OverQuota."""
        if self._polls >= self._most.polls:
            raise OverQuota("polls", self._most.polls, 1)
        self._polls += 1
        try:
            yield
        finally:
            self._polls -= 1

    def use_group(self, group: str, served: Collection[str]) -> None:
        """Counts a group; `served` are those that the gateway serves at all. Raises OverQuota."""
        if group in self._groups:
            return
        self._groups.intersection_update(served)
        if len(self._groups) >= self._most.groups:
            raise OverQuota("groups", self._most.groups, _GROUP_S)
        self._groups.add(group)

    def admit_topic(self, topic: str) -> None:
        """Counts a topic that is about to be made, once. Raises OverQuota."""
        if topic in self._made:
            return
        if not self._topics.take():
            raise OverQuota("new_topics", self._most.new_topics, self._topics.wait_s(1))
        if len(self._made) >= self._most.new_topics:
            self._made.clear()
        self._made.add(topic)


class _Bucket:
    """A bucket of tokens that fills at a rate."""

    def __init__(self, rate_s: float, most: float, clock: Callable[[], float]) -> None:
        self._rate_s = rate_s
        self._most = self._left = most
        self._clock = clock
        self._at_s = clock()

    @property
    def left(self) -> float:
        """The tokens in it; less than 0 for a debt."""
        now_s = self._clock()
        if self._left < self._most:
            self._left = min(self._most, self._left + (now_s - self._at_s) * self._rate_s)
        self._at_s = now_s
        return self._left

    def spend(self, tokens: float) -> None:
        """Takes tokens, and leaves a debt where there are too few."""
        self._left = self.left - tokens

    def take(self) -> bool:
        """Takes one token if there is one."""
        if self.left < 1:
            return False
        self._left -= 1
        return True

    def wait_s(self, tokens: float) -> float:
        """The time until so many tokens are there."""
        missing = tokens - self.left
        return 0.0 if missing <= 0 else missing / self._rate_s if self._rate_s else _HOUR_S
