"""Exchanges over one connection: how long they may take, and what makes a connection unfit for the next one."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.connection import Connection
from lisa_common.errors import LisaError, OutcomeUnknown
from lisa_common.protocol.call import command
from support import Server, wait_until_async

_TIMEOUT_S = 0.3

_OWN = {b"PING": b"+PONG\r\n", b"CLIENT": b"+OK\r\n"}
"""What a connection asks for by itself."""

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def _answering(answer: Answer) -> AsyncIterator[AsyncConnection]:
    """A connection to a server that answers all but the connection's own commands by `answer`."""
    serving = set[asyncio.Task[None]]()

    async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            words = []
            for _ in range(int(line[1:])):
                size = int((await reader.readline())[1:])
                words.append(await reader.readexactly(size + 2))
                if words[0].startswith(b"LARGE"):
                    await answer(reader, writer)
            own = _OWN.get(words[0].strip())
            if own:
                writer.write(own)
            else:
                await answer(reader, writer)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.ensure_future(read(reader, writer)))
        await asyncio.wait(serving)
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, AsyncConnection(f"redis://127.0.0.1:{port}", name="test", timeout_s=_TIMEOUT_S) as connection:
        yield connection
        for task in serving:
            task.cancel()
        await asyncio.wait(serving)


async def _forever(*_: object) -> None:
    await asyncio.Event().wait()


async def test_a_reply_may_take_long_while_bytes_arrive() -> None:
    """Each of them within the time limit, all of them after twice as long."""
    moments: list[float] = []

    async def dribble(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for byte in b"$4\r\nlate\r\n":
            moments.append(time.monotonic())
            writer.write(bytes((byte,)))
            await asyncio.sleep(_TIMEOUT_S / 5)

    async with _answering(dribble) as connection:

        async def is_answered() -> bool:
            moments[:] = [time.monotonic()]
            try:
                return await connection.call(command("GET", "key")) == b"late"
            except LisaError:
                pauses = [later - earlier for earlier, later in pairwise([*moments, time.monotonic()])]
                assert max(pauses) > _TIMEOUT_S, "this process has not stalled"
                return False

        for _ in range(2):
            await wait_until_async(is_answered)
            assert time.monotonic() - moments[0] > _TIMEOUT_S


async def test_a_silent_server_ends_the_exchange() -> None:
    """Also after exchanges that went well, and at the time limit of its own, not of an earlier one."""
    replies = [b"+1\r\n", b"+2\r\n"]

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if replies:
            writer.write(replies.pop(0))

    async with _answering(answer) as connection:
        assert await connection.call(command("GET", "key")) == b"1"
        await asyncio.sleep(_TIMEOUT_S / 2)
        assert await connection.call(command("GET", "key")) == b"2"
        began = time.monotonic()
        with pytest.raises(OutcomeUnknown, match="Timeout reading"):
            await connection.call(command("GET", "key"))
        assert _TIMEOUT_S * 0.9 < time.monotonic() - began < _TIMEOUT_S + 10
        # The reply may still come, on the broken connection; the next call has another one.
        replies.append(b"+3\r\n")
        assert await connection.call(command("GET", "key")) == b"3"


async def test_a_server_that_takes_no_more_bytes_ends_the_exchange() -> None:
    """A write that the kernel cannot take ends at the time limit."""
    async with _answering(_forever) as connection:
        with pytest.raises(OutcomeUnknown, match="Timeout writing"):
            await connection.call(command("LARGE", b"x" * 50_000_000))


async def test_errors_of_the_server_are_replies(own_server: Callable[..., Server]) -> None:
    """The calls beside them have theirs, and the connection stays."""
    url = own_server().url
    async with AsyncConnection(url, name="test", timeout_s=5) as connection:
        [number, error, text] = await connection.execute_each(
            [command("INCR", "number"), command("HGET", "number", "field"), command("GET", "number")]
        )
        assert (number, text) == (1, b"1")
        assert str(error).startswith("WRONGTYPE")
        clients = await connection.call(command("CLIENT", "ID"))
        assert await connection.call(command("CLIENT", "ID")) == clients


def test_a_blocking_connection_that_the_server_has_closed_is_not_used(own_server: Callable[..., Server]) -> None:
    """The call goes out on another one: nobody has to know."""
    server = own_server()
    with Connection(server.url, name="test", timeout_s=5) as connection, server.client() as client:
        first = connection.call(command("CLIENT", "ID"))
        assert connection.call(command("CLIENT", "ID")) == first
        client.client_kill_filter(_id=first)
        # Not repeatable: it would raise OutcomeUnknown if it went out on the closed one.
        assert connection.call(command("INCR", "number", repeatable=False)) == 1
        assert connection.call(command("CLIENT", "ID")) != first


def test_threads_share_blocking_connections(own_server: Callable[..., Server]) -> None:
    """Each call gets its own reply."""
    wrong: list[object] = []
    with Connection(own_server().url, name="test", timeout_s=5) as connection:

        def ask(name: str) -> None:
            for number in range(200):
                word = f"{name}{number}"
                if (reply := connection.call(command("ECHO", word))) != word.encode():
                    wrong.append((word, reply))

        threads = [threading.Thread(target=ask, args=(name,)) for name in "abcdef"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
