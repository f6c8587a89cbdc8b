"""A TCP proxy before a server: it loses replies, breaks connections, swallows what they carry, and takes its time."""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

__all__ = ["Proxy"]

_CHUNK = 65_536
_SLOW_CHUNK = 8_192
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close at once, by a reset
_DRIP = 512
_DRIP_S = 0.002


class _Link:
    """One connection of a client, and ours to the server."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server
        self.losing = False
        """Whether the next reply is lost, and the connection with it."""
        self.dead = False
        """Whether it is open at both ends, and nothing arrives any more."""
        self.is_waiting = False
        """Whether a read that may wait at the server has not been answered."""

    def close(self) -> None:
        self.client.close()
        self.server.close()


class Proxy:
    """Passes everything on, unless a fault is set. For one event loop."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._marker: bytes | None = None
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._clients: set[asyncio.Task[None]] = set()
        self.lost = 0
        """Replies that were lost so far."""
        self.at_loss: Callable[[], Awaitable[object]] | None = None
        """What to await once a reply is lost, before its connection is cut."""
        self.change_request: Callable[[bytes], Awaitable[bytes | None]] | None = None
        """Returns what to pass on of a piece of a request; None for nothing."""
        self.delay_s = 0.0
        """The delay of each piece, in seconds."""
        self.hold: asyncio.Event | None = None
        """Pieces that come are passed on once this event is set; None to pass them on at once."""
        self.bytes_per_s = 0.0
        """Limit of bytes of replies per second, over all connections; 0 for none."""
        self._free_at = 0.0
        """When the bytes so far have used up their time, by the clock of the event loop."""
        self.trickles = False
        """Whether pieces arrive in drops."""
        self.silent = False
        """Whether new connections are taken, and nothing else."""

    @property
    def url(self) -> str:
        """Where clients connect to."""
        assert self._server is not None
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def is_waiting(self) -> bool:
        """Whether a read that may wait at the server has not been answered."""
        return any(link.is_waiting for link in self._links)

    def lose_reply_to(self, marker: bytes) -> None:
        """Cuts the next connection whose request holds the marker: after the request, before the reply."""
        self._marker = marker

    def cut(self) -> None:
        """Cuts every connection that there is after its next request, before the reply."""
        for link in self._links:
            link.losing = True

    def keep(self) -> None:
        """Spares the connections that `cut` chose and that have made no request since."""
        for link in self._links:
            link.losing = False

    def lead_to(self, port: int) -> None:
        """Connects new clients to another server from now on."""
        self._port = port

    def reset(self) -> None:
        """Resets every connection."""
        for link in tuple(self._links):
            for end in (link.client, link.server):
                # A closed connection needs no reset.
                with suppress(OSError):
                    end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                end.transport.abort()

    def strand(self) -> None:
        """Leaves every connection half-open: neither end gets data any more, or learns of a close."""
        for link in self._links:
            link.dead = True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            await self._link(reader, writer)
        finally:
            self._clients.discard(task)

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.close()
            return
        link = _Link(writer, server_writer)
        link.dead = self.silent
        self._links.add(link)
        await asyncio.gather(self._requests(reader, link), self._replies(server_reader, link))
        self._links.discard(link)
        for end in (link.client, link.server):
            with suppress(OSError):
                await end.wait_closed()

    async def _requests(self, reader: asyncio.StreamReader, link: _Link) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                if self._marker and self._marker in data:
                    self._marker = None
                    link.losing = True
                link.is_waiting = b"BLOCK" in data
                if self.change_request and not (data := await self.change_request(data) or b""):
                    continue
                await self._pass_on(data, link, link.server)
        link.close()

    async def _replies(self, reader: asyncio.StreamReader, link: _Link) -> None:
        with suppress(OSError):
            while data := await reader.read(_SLOW_CHUNK if self.bytes_per_s else _CHUNK):
                link.is_waiting = False
                if link.losing:
                    self.lost += 1
                    if self.at_loss:
                        await self.at_loss()
                    break
                await self._take_time(len(data))
                await self._pass_on(data, link, link.client)
        link.close()

    async def _take_time(self, size: int) -> None:
        if self.bytes_per_s:
            now = asyncio.get_running_loop().time()
            self._free_at = max(self._free_at, now) + size / self.bytes_per_s
            await asyncio.sleep(self._free_at - now)

    async def _pass_on(self, data: bytes, link: _Link, writer: asyncio.StreamWriter) -> None:
        if link.dead:
            return
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if self.hold:
            await self.hold.wait()
        if not self.trickles:
            writer.write(data)
            await writer.drain()
            return
        for at in range(0, len(data), _DRIP):
            writer.write(data[at : at + _DRIP])
            await writer.drain()
            await asyncio.sleep(_DRIP_S)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for link in tuple(self._links):
            link.close()
        await asyncio.gather(*self._clients)
        await self._server.wait_closed()
