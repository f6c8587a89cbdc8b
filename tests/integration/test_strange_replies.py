"""Replies that no Redis gives, as of a proxy or of damaged data: an error of one call, and never an endless one."""

from collections.abc import Callable
from typing import Any

import pytest

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.connection import Connection
from lisa_common.errors import AccessDenied, LisaError, OutcomeUnknown, Refused, UnreadableReply
from lisa_common.model.delivery import Entry
from lisa_common.model.keys import ShardKeys
from lisa_common.model.message import Outgoing
from lisa_common.model.policy import DEFAULT_POLICY
from lisa_common.protocol import consuming, managing, producing
from lisa_common.protocol.call import command
from lisa_common.protocol.fetching import fetch
from support.answering import answering_server
from support.twins import InThread

KEYS = ShardKeys("lisa", "orders")
ENTRY = Entry("1-1", "m", 5, 1)
CALLS = (
    consuming.join(KEYS, "g"),
    consuming.read([KEYS], "g", "c", limit=1, block_ms=None),
    consuming.list_pending(KEYS, "g", "c", limit=1),
    fetch(KEYS, ["m"]),
    consuming.server_time(),
    consuming.ack(KEYS, "g", [ENTRY], DEFAULT_POLICY),
    consuming.nack(KEYS, "g", [consuming.Nack(ENTRY)], DEFAULT_POLICY),
    consuming.release(KEYS, "g", [ENTRY]),
    consuming.extend(KEYS, "g", "c", [ENTRY], DEFAULT_POLICY),
    consuming.discard(KEYS, "g", [ENTRY], DEFAULT_POLICY),
    managing.promote(KEYS, limit=1),
    managing.reclaim(KEYS, "g", DEFAULT_POLICY, cursor="0-0", limit=1),
    managing.trim(KEYS, spent_ms=1),
    managing.sweep(KEYS, DEFAULT_POLICY, limit=1),
    managing.replay(KEYS, ["g/m"]),
    managing.purge(KEYS, ["g/m"]),
    producing.send(KEYS, [Outgoing("m", "+1", b"\0")], repeatable=True),
    producing.cancel(KEYS, ["m"]),
    producing.reschedule(KEYS, [("m", "+1")]),
    producing.find(KEYS, "m"),
)
STRANGE = (
    b"+\xff\xfe\r\n",
    b"$-1\r\n",
    b"*0\r\n",
    b"*1\r\n$1\r\nx\r\n",
    b"*1\r\n*2\r\n:-7\r\n$1\r\nx\r\n",
)


@pytest.fixture(params=["blocking", "asyncio"])
def connect(request: pytest.FixtureRequest) -> Callable[[str], Any]:
    """Opens a connection of either kind."""
    if request.param == "asyncio":
        return AsyncConnection
    return lambda url: InThread(Connection(url))


@pytest.mark.parametrize("reply", STRANGE)
async def test_a_strange_reply_is_an_error_of_its_call(connect: Callable[[str], Any], reply: bytes) -> None:
    """Whatever each call of each program gets, it is a result, or an error that shows the reply."""
    with answering_server(lambda _: reply) as url:
        connection = connect(url)
        results = await connection.execute_each(CALLS)
        await connection.close()
    errors = [result for result in results if isinstance(result, Exception)]
    assert all(isinstance(error, LisaError) for error in errors)
    assert len(errors) > len(CALLS) // 2
    unreadable = [str(error) for error in errors if isinstance(error, UnreadableReply)]
    assert all("cannot be read: " in text and text.isprintable() for text in unreadable), unreadable


async def test_other_calls_of_a_pipeline_have_their_results(connect: Callable[[str], Any], redis_url: str) -> None:
    """A decode that fails says nothing of its neighbours."""

    def fail(_: Any) -> int:
        raise KeyError("\x1b[2J\n")

    connection = connect(redis_url)
    first, second, third = await connection.execute_each(
        [command("ECHO", "1"), command("ECHO", b"\x1b[2J\xff" * 1_000, decode=fail), command("ECHO", "3")]
    )
    await connection.close()
    assert (first, third) == (b"1", b"3")
    assert isinstance(second, UnreadableReply)
    assert len(str(second)) < 400
    assert str(second).startswith("the reply to ECHO cannot be read: ")


async def test_a_script_that_no_server_keeps_is_refused(connect: Callable[[str], Any]) -> None:
    """As behind a balancer over several servers: it is loaded a few times, and then that is said."""
    asked: list[bytes] = []

    def answer(words: list[Any]) -> bytes:
        asked.append(words[0])
        return b"-NOSCRIPT No matching script.\r\n"

    with answering_server(answer) as url:
        connection = connect(url)
        [result] = await connection.execute_each([managing.promote(KEYS, limit=1)])
        await connection.close()
    assert isinstance(result, Refused)
    assert "one server" in str(result)
    assert len(asked) < 10


@pytest.mark.parametrize(
    "error", [b"LOADING Redis is loading", b"NOAUTH Authentication required.", b"ERR max number of clients reached"]
)
async def test_an_error_that_the_client_takes_for_a_broken_connection(
    connect: Callable[[str], Any], error: bytes
) -> None:
    """It is the reply to its call; the calls beside it have theirs, and are not repeated."""
    asked: list[bytes] = []

    def answer(words: list[Any]) -> bytes:
        asked.append(words[0])
        return b":1\r\n" if words[0] == b"INCR" else b"-%s\r\n" % error

    with answering_server(answer) as url:
        connection = connect(url)
        calls = [command("INCR", "number", repeatable=False), command("GET", "key"), command("INCR", "number")]
        first, refused, third = await connection.execute_each(calls)
        await connection.close()
    assert (first, third) == (1, 1)
    assert isinstance(refused, AccessDenied if b"NOAUTH" in error else Refused)
    assert asked == [b"INCR", b"GET", b"INCR"]


async def test_a_reply_of_another_protocol(connect: Callable[[str], Any]) -> None:
    """Nobody knows what the server did, and the connection is not used again."""
    replies = [b"?oops\r\n", b":2\r\n"]
    with answering_server(lambda _: replies.pop(0)) as url:
        connection = connect(url)
        with pytest.raises(OutcomeUnknown, match="Protocol error"):
            await connection.call(command("INCR", "number", repeatable=False))
        assert await connection.call(command("INCR", "number", repeatable=False)) == 2
        await connection.close()
