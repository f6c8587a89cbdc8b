"""A proxy before a server that refuses commands by itself, as rented servers do. Each has its own words for that."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import hiredis

__all__ = ["WORDS", "Refusing", "refusing"]

WORDS: dict[str, Callable[[str], str]] = {
    "unknown": lambda name: f"ERR unknown command '{name}', with args beginning with: 'x'",
    "not allowed": lambda _: "ERR command is not allowed",
    "not available": lambda name: f"ERR Command is not available: '{name}'. See our documentation",
    "unsupported": lambda name: f"ERR unsupported command '{name.lower()}'",
    "no permissions": lambda name: f"NOPERM User default has no permissions to run the '{name.lower()}' command",
}
"""How servers and proxies refuse a command."""

_CHUNK = 65_536


@dataclass
class Refusing:
    """Answers some commands by an error; passes the others on, one after the other. For one event loop."""

    port: int
    refused: Collection[str]
    """Commands, with their subcommands where only some are refused: `CLIENT SETNAME`."""
    word: Callable[[str], str] = WORDS["unknown"]
    waits: bool = True
    """Whether reads may wait at the server."""
    reads: int = 0
    """Reads that were asked for."""
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves a client."""
        with suppress(OSError):
            upstream = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                await self._pass_on(reader, writer, *upstream)
            finally:
                upstream[1].close()
                writer.close()

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        server_reader: asyncio.StreamReader,
        server_writer: asyncio.StreamWriter,
    ) -> None:
        requests = hiredis.Reader()
        while data := await reader.read(_CHUNK):
            requests.feed(data)
            while (request := requests.gets()) is not False:
                name = request[0].decode().upper()
                if name in self.refused or b" ".join(request[:2]).decode("latin1").upper() in self.refused:
                    writer.write(f"-{self.word(name)}\r\n".encode())
                    continue
                words = tuple(self._changed(name, request))
                server_writer.write(hiredis.pack_command(words))  # type: ignore[arg-type] # declared for one item
                if name in ("SUBSCRIBE", "UNSUBSCRIBE"):
                    await asyncio.gather(_copy(server_reader, writer), _copy(reader, server_writer))
                    return
                await self._answer(server_reader, writer)

    def _changed(self, name: str, request: list[bytes]) -> list[bytes]:
        if name == "XREADGROUP":
            self.reads += 1
            if not self.waits and b"BLOCK" in request:
                at = request.index(b"BLOCK")
                return request[:at] + request[at + 2 :]
        return request

    async def _answer(self, server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        replies: Any = hiredis.Reader()
        while data := await server.read(_CHUNK):
            replies.feed(data)
            client.write(data)
            if replies.gets() is not False:
                return
        client.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
    writer.close()


@asynccontextmanager
async def refusing(
    port: int, *refused: str, word: Callable[[str], str] = WORDS["unknown"], waits: bool = True
) -> AsyncIterator[Refusing]:
    """Runs a proxy before the server at a port."""
    proxy = Refusing(port, refused, word, waits)
    tasks = set[asyncio.Task[None]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        with suppress(asyncio.CancelledError):
            await proxy.serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    proxy.url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
