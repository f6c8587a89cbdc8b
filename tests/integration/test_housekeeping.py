"""A manager's housekeeping continues while there is work, and serves topics in turn."""

import itertools

import redis

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.model.keys import ShardKeys
from lisa_common.model.sharding import Layout
from lisa_manager.jobs.reporter import Reporter
from lisa_manager.jobs.sweeper import Sweeper
from lisa_manager.jobs.trimmer import Trimmer
from lisa_manager.settings import ManagerSettings
from lisa_manager.shard_table import ShardTable

# As a dedup window leaves them behind.
_FINISH = "for i = 1, ARGV[1] do redis.call('ZADD', KEYS[1], i, 'm' .. i) end"
_FILL = "for i = 1, ARGV[1] do redis.call('XADD', KEYS[1], '*', 'id', i, 'due', 1, 'n', 1) end"


def _keys(prefix: str, topic: str) -> ShardKeys:
    return ShardKeys(prefix, topic)


async def test_one_turn_forgets_all_finished_ids(connection: AsyncConnection, client: redis.Redis, prefix: str) -> None:
    """Many full batches of one topic."""
    finished = _keys(prefix, "orders").of("finished")
    client.eval(_FINISH, 1, finished, 10_000)
    table = ShardTable(prefix, fallback_s=1)
    table.update([Layout(prefix, "orders")])
    await Sweeper(
        connection, table, ManagerSettings(prefix=prefix, housekeeping_s=60), Reporter(connection, prefix)
    ).turn()
    assert client.zcard(finished) == 0


async def test_a_long_sweep_delays_no_others(connection: AsyncConnection, client: redis.Redis, prefix: str) -> None:
    """A turn ends in time, with a step for each topic; the next turn does the rest."""
    large, small = (_keys(prefix, topic).of("finished") for topic in ("large", "small"))
    client.eval(_FINISH, 1, large, 50_000)
    client.eval(_FINISH, 1, small, 1_500)
    moments = itertools.count()
    table = ShardTable(prefix, fallback_s=1, clock=lambda: float(next(moments)))
    table.update([Layout(prefix, "large"), Layout(prefix, "small")])
    await Sweeper(
        connection, table, ManagerSettings(prefix=prefix, housekeeping_s=30), Reporter(connection, prefix)
    ).turn()
    assert client.zcard(small) == 0
    assert 0 < client.zcard(large) < 50_000


async def test_one_turn_trims_a_long_stream(connection: AsyncConnection, client: redis.Redis, prefix: str) -> None:
    """Step by step, as one large trim would block the server."""
    ready = _keys(prefix, "orders").of("ready")
    client.eval(_FILL, 1, ready, 50_000)
    client.xgroup_create(ready, "g", "$")
    table = ShardTable(prefix, fallback_s=1)
    table.update([Layout(prefix, "orders")])
    trimmer = Trimmer(connection, table, ManagerSettings(prefix=prefix, housekeeping_s=60))
    await trimmer.turn()
    assert client.xlen(ready) == 0
    assert trimmer.trimmed == 50_000
