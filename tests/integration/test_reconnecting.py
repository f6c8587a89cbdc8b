"""What fails before a request goes out: nothing was done, so it may be tried again."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.connection import Connection
from lisa_common.errors import Unreachable
from lisa_common.protocol.call import command
from support import Server, wait_until_async
from support.proxy import Proxy
from support.twins import InThread

_ONCE = command("INCR", "number", repeatable=False)


@pytest.fixture(params=["blocking", "asyncio"])
def connect(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Opens a connection of either kind."""
    if request.param == "asyncio":
        return AsyncConnection
    return lambda url, **options: InThread(Connection(url, **options))


@asynccontextmanager
async def _behind(server: Server, connect: Callable[..., Any], **options: Any) -> AsyncIterator[tuple[Proxy, Any]]:
    """A connection through a proxy that has made a call."""
    async with Proxy(server.port) as proxy:
        connection = connect(proxy.url, **options)
        assert await connection.call(command("SET", "number", 1), patience_s=60) == b"OK"
        yield proxy, connection
        await connection.close()


def _age(connection: Any) -> None:
    """Makes the idle connection one that was used long ago."""
    server = getattr(connection, "_blocking", connection)._server
    pool = server._pools[os.getpid()] if hasattr(server, "_pools") else server._pool
    used = pool.next
    used._fresh_until = used.next_health_check = 0


async def test_a_greeting_that_is_not_answered(own_server: Callable[..., Server], connect: Callable[..., Any]) -> None:
    """A balancer takes connections while its server restarts."""
    server = own_server()
    async with _behind(server, connect, timeout_s=0.3) as (proxy, connection):
        proxy.silent = True
        with server.client() as client:
            client.client_kill_filter(_type="normal")
        await wait_until_async(lambda: not proxy._clients, what="the connection to end")
        with pytest.raises(Unreachable):
            await connection.call(_ONCE)
        proxy.silent = False
        assert await connection.call(command("GET", "number"), patience_s=60) == b"1"


async def test_a_health_check_without_answer(own_server: Callable[..., Server], connect: Callable[..., Any]) -> None:
    """A firewall has forgotten an idle connection: the request goes out on another one."""
    async with _behind(own_server(), connect) as (proxy, connection):
        proxy.strand()
        _age(connection)
        assert await connection.call(_ONCE) == 2
