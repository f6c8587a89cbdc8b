"""One suite for a blocking client and its asyncio twin: the blocking one, as asyncio tests see it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

__all__ = ["InThread"]


class InThread:
    """Wraps a blocking client: its methods become coroutines, each of which runs in a thread."""

    def __init__(self, blocking: Any) -> None:
        self._blocking = blocking

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._blocking, name)
        return _in_thread(value) if callable(value) else value


def _in_thread(method: Callable[..., object]) -> Callable[..., Awaitable[object]]:
    async def call(*args: object, **options: object) -> object:
        return await asyncio.to_thread(method, *args, **options)

    return call
