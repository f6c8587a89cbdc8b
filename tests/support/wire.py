"""A client of the gateway that knows HTTP and the interface of camellia-delay-queue, and nothing of Lisa."""

import asyncio
import http.client
import json
import re
import socket
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import urlencode

__all__ = ["AsyncWire", "Reply", "Wire", "polls_in", "raw_exchange"]

_BASE = "/camellia/delayQueue/"
_FORM = {"Content-Type": "application/x-www-form-urlencoded;charset=utf-8"}


class Reply(NamedTuple):
    """What came back."""

    status: int
    content: Any
    kind: str

    @property
    def code(self) -> int:
        """The outcome in the body."""
        return int(self.content["code"])

    @property
    def message(self) -> Any:
        """The one message."""
        return self.content["delayMsg"]

    @property
    def messages(self) -> Any:
        """The messages of a pull."""
        return self.content["delayMsgList"]


def polls_in(metrics: str) -> int:
    """Returns the number of long polls that wait, from a gateway's metrics."""
    found = re.search(r"^long_polls (\d+)", metrics, re.MULTILINE)
    assert found, metrics
    return int(found[1])


class Wire:
    """Makes calls of one gateway, each on a connection of its own."""

    def __init__(self, address: str) -> None:
        self.address = address

    def post(self, call: str, **parameters: object) -> Reply:
        """A POST with a form."""
        return self.request("POST", _BASE + call, urlencode(parameters), _FORM)

    def get(self, call: str, **parameters: object) -> Reply:
        """A GET with a query."""
        return self.request("GET", f"{_BASE}{call}?{urlencode(parameters)}")

    def count_polls(self) -> int:
        """The number of long polls that wait at the gateway."""
        return polls_in(self.request("GET", "/metrics").content)

    def request(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Reply:
        """Any request."""
        connection = http.client.HTTPConnection(self.address, timeout=30)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            data = response.read()
            kind = response.headers.get("content-type", "")
            return Reply(response.status, json.loads(data) if "json" in kind else data.decode(), kind)
        finally:
            connection.close()


class AsyncWire:
    """Makes calls of one gateway on one connection that is kept, one at a time."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, call: str, **parameters: object) -> Reply:
        """A POST with a form."""
        await self.begin(call, **parameters)
        return await self.end()

    async def begin(self, call: str, **parameters: object) -> None:
        """Sends a request; `end` receives its answer."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port)
        body = urlencode(parameters).encode()
        head = f"POST {_BASE}{call} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {_FORM['Content-Type']}\r\n"
        self._streams[1].write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await self._streams[1].drain()

    async def end(self) -> Reply:
        """Receives an answer."""
        assert self._streams is not None
        reader = self._streams[0]
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        data = await reader.readexactly(int(headers["content-length"]))
        return Reply(int(head[0].split()[1]), json.loads(data), headers["content-type"])

    async def hang_up(self) -> None:
        """Closes the connection."""
        if self._streams is not None:
            writer, self._streams = self._streams[1], None
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def raw_exchange(address: str, *sent: bytes, end: bool = False) -> bytes:
    """Sends bytes, ends the sending if told so, and returns all that comes until the other side hangs up.

    A server may answer and hang up before it has read everything. The answer counts all the same.
    """
    loop = asyncio.get_running_loop()
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.settimeout(0)
        with suppress(ConnectionError):
            for part in sent:
                await loop.sock_sendall(connection, part)
            if end:
                connection.shutdown(socket.SHUT_WR)
        received = b""
        with suppress(ConnectionError):
            while data := await loop.sock_recv(connection, 65_536):
                received += data
    return received
