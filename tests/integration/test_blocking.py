"""No script or command keeps the server for long, whatever is stored. `make bench ONLY=blocking` has the real limit."""

from collections.abc import Callable

import pytest
import redis

from lisa_common.model.keys import ShardKeys
from support import Server
from support.blocking import Blocks, Life, Timed
from support.plain import plain_client
from support.queue import Queue, outgoing

_LIMIT_MS = 100
"""Lenient, as the machine may be busy with other things; what is not bounded takes several times as long."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("messages", "body_bytes", "groups"),
    [pytest.param(200, 1024 * 1024, 2, marks=pytest.mark.long), (400, 200, 60)],
    ids=["large bodies", "many groups"],
)
def test_longest_block(own_server: Callable[..., Server], messages: int, body_bytes: int, groups: int) -> None:
    """All that may happen to messages and all that operators may look at (promise 12)."""
    server = own_server(save="")
    with plain_client(server.url) as client, Timed(server.url, server.pid) as connection:
        blocks = Blocks(client, connection)
        names = [f"group{number}" for number in range(groups)]
        with blocks.watching():
            Life(blocks, Queue(connection, ShardKeys("lisa", "orders")), names, messages, b"x" * body_bytes).live()
        assert max(blocks.longest.values()) < _LIMIT_MS, blocks.worst


def _commands(client: redis.Redis, connection: Timed, count: int) -> float:
    """The processor time in ms that the server takes for so many short commands of a script."""
    before = connection.busy_ms()
    client.eval("for i = 1, ARGV[1] do redis.call('ZSCORE', KEYS[1], 'x') end", 1, "yard", str(count))
    return connection.busy_ms() - before


@pytest.mark.slow
def test_a_promotion_beside_unread_messages_of_many_groups(own_server: Callable[..., Server]) -> None:
    """One pass over the stream counts for all groups."""
    server = own_server(save="")
    with plain_client(server.url) as client, Timed(server.url, server.pid) as connection:
        queue = Queue(connection, ShardKeys("lisa", "orders"))
        queue.join(*(f"group{number}" for number in range(100)))
        queue.send_all([outgoing(f"unread{number}") for number in range(499)])
        queue.limit(max_in_flight=1_000)
        queue.send_all([outgoing(f"due{number}") for number in range(10)])
        connection.longest_ms = 0.0
        assert queue.promote().count == 10
        assert connection.longest_ms < max(_commands(client, connection, 50_000) for _ in range(5))
