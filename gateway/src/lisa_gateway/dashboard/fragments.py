"""What is made of a sample once, for all who look: rendered parts of pages, as server-sent events, and lists."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

from lisa_gateway.dashboard.site import encode

__all__ = ["Fragments", "Part"]

T = TypeVar("T")

_CACHED = 1_000


class Part(NamedTuple):
    """A part of a page that is sent anew as it changes."""

    key: str
    """Views with the same key show the same; it holds all that the part depends on."""
    topics: Callable[[], list[str]]
    """The topics that it shows now."""
    make: Callable[[], Awaitable[str]]
    """Renders it."""


class Fragments:
    """Rendered parts, each made once for a sample, whoever looks at it."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}
        self._number = -1
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Lets one stream work at a time, and then the other requests of the gateway for as long."""
        async with self._turn:
            began_s = time.monotonic()
            yield
            await asyncio.sleep(time.monotonic() - began_s)

    async def get(self, number: int, key: str, make: Callable[[], Awaitable[str]]) -> bytes:
        """The part of this key after a sample; `make` renders it if nobody has."""
        self._begin(number)
        if key not in self._made:
            self._made[key] = _event(encode(await make()))
        made: bytes = self._made[key]
        return made

    def once(self, number: int, key: str, make: Callable[[], T]) -> T:
        """What `make` makes of a sample; made again only for the next one."""
        self._begin(number)
        if key not in self._made:
            self._made[key] = make()
        made: T = self._made[key]
        return made

    def _begin(self, number: int) -> None:
        if number != self._number or len(self._made) > _CACHED:
            self._number, self._made = number, {}


def _event(content: bytes) -> bytes:
    lines = b"".join(b"data: " + line + b"\n" for line in content.splitlines() if line.strip())
    return b"event: part\n" + lines + b"\n"
