"""`redis+sentinel://`: who may ask where the master is, and what becomes of those who ask in vain."""

import asyncio
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from lisa_common.client.address import read_url
from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.connection import Connection
from lisa_common.errors import AccessDenied, InvalidInput, Unreachable, Untrusted
from lisa_common.tls import NO_TLS, Tls
from support.sentinel import SERVICE, Sentinel, SentinelGroup
from support.server import Server
from support.tls import Certificates, Ping, tls_binary, tls_config

PASSWORD, SENTINEL_PASSWORD = "of-the-server", "of-the-sentinels"
LOGIN, OPTIONS = f":{PASSWORD}@", f"?sentinel_password={SENTINEL_PASSWORD}"

pytestmark = [pytest.mark.slow, pytest.mark.long]


async def test_passwords_of_servers_and_sentinels(guarded: SentinelGroup, ping: Ping) -> None:
    """Each side is given its own; a user named by the URL is one of the server's."""
    with guarded.master.client() as client:
        client.acl_setuser("jo", enabled=True, passwords=["+hers"], keys=["*"], categories=["+@all"])
    assert await ping(guarded.url_of(SERVICE, LOGIN, OPTIONS), NO_TLS) == b"PONG"
    assert await ping(guarded.url_of(SERVICE, "jo:hers@", OPTIONS), NO_TLS) == b"PONG"


@pytest.mark.parametrize(
    ("login", "options", "told"),
    [
        (LOGIN, "", r"no sentinel leads to the master of 'lisa-master' \(127.0.0.1:\d+: Authentication required"),
        (LOGIN, "?sentinel_password=guessed", "no sentinel leads to .*: invalid username-password pair"),
        (
            LOGIN,
            "?sentinel_username=jo&sentinel_password=guessed",
            "no sentinel leads to .*: invalid username-password",
        ),
        (":guessed@", OPTIONS, "Redis denies access: invalid username-password pair"),
    ],
    ids=["none for the sentinels", "a wrong one for them", "an unknown user of theirs", "a wrong one for the server"],
)
async def test_wrong_passwords(*, guarded: SentinelGroup, ping: Ping, login: str, options: str, told: str) -> None:
    """They are AccessDenied, at once, and told to nobody."""
    with pytest.raises(AccessDenied, match=told) as caught:
        await ping(guarded.url_of(SERVICE, login, options), NO_TLS)
    assert not any(secret in str(caught.value) for secret in ("guessed", PASSWORD, SENTINEL_PASSWORD))


async def test_a_user_who_may_ask_for_the_master_and_no_more(guarded: SentinelGroup, ping: Ping) -> None:
    """That is all that a program needs of a sentinel."""
    for sentinel in guarded.sentinels:
        with sentinel.client() as client:
            client.acl_setuser("asker", enabled=True, passwords=["+asks"], commands=["+sentinel|master"])
    assert (
        await ping(guarded.url_of(SERVICE, LOGIN, "?sentinel_username=asker&sentinel_password=asks"), NO_TLS) == b"PONG"
    )


async def test_an_unknown_service(guarded: SentinelGroup, ping: Ping) -> None:
    """One clear error, which names it and every sentinel, after the caller's patience."""
    told = r"master of 'nope' \(127.0.0.1:\d+: No such master with that name; .*; .*\)"
    with pytest.raises(Unreachable, match=told) as caught:
        await ping(guarded.url_of("nope", LOGIN, OPTIONS), NO_TLS, patience_s=0.1)
    assert SENTINEL_PASSWORD not in str(caught.value)


async def test_no_sentinel_in_reach(ping: Ping, reserve_port: Callable[[], int]) -> None:
    """One clear error, which names every sentinel, after the caller's patience."""
    url = f"redis+sentinel://127.0.0.1:{reserve_port()},127.0.0.1:{reserve_port()}/{SERVICE}"
    with pytest.raises(Unreachable, match=r"no sentinel leads to .*Error 111 .*; .*Error 111"):
        await ping(url, NO_TLS, patience_s=0.1)


async def test_sentinels_that_are_away_or_hang(group: SentinelGroup, ping: Ping) -> None:
    """Others are asked, soon."""
    away, hanging, _ = group.sentinels
    away.stop()
    hanging.freeze()
    async with asyncio.timeout(9):  # a sentinel that hangs would take the whole timeout of 10 s
        assert await ping(group.url, NO_TLS) == b"PONG"


async def test_tls_goes_to_sentinels_and_servers(tmp_path: Path, ping: Ping, reserve_port: Callable[[], int]) -> None:
    """One authority speaks for all of them; a host is known by the name that the sentinels give it."""
    certificates = Certificates.of(tmp_path)
    ports = reserve_port(), reserve_port()
    server_config, sentinel_config = (tls_config(certificates, port) for port in ports)
    settings = ["resolve-hostnames yes", "announce-hostnames yes", f"monitor {SERVICE} localhost {ports[0]} 1"]
    server = Server(tls_binary(), tmp_path / "server", config=server_config)
    sentinel = Sentinel(tls_binary(), tmp_path / "sentinel", settings, sentinel_config | {"tls-replication": "yes"})
    with closing(server), closing(sentinel):
        server.start()
        sentinel.start()
        url = f"rediss+sentinel://localhost:{ports[1]}/{SERVICE}"
        trusting = Tls(ca=str(certificates.ca))
        assert await ping(url, trusting) == b"PONG"
        with pytest.raises(Untrusted, match=r"no sentinel leads to .*self-signed certificate in certificate chain"):
            await ping(url, NO_TLS)
        with pytest.raises(Unreachable):
            await ping(url.replace("rediss", "redis"), NO_TLS, patience_s=0)


@pytest.mark.parametrize("kind", [Connection, AsyncConnection])
@pytest.mark.parametrize(
    ("url", "limit"),
    [
        ("redis+sentinel://host", "with the name of a service"),
        ("redis+sentinel:///service", "with a host for each node"),
        ("redis+sentinel://host,/service", "with a host for each node"),
        ("redis+sentinel://host,other:no/service", "whose port is a number"),
        ("redis+sentinel://host/service/name", "the number of a database"),
        ("redis+sentinel://host/service?colour=red", "only options that the Redis client knows"),
        ("redis+sentinel://u:s@cret@host,other:70000/service", "whose port is a number"),
    ],
)
def test_wrong_urls(kind: type[Connection], url: str, limit: str) -> None:
    """They are refused before anything is tried, without their passwords."""
    with pytest.raises(InvalidInput, match=rf"^redis_url must be .*{limit}.*; got ") as caught:
        kind(url)
    assert "cret" not in str(caught.value)


def test_all_that_a_url_may_say() -> None:
    """Ports of sentinels are 26379 by default; names and passwords may be escaped."""
    address = read_url(
        "redis+sentinel://jo%40:p%2F@[::1]:5,host/a%20b/3?sentinel_username=si&sentinel_password=%3F", NO_TLS
    )
    sentinels = address.options["sentinels"]
    assert (sentinels.service, sentinels.nodes) == ("a b", (("::1", 5), ("host", 26379)))
    assert sentinels.login == {"username": "si", "password": "?"}
    assert {name: address.options[name] for name in ("username", "password", "db")} == {
        "username": "jo@",
        "password": "p/",
        "db": 3,
    }
    assert address.shown.endswith("sentinel_username=si&sentinel_password=***")
    assert "%3F" not in repr(address)
