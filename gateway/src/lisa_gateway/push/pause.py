"""Pauses that a receiver asks for, by `Retry-After`."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from lisa_consumer import RateLimited

__all__ = ["Pause", "asked_pause_s"]

_SHORTEST_S = 1.0
"""Shorter pauses, and dates that have passed, count as this: what spends no attempt must not be repeated at once."""


def asked_pause_s(retry_after: str, longest_s: float) -> float | None:
    """The pause that `Retry-After` asks for, in seconds; None if it cannot be read. Source: RFC 9110, 10.2.3."""
    text = retry_after.strip()
    if text.isascii() and text.isdecimal():
        # More digits than a year has seconds mean "long", whatever number they are.
        seconds = float(text[:10])
    else:
        try:
            moment = parsedate_to_datetime(text)
            seconds = (moment.replace(tzinfo=moment.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
        except (ValueError, OverflowError):
            return None
    return min(max(_SHORTEST_S, seconds), longest_s)


class Pause:
    """The pause of one receiver: nothing is posted until it ends. One request then goes first, and others await it."""

    def __init__(self) -> None:
        self._until: float | None = None
        """When it ends, by the monotonic clock; None once a request after it was answered without another pause."""
        self._first = asyncio.Lock()

    def ask(self, pause_s: float, reason: str) -> RateLimited:
        """Begins a pause, or makes it longer. Returns what the handler raises: the message is given back."""
        self._until = max(time.monotonic() + pause_s, self._until or 0.0)
        return RateLimited(pause_s, reason, here=True)

    async def passed(self, post: Callable[[], Awaitable[None]]) -> None:
        """Posts, after a request that goes first if there is one. Raises what `post` raises, and RateLimited."""
        if self._until is not None:
            async with self._first:
                # Whoever went first may have ended the pause meanwhile.
                if self._until is not None:
                    await self._go_first(self._until, post)
                    return
        await post()

    async def _go_first(self, until: float, post: Callable[[], Awaitable[None]]) -> None:
        if (left_s := until - time.monotonic()) > 0:
            raise RateLimited(max(left_s, 0.001), "its receiver asked for a pause", here=True)
        try:
            await post()
        finally:
            if self._until == until:
                self._until = None
