"""Providers' ways in: credentials that expire, certificates of other names, and addresses of other networks."""

import asyncio
import hashlib
import ssl
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lisa_common.client import async_progress, exchanges
from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.connection import Connection
from lisa_common.errors import CannotCombine, InvalidInput, LisaError, Unreachable, Untrusted
from lisa_common.protocol.call import command
from lisa_common.settings import Settings
from lisa_common.tls import Tls
from lisa_consumer import Consumer, ConsumerSettings, Delivery
from lisa_producer import AsyncProducer, Producer, ProducerSettings
from support import Server, wait_until_async
from support.cluster import cluster
from support.engines import own_binary
from support.running import managed, new_worker, working
from support.sentinel import sentinel_group
from support.tls import Certificates, tls_server
from support.twins import InThread

WHO = command("ACL", "WHOAMI")


@pytest.fixture(params=["blocking", "asyncio"])
def connect(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Makes connections of either kind, all awaitable."""
    return (
        AsyncConnection if request.param == "asyncio" else lambda url, **options: InThread(Connection(url, **options))
    )


@pytest.fixture
def tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module `tokens` in the working directory, whose credentials are in a file."""
    (tmp_path / "tokens.py").write_text(
        "from pathlib import Path\n"
        "from redis.credentials import CredentialProvider\n"
        "def current():\n    return 'app', Path('token').read_text()\n"
        "class Provider(CredentialProvider):\n    def get_credentials(self):\n        return current()\n"
        "    async def get_credentials_async(self):\n        return current()\n",
        "utf-8",
    )
    (tmp_path / "token").write_text("first", "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path / "token"
    sys.modules.pop("tokens", None)


def _store(file: Path, token: str | None) -> None:
    file.unlink() if token is None else file.write_text(token, "utf-8")


def _set_password(server: Server, password: str) -> None:
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "app", "on", "resetpass", f">{password}", "~*", "&*", "+@all")


@pytest.mark.parametrize("target", ["tokens:current", "tokens:Provider"])
async def test_credentials_are_renewed_on_open_connections(
    own_server: Callable[..., Server],
    tokens: Path,
    connect: Callable[..., Any],
    target: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A connection logs in again before the server ends its token, and stays the same connection."""
    for module in (async_progress, exchanges):
        monkeypatch.setattr(module, "RENEW_S", 0.0)
    server = own_server()
    _set_password(server, "first")
    connection = connect(server.url, credentials=target)
    try:
        assert await connection.call(WHO) == b"app"
        client = await connection.call(command("CLIENT", "ID"))
        _store(tokens, "second")
        with server.client() as admin:
            # The old one is good for a while.
            admin.execute_command("ACL", "SETUSER", "app", ">second")
            logins = int(admin.info("commandstats")["cmdstat_auth"]["calls"])
            assert await connection.call(WHO) == b"app"
            assert int(admin.info("commandstats")["cmdstat_auth"]["calls"]) > logins
        assert await connection.call(command("CLIENT", "ID")) == client
    finally:
        await connection.close()


@pytest.mark.usefixtures("tokens")
async def test_credentials_that_do_not_come(
    own_server: Callable[..., Server], tokens: Path, connect: Callable[..., Any]
) -> None:
    """Nothing was done, and a later call may succeed."""
    server = own_server()
    _set_password(server, "first")
    connection = connect(server.url, credentials="tokens:current")
    _store(tokens, None)
    with pytest.raises(Unreachable, match=r"the credential_provider fails: .*No such file"):
        await connection.call(WHO)
    _store(tokens, "first")
    assert await connection.call(WHO) == b"app"
    await connection.close()


@pytest.mark.usefixtures("tokens")
async def test_a_token_ends_under_all_programs(own_server: Callable[..., Server], tokens: Path) -> None:
    """The server closes every connection, subscriptions too; messages are in time again, and no call fails.

    The manager looks by itself only once a minute, so that what is in time was announced by a wake.
    """
    server = own_server()
    _set_password(server, "token 0")
    _store(tokens, "token 0")
    options: dict[str, Any] = {"redis_url": server.url, "credential_provider": "tokens:current"}
    worker, handled = new_worker(server.url, "lisa", credential_provider="tokens:current"), set[str]()

    @worker.on("orders")
    async def handle(delivery: Delivery) -> None:
        handled.add(delivery.id)

    blocking = Producer(settings=ProducerSettings(**options))
    producer = AsyncProducer(settings=ProducerSettings(**options))
    consumer = Consumer("orders", "audit", settings=ConsumerSettings(**options))
    manager = managed(server.url, "lisa", poll_s=60, quiet_poll_s=60, credential_provider="tokens:current")
    with blocking, consumer:
        consumer.read()
        async with producer, manager, working(worker):
            await wait_until_async(lambda: _listeners(server) == 1)
            for number in range(3):
                await producer.send("orders", b"x", delay=1, id=f"before {number}")
                _end_tokens(server, tokens, f"token {number + 1}")
                await producer.send("orders", b"x", delay=0.5, id=f"after {number}")
                await wait_until_async(lambda: len(handled) % 3 == 2)
                await asyncio.to_thread(blocking.send, "orders", b"x", delay=0.5, id=f"by a wake {number}")
                await wait_until_async(lambda number=number: len(handled) == 3 * number + 3)  # type: ignore[misc]
                audited = set[str]()
                while len(audited) < 3:
                    deliveries = await asyncio.to_thread(consumer.read, wait=30)
                    await asyncio.to_thread(consumer.ack, *deliveries)
                    audited.update(delivery.id for delivery in deliveries)


def _end_tokens(server: Server, tokens: Path, token: str) -> None:
    """From now on only a new token logs in, and connections of the old one are closed."""
    _store(tokens, token)
    _set_password(server, token)
    with server.client() as admin:
        admin.execute_command("CLIENT", "KILL", "USER", "app")


def _listeners(server: Server) -> int:
    with server.client() as admin:
        return int(admin.pubsub_numsub("lisa:wake")[0][1])


@pytest.mark.usefixtures("tokens")
def test_credentials_that_cannot_be_used() -> None:
    """One line says why."""
    for target in ("tokens", "tokens:", "nowhere:x", "tokens:missing"):
        with pytest.raises(InvalidInput, match="credential_provider must be module:function"):
            Connection("redis://localhost", credentials=target)
    with pytest.raises(InvalidInput, match="without password when credential_provider is set"):
        Connection("redis://:pw@localhost", credentials="tokens:current")
    settings = Settings(redis_url="redis://localhost", credential_provider="tokens:current", address_map={"a": "b"})
    Connection.of(settings, name="x").close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates of an authority."""
    return Certificates.of(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls_url(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[str]:
    """A server that speaks TLS."""
    with tls_server(tmp_path_factory.mktemp("tls-server"), certificates, mutual=False) as url:
        yield url


async def test_a_pinned_certificate(tls_url: str, certificates: Certificates, connect: Callable[..., Any]) -> None:
    """It is trusted whoever has signed it, and no other one is."""
    der = ssl.PEM_cert_to_DER_cert(certificates.server.cert.read_text("ascii"))
    pin = hashlib.sha256(der).hexdigest()
    for given in (pin, pin.upper(), ":".join(pin[at : at + 2] for at in range(0, 64, 2)), f"{'0' * 64}, {pin}"):
        connection = connect(tls_url, tls=Tls(pin=given))
        assert await connection.call(command("PING")) == b"PONG"
        await connection.close()
    other = connect(tls_url, tls=Tls(pin="0" * 64))
    with pytest.raises(Untrusted, match=f"tls_pin must be that of its certificate, {pin}"):
        await other.call(command("PING"))
    await other.close()


def test_pins_that_cannot_be_used() -> None:
    """A pin stands in for an authority."""
    with pytest.raises(InvalidInput, match="tls_pin must be the SHA-256"):
        Connection("rediss://localhost", tls=Tls(pin="abc"))
    with pytest.raises(CannotCombine, match="tls_ca cannot be combined with tls_pin"):
        Connection("rediss://localhost", tls=Tls(pin="0" * 64, ca="x"))
    with pytest.raises(InvalidInput, match="settings tls_… is set"):
        Connection("redis://localhost", tls=Tls(pin="0" * 64))


async def test_the_name_in_the_certificate(
    tls_url: str, certificates: Certificates, connect: Callable[..., Any]
) -> None:
    """It need not be the host of the URL."""
    url = tls_url.replace("localhost", "127.0.0.1")
    named = connect(url, tls=Tls(ca=str(certificates.ca), server_name="localhost"))
    assert await named.call(command("PING")) == b"PONG"
    await named.close()
    other = connect(url, tls=Tls(ca=str(certificates.ca), server_name="elsewhere"))
    with pytest.raises(Untrusted, match="elsewhere"):
        await other.call(command("PING"))
    await other.close()


@pytest.mark.slow
async def test_a_cluster_that_announces_other_addresses(tmp_path: Path, connect: Callable[..., Any]) -> None:
    """Each node is reached where the map says."""
    announced = {"cluster_announce_hostname": "redis.invalid", "cluster_preferred_endpoint_type": "hostname"}
    with cluster(own_binary(), tmp_path / "cluster", **announced) as servers:
        mapped = {f"redis.invalid:{node.port}": f"127.0.0.1:{node.port}" for node in servers.nodes}
        for address_map in (mapped, {"redis.invalid": "127.0.0.1"}):
            connection = connect(servers.url, address_map=address_map)
            for number in range(20):
                assert await connection.call(command("SET", f"key{number}", "x")) == b"OK"
            await connection.close()


def test_maps_that_cannot_be_used() -> None:
    """One line says what a map has."""
    for given in ({"a:1": ""}, {"": "b:1"}, {"a:x": "b:1"}, {"a": "b:99999"}):
        with pytest.raises(InvalidInput, match="address_map must be addresses as in"):
            Connection("redis://localhost", address_map=given)


async def test_sentinels_that_announce_other_addresses(tmp_path: Path, connect: Callable[..., Any]) -> None:
    """The master is reached where the map says."""
    with sentinel_group(own_binary(), tmp_path / "group") as group:
        port = group.master.port
        connection = connect(group.url, address_map={f"127.0.0.1:{port}": f"localhost:{port}"})
        assert await connection.call(command("PING")) == b"PONG"
        await connection.close()
        astray = connect(group.url, address_map={f"127.0.0.1:{port}": "localhost:1"}, timeout_s=1)
        with pytest.raises(LisaError, match=r"connecting to localhost:1"):
            await astray.call(command("PING"))
        await astray.close()
