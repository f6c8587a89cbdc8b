"""Proxies and NAT drop idle connections without a word: the next call does not wait for its timeout."""

import asyncio
import socket
import time

import pytest

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.connection import Connection
from lisa_common.client.options import IDLE_S
from lisa_common.protocol.call import PING
from lisa_producer import AsyncProducer, Producer, ProducerSettings
from support import idle_async
from support.plain import plain_url
from support.proxy import Proxy

PATIENT_S = 30.0


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
async def test_the_first_send_after_a_silent_drop(redis_url: str, prefix: str, kind: str) -> None:
    """It does not wait for the timeout, however long that is, and is one message."""
    async with Proxy(_port(redis_url)) as proxy:
        settings = ProducerSettings(redis_url=proxy.url, prefix=prefix, timeout_s=PATIENT_S)
        if kind == "asyncio":
            async with AsyncProducer(settings=settings) as producer:
                await producer.send("orders", b"x")
                proxy.strand()
                await idle_async(IDLE_S)
                began = time.monotonic()
                await producer.send("orders", b"x")
        else:
            with Producer(settings=settings) as blocking:
                await asyncio.to_thread(blocking.send, "orders", b"x")
                proxy.strand()
                await idle_async(IDLE_S)
                began = time.monotonic()
                await asyncio.to_thread(blocking.send, "orders", b"x")
        assert time.monotonic() - began < PATIENT_S / 2


async def test_connections_are_kept_alive(redis_url: str) -> None:
    """By the kernel: what drops idle connections after a minute sees traffic."""
    with Connection(redis_url) as blocking:
        blocking.call(PING)
        [first] = blocking._server._pools.popitem()[1].connections
        _check_keepalive(first._sock)
    async with AsyncConnection(redis_url) as connection:
        await connection.call(PING)
        [second] = connection._server._pool.connections
        _check_keepalive(second._writer.get_extra_info("socket"))


def _check_keepalive(sock: socket.socket) -> None:
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) < 60


def _port(url: str) -> int:
    return int(plain_url(url).rpartition(":")[2].partition("/")[0])
