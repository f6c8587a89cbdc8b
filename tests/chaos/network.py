"""Proxies in a thread of their own, for a harness that is not asynchronous."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from threading import Thread

from support.proxy import Proxy

__all__ = ["Network"]


class Network:
    """One proxy before the server for each name."""

    def __init__(self, port: int, *names: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._stack = AsyncExitStack()
        self.proxies = {name: Proxy(port) for name in names}

    def start(self) -> "Network":
        """Opens the proxies."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(10)
        return self

    async def _open(self) -> None:
        for proxy in self.proxies.values():
            await self._stack.enter_async_context(proxy)

    def narrow(self, name: str, bytes_per_s: float) -> None:
        """Limits the bytes of replies per second; 0 for no limit."""
        self.tell(name, lambda proxy: setattr(proxy, "bytes_per_s", bytes_per_s))

    def tell(self, name: str, what: Callable[[Proxy], object]) -> None:
        """Runs a call on a proxy, in its own loop."""

        async def call() -> None:
            what(self.proxies[name])

        asyncio.run_coroutine_threadsafe(call(), self._loop).result(10)

    def close(self) -> None:
        """Closes all."""
        asyncio.run_coroutine_threadsafe(self._stack.aclose(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
