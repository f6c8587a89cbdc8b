"""A URL without TLS at a port with TLS, and the other way round: the error says so."""

import socket

import pytest

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import Unreachable
from lisa_common.protocol.call import command
from lisa_common.tls import NO_TLS
from support.tls import Ping


async def test_no_tls_at_a_port_with_tls(tls_url: str, ping: Ping) -> None:
    """The server hangs up as it is greeted."""
    with pytest.raises(Unreachable, match=r"does this port speak TLS\? then the URL begins with rediss"):
        await ping(tls_url.replace("rediss://", "redis://"), NO_TLS, patience_s=0)


async def test_tls_at_a_port_without(redis_url: str, ping: Ping) -> None:
    """The handshake fails, or is not answered."""
    with pytest.raises(Unreachable, match=r"does it speak TLS on this port\? if not, the URL begins with redis"):
        await ping(redis_url.replace("redis://", "rediss://"), NO_TLS, patience_s=0)


async def test_a_silent_port_is_not_taken_for_one_with_tls() -> None:
    """A server that hangs answers nothing; one with TLS would hang up."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with AsyncConnection(f"redis://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.1) as connection:
            with pytest.raises(Unreachable, match="Timeout") as failure:
                await connection.call(command("PING"))
    assert "TLS" not in str(failure.value)
