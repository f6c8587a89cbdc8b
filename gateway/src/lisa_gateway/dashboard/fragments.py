"""Rendered parts of pages as server-sent events, shared by all who look at them."""

from collections.abc import Awaitable, Callable

from lisa_gateway.dashboard.site import encode

__all__ = ["Fragments"]

_CACHED = 1_000


class Fragments:
    """Rendered parts, each made once for a sample, whoever looks at it."""

    def __init__(self) -> None:
        self._made: dict[str, bytes] = {}
        self._number = -1

    async def get(self, number: int, key: str, make: Callable[[], Awaitable[str]]) -> bytes:
        """The part of this key after a sample; `make` renders it if nobody has."""
        if number != self._number or len(self._made) > _CACHED:
            self._number, self._made = number, {}
        if key not in self._made:
            self._made[key] = _event(encode(await make()))
        return self._made[key]


def _event(content: bytes) -> bytes:
    lines = b"".join(b"data: " + line + b"\n" for line in content.splitlines() if line.strip())
    return b"event: part\n" + lines + b"\n"
