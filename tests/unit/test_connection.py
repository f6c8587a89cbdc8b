"""Calls, flows and errors: what the shells promise, without and with a server."""

import multiprocessing
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.exceptions

from lisa_common.client.address import masked
from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.connection import Connection
from lisa_common.client.translation import lisa_error
from lisa_common.client.wire import forgotten, read_reply
from lisa_common.errors import (
    AccessDenied,
    InvalidInput,
    LisaError,
    NoGroup,
    OutcomeUnknown,
    Refused,
    ServerError,
    Unreachable,
)
from lisa_common.model.keys import ShardKeys, copy_of, split_copy
from lisa_common.protocol.call import Call, Flow, command, script
from support import Server

ResponseError = redis.exceptions.ResponseError


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ResponseError("OOM command not allowed"), Refused),
        (redis.exceptions.OutOfMemoryError("command not allowed"), Refused),
        (ResponseError("MISCONF Redis is configured to save"), Refused),
        (redis.exceptions.ReadOnlyError("You can't write"), Refused),
        (redis.exceptions.BusyLoadingError("Redis is loading"), Refused),
        (ResponseError("BUSY Redis is busy running a script"), Refused),
        (ResponseError("MASTERDOWN Link with MASTER is down"), Refused),
        (ResponseError("max number of clients reached"), Refused),
        (ResponseError("NOGROUP No such key"), NoGroup),
        (ResponseError("UNBLOCKED the stream key no longer exists"), NoGroup),
        (ResponseError("NOPERM this user has no permissions"), AccessDenied),
        (ResponseError("ACL failure in script: User jo has no permissions"), AccessDenied),
        (ResponseError("The user executing the script can't run this command or subcommand"), AccessDenied),
        (redis.exceptions.NoPermissionError("this user"), AccessDenied),
        (redis.exceptions.AuthenticationError("invalid password"), AccessDenied),
        (ResponseError("WRONGPASS invalid username-password pair"), AccessDenied),
        (ResponseError("WRONGTYPE Operation against a key"), ServerError),
        (redis.exceptions.ConnectionError("Connection closed by server."), OutcomeUnknown),
        (redis.exceptions.TimeoutError("Timeout reading from socket"), OutcomeUnknown),
        (ConnectionResetError("reset"), OutcomeUnknown),
        (redis.exceptions.ConnectionError(), OutcomeUnknown),
    ],
)
def test_errors_are_ours(error: Exception, kind: type[LisaError]) -> None:
    """Each error of client or server becomes the one that says what was done and what was not."""
    assert type(lisa_error(error)) is kind


def test_our_errors_stay() -> None:
    """An error of ours is not wrapped again."""
    error = NoGroup("x")
    assert lisa_error(error) is error


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost:6379/1", "redis://localhost:6379/1"),
        ("redis://user:secret@host:1", "redis://user:***@host:1"),
        ("redis://:secret@host", "redis://:***@host"),
        ("redis://:se@cret@host", "redis://:***@host"),
    ],
)
def test_passwords_are_masked(url: str, shown: str) -> None:
    """A URL is shown without its password."""
    assert masked(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        *("", "localhost:6379", "http://localhost", "redis://host:port"),
        *("redis://host?protocol=3", "redis+cluster://host?decode_responses=true"),
        *("REDIS://host", " redis://host", "redis:host", "redis://host:0", "redis+cluster://host:0"),
        *("unix://tmp/socket", "unix://user:pass@tmp/socket"),
        # Each of these passwords would end the host, so that a part of it became one.
        *(
            "redis://u:p@ss#word@host",
            "redis://u:p@ss/word@host",
            "redis://u:p@ss?word@host",
            "redis://u:p@ss?a=b@host",
        ),
        *("redis+sentinel://u:p@ss/word@host/service", "redis+cluster://u:p@ss?word@host", "unix://u:pa#ss@/socket"),
    ],
)
@pytest.mark.parametrize("kind", [Connection, AsyncConnection])
def test_wrong_url(url: str, kind: type[Connection]) -> None:
    """A URL that is none of ours is refused before anything is tried."""
    with pytest.raises(InvalidInput, match="redis_url"):
        kind(url)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("REDIS://host", "a URL that begins with redis://"),
        (" redis://host", "a URL that begins with redis://"),
        ("redis://u:p@ss#word@host", r"a URL without # .*in a password, write .*; got 'redis://u:\*\*\*@host'"),
        ("unix://tmp/socket", "unix:// and an absolute path"),
    ],
)
def test_the_error_says_what_to_write(url: str, told: str) -> None:
    """And shows no part of the password."""
    with pytest.raises(InvalidInput, match=told):
        Connection(url)


def test_a_lost_script_is_told_from_other_errors() -> None:
    """After a flush the scripts are called again, and plain commands with them; nothing else is."""
    keys = ShardKeys("lisa", "orders")
    join: Call[Any] = script("join", keys, group="g", most=0)
    wait: Call[Any] = command("WAIT", 0, 0)
    lost = redis.exceptions.NoScriptError("NOSCRIPT")
    assert forgotten([join, join, wait], [1, lost, 0]) == [1, 2]
    assert forgotten([join, wait], [1, ResponseError("x")]) == []


def test_an_error_may_be_a_reply() -> None:
    """A call that takes errors has them decoded; another has the error as its result."""
    error = ResponseError("NOGROUP x")
    assert read_reply(command("X", decode=str, takes_errors=True), error) == "NOGROUP x"
    assert isinstance(read_reply(command("X"), error), NoGroup)
    assert read_reply(command("X", decode=lambda reply: reply + 1), 1) == 2


def test_copies() -> None:
    """A copy's group has no slash, its id may."""
    assert split_copy(copy_of("g", "a/b")) == ("g", "a/b")
    assert split_copy("/a") == ("", "a")


def test_keys_share_a_hash_tag() -> None:
    """All keys of a topic are in one slot."""
    keys = ShardKeys("lisa", "orders")
    assert all(key.startswith("lisa:{orders}:") for key in keys.all())
    assert len(set(keys.all())) == 16


def test_flows(redis_url: str, prefix: str) -> None:
    """A flow gets the result of a call, those of a pipeline, and errors where it yielded."""

    def flow() -> Flow[list[Any]]:
        key = f"{prefix}:k"
        one = yield command("SET", key, "1")
        more = yield [command("INCR", key), command("GET", key, decode=int)]
        try:
            yield command("LPUSH", key, "x")
        except ServerError as error:
            return [one, *more, str(error)[:9]]
        return []

    with Connection(redis_url) as connection:
        assert connection.run(flow()) == [b"OK", 2, 2, "WRONGTYPE"]


async def test_flows_async(redis_url: str, prefix: str) -> None:
    """The asyncio shell drives the same flows."""

    def flow() -> Flow[int]:
        yield [command("SET", f"{prefix}:k", "1"), command("INCR", f"{prefix}:k")]
        try:
            yield command("LPUSH", f"{prefix}:k", "x")
        except ServerError:
            result: int = yield command("INCR", f"{prefix}:k")
            return result
        return 0

    async with AsyncConnection(redis_url) as connection:
        assert await connection.run(flow()) == 3


def join_calls(prefix: str) -> list[Call[Any]]:
    """A pipeline of scripts and a command."""
    keys = ShardKeys(prefix, "orders")
    return [script("join", keys, group="g", most=0), command("PING"), script("trim", keys, spent_ms=1, silent_ms=1)]


async def test_scripts_are_loaded_after_a_flush(own_server: Callable[..., Server], prefix: str) -> None:
    """A server that has forgotten its scripts gets them again, in both colours (promise 14)."""
    url = own_server().url
    with Connection(url) as connection:
        for expected in (1, 0):
            connection.call(command("SCRIPT", "FLUSH"))
            joined, pong, trimmed = connection.execute(join_calls(prefix))
            assert (joined, pong, trimmed[0]) == (expected, b"PONG", 0)
    async with AsyncConnection(url) as other:
        await other.call(command("SCRIPT", "FLUSH"))
        assert await other.call(join_calls(prefix)[0]) == 0


async def test_no_server(own_server: Callable[..., Server]) -> None:
    """Where nobody answers nothing was done; the connection works again once the server does."""
    server = own_server()
    with Connection(server.url) as connection:
        assert connection.call(command("PING")) == b"PONG"
        server.kill()
        with pytest.raises((Unreachable, OutcomeUnknown)):
            connection.call(command("INCR", "x", repeatable=False))
        with pytest.raises(Unreachable, match="cannot reach Redis"):
            connection.call(command("INCR", "x", repeatable=False))
        async with AsyncConnection(server.url) as other:
            with pytest.raises(Unreachable, match="cannot reach Redis"):
                await other.call(command("PING"))
            server.start()
            assert await other.call(command("PING"), patience_s=5) == b"PONG"
        assert connection.call(command("INCR", "x"), patience_s=5) == 1


def test_a_frozen_server(own_server: Callable[..., Server]) -> None:
    """A request without a reply may have been carried out: the caller is told so, and it is not repeated."""
    server = own_server()
    with Connection(server.url, timeout_s=0.2) as connection:
        connection.call(command("PING"))
        server.freeze()
        with pytest.raises(OutcomeUnknown):
            connection.call(command("INCR", "x", repeatable=False), patience_s=5)
        server.thaw()
        assert connection.call(command("INCR", "x"), patience_s=5) == 2


def test_wrong_password(own_server: Callable[..., Server]) -> None:
    """A wrong password is no outage, and is not shown."""
    server = own_server()
    with server.client() as client:
        client.config_set("requirepass", "right")
    with Connection(f"redis://:wrong@127.0.0.1:{server.port}") as connection:
        with pytest.raises(AccessDenied) as caught:
            connection.call(command("PING"), patience_s=5)
        assert "wrong@" not in str(caught.value)
    with Connection(f"redis://:right@127.0.0.1:{server.port}") as connection:
        assert connection.call(command("PING")) == b"PONG"


def test_connections_are_kept_unless_they_are_spoilt(redis_url: str, client: redis.Redis) -> None:
    """A call goes over the connection of the last one; if the server has closed that, over a new one, and only once."""
    who = command("CLIENT", "ID", repeatable=False)
    with Connection(redis_url) as connection:
        first = connection.call(who)
        assert connection.call(who) == first
        client.client_kill_filter(_id=str(first))
        second = connection.call(who)
        assert second != first
        assert connection.call(who) == second


def test_a_forked_process_speaks_on_a_connection_of_its_own(redis_url: str) -> None:
    """What parent and child say on one connection would reach the server in pieces."""
    who = command("CLIENT", "ID")
    processes = multiprocessing.get_context("fork")
    with Connection(redis_url) as connection:
        answers = processes.SimpleQueue()
        before = connection.call(who)
        child = processes.Process(target=lambda: answers.put(connection.call(who)))
        child.start()
        assert answers.get() != before
        child.join()
        assert connection.call(who) == before
