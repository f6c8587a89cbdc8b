"""The ground that the other tests stand on."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import redis
import redis.asyncio

from support import Server, keys_left, wait_until, wait_until_async
from support.ports import reserved_port
from support.server import NO_RETRY


def test_prefix_starts_empty_and_keys_are_listed_in_order(client: redis.Redis, prefix: str) -> None:
    """A test sees its own keys only, and sees them all."""
    assert keys_left(client, prefix) == []
    client.mset({f"{prefix}:{{orders}}:b": 1, f"{prefix}:topics": 1, f"{prefix}x:other": 1})
    assert keys_left(client, prefix) == [f"{prefix}:topics", f"{prefix}:{{orders}}:b"]
    client.delete(f"{prefix}x:other")


async def test_async_client_talks_to_the_same_server(
    client: redis.Redis, async_client: redis.asyncio.Redis, prefix: str
) -> None:
    """What the synchronous client wrote, the asynchronous one reads."""
    client.set(f"{prefix}:greeting", "hello")
    assert await async_client.get(f"{prefix}:greeting") == b"hello"


def test_wait_until_returns_the_value_it_waited_for() -> None:
    """The first truthy value ends the wait."""
    values = iter([0, None, "ready"])
    assert wait_until(lambda: next(values)) == "ready"


def test_wait_until_names_what_never_came() -> None:
    """A failed wait says what was waited for, by the caller's words or the predicate's source."""
    nothing: dict[str, str] = {}
    with pytest.raises(AssertionError, match=r"waited 0\.01 s for the ack; the last value was 0"):
        wait_until(lambda: 0, 0.01, what="the ack")
    with pytest.raises(AssertionError, match=r"for .*nothing\.get"):
        wait_until(lambda: nothing.get("key"), 0.01)


async def test_wait_until_async_takes_functions_and_coroutine_functions() -> None:
    """Both kinds of predicates are awaited as they need."""

    async def answer() -> int:
        return 42

    assert await wait_until_async(answer) == 42
    assert await wait_until_async(lambda: "plain") == "plain"
    with pytest.raises(AssertionError, match=r"for a miracle"):
        await wait_until_async(lambda: False, 0.01, what="a miracle")


def test_a_port_belongs_to_its_server_also_while_that_is_down(
    own_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else is given it, and the server finds it free."""
    server = own_server()
    numbered = SimpleNamespace(randrange=lambda *_: next(numbers))
    monkeypatch.setattr("lisa_common.client.embedded.server.random", numbered)
    for _ in range(2):
        numbers = iter([server.port, server.port, server.port + 1, *range(25_000, 26_000)])
        with reserved_port() as port:
            assert port != server.port
        server.stop()
        numbers = iter([server.port, *range(26_000, 27_000)])
        with reserved_port() as port:
            assert port != server.port
        server.start()


@pytest.mark.parametrize("end", [Server.stop, Server.kill])
def test_own_server_keeps_port_and_persisted_data(
    own_server: Callable[..., Server], end: Callable[[Server], None]
) -> None:
    """With an AOF, neither a stop nor a crash loses what was written; clients find it again."""
    server = own_server(appendonly="yes", appendfsync="always")
    with server.client() as client:
        client.set("kept", "1")
        end(server)
        server.start()
        assert client.get("kept") == b"1"


def test_own_server_can_hang_and_go_on(own_server: Callable[..., Server]) -> None:
    """A frozen server holds the connection open and says nothing."""
    server = own_server()
    with redis.Redis(port=server.port, socket_timeout=0.1, retry=NO_RETRY) as client:
        client.ping()
        server.freeze()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        server.thaw()
        wait_until(client.ping)


def test_server_that_cannot_start_says_why(own_server: Callable[..., Server]) -> None:
    """A wrong configuration fails at once, with the server's own words."""
    with pytest.raises(RuntimeError, match="no-such-option"):
        own_server(no_such_option="1")
