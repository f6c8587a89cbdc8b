"""No script or command keeps the server for long, whatever is stored. `make bench ONLY=blocking` has the real limit."""

from collections.abc import Callable

import pytest

from lisa_common.model.keys import ShardKeys
from support import Server
from support.blocking import Blocks, Life, Timed
from support.plain import plain_client
from support.queue import Queue

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
