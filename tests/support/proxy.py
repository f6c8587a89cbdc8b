"""A TCP proxy before a server, which can lose a reply: the moment at which nobody knows what was done."""

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self

__all__ = ["Proxy"]


class Proxy:
    """Passes everything on, until it is told to lose a reply."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._marker: bytes | None = None
        self._server: asyncio.Server | None = None
        self._ends: set[asyncio.StreamWriter] = set()
        self._clients: set[asyncio.Task[None]] = set()
        self.lost = 0
        """Replies that were lost so far."""

    @property
    def url(self) -> str:
        """Where clients connect to."""
        assert self._server is not None
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def lose_reply_to(self, marker: bytes) -> None:
        """Cuts the next connection whose request holds the marker: after the request, before the reply."""
        self._marker = marker

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._port)
        ends = {writer, upstream_writer}
        self._ends |= ends
        losing = asyncio.Event()
        await asyncio.gather(
            self._requests(reader, upstream_writer, losing),
            self._replies(upstream_reader, writer, losing),
        )
        self._ends -= ends
        for end in ends:
            with suppress(OSError):
                await end.wait_closed()
        self._clients.discard(task)

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, losing: asyncio.Event
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                if self._marker and self._marker in data:
                    self._marker = None
                    losing.set()
                writer.write(data)
        writer.close()

    async def _replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, losing: asyncio.Event) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                if losing.is_set():
                    self.lost += 1
                    break
                writer.write(data)
        writer.close()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for end in tuple(self._ends):
            end.close()
        await asyncio.gather(*self._clients)
        await self._server.wait_closed()
