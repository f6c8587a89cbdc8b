"""`unix://`: a server on a socket of the file system."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.connection import Connection
from lisa_common.errors import AccessDenied, InvalidInput, Unreachable
from lisa_common.protocol.call import command
from lisa_common.tls import NO_TLS, Tls
from support import Server
from support.tls import Ping

OwnServer = Callable[..., Server]


@pytest.fixture
def path(own_server: OwnServer, tmp_path: Path) -> Path:
    """The socket of a server which has a user `jo`."""
    socket = tmp_path / "redis.sock"
    with own_server(unixsocket=str(socket)).client() as client:
        client.acl_setuser("jo", enabled=True, passwords=["+hers"], keys=["*"], categories=["+@all"])
    return socket


async def test_a_socket_is_spoken_to(path: Path, ping: Ping) -> None:
    """With a login and options as in any URL."""
    assert await ping(f"unix://{path}", NO_TLS) == b"PONG"
    assert await ping(f"unix://jo:hers@{path}?db=3", NO_TLS) == b"PONG"
    with pytest.raises(AccessDenied):
        await ping(f"unix://jo:guessed@{path}", NO_TLS)


def test_the_database_is_an_option(path: Path) -> None:
    """The path is the socket's."""
    with Connection(f"unix://{path}?db=3") as connection:
        assert b" db=3 " in connection.call(command("CLIENT", "INFO"))


async def test_no_socket(tmp_path: Path, ping: Ping) -> None:
    """A server that is away is Unreachable here too: nothing was done."""
    with pytest.raises(Unreachable, match=r"cannot reach Redis at unix://jo:\*\*\*@.*/nothing"):
        await ping(f"unix://jo:hers@{tmp_path}/nothing", NO_TLS, patience_s=0.1)


async def test_a_server_that_comes_back(own_server: OwnServer, tmp_path: Path) -> None:
    """Connections are made again, as over TCP."""
    server = own_server(unixsocket=str(tmp_path / "redis.sock"))
    url = f"unix://{tmp_path}/redis.sock"
    with Connection(url) as blocking:
        async with AsyncConnection(url) as asynchronous:
            assert blocking.call(command("PING")) == await asynchronous.call(command("PING")) == b"PONG"
            server.restart()
            assert blocking.call(command("PING")) == b"PONG"
            assert await asynchronous.call(command("PING"), patience_s=10) == b"PONG"


def test_no_tls_there() -> None:
    """What cannot be had is refused."""
    with pytest.raises(InvalidInput, match=r"a rediss:// or rediss\+… URL when"):
        Connection("unix:///tmp/redis.sock", tls=Tls(ca="ca.crt"))
