"""The slot keeper: what a turn of it costs, and what it finds."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import LisaError, ServerError
from lisa_common.model.keys import ShardKeys
from lisa_common.protocol.call import Call
from lisa_manager import AsyncAdmin
from lisa_manager.jobs.discoverer import Discoverer
from lisa_manager.jobs.slot_keeper import SlotKeeper
from lisa_manager.shard_table import ShardTable
from support.queue import Queue, outgoing

_FILL = """
for n = 1, tonumber(ARGV[1]) do
  redis.call('HSET', KEYS[1], 'id' .. n, 'record')
  redis.call('HSET', KEYS[2], 'id' .. n, 'key' .. n)
  redis.call('ZADD', KEYS[3], 0, 'key' .. n .. '\\0id' .. n)
end
"""
_MOST = 20
"""Pages of one turn."""


class Counted(AsyncConnection):
    """Counts pages; the one after `breaks_after` of them fails."""

    pages = 0
    breaks_after = -1

    async def call(self, call: Call[Any], **options: Any) -> Any:
        """Makes one call."""
        if self.pages == self.breaks_after:
            self.breaks_after = -1
            raise ServerError("the server went away")
        self.pages += 1
        return await super().call(call, **options)


class Keeper:
    """A slot keeper that knows the topics of the registry."""

    def __init__(self, connection: Counted, prefix: str) -> None:
        self.connection = connection
        self.discoverer = Discoverer(connection, ShardTable(prefix, fallback_s=60))
        self._keeper = SlotKeeper(connection, self.discoverer)

    async def turn(self) -> int:
        """Runs a turn. Returns how many pages it looked at."""
        self.connection.pages = 0
        await self._keeper.turn()
        return self.connection.pages


@pytest.fixture
async def keeper(redis_url: str, admin: AsyncAdmin, prefix: str) -> AsyncIterator[Keeper]:
    """A keeper of the topic "orders", where one message of each key may be in flight."""
    await admin.set_policy("orders", max_in_flight_per_key=1)
    async with Counted(redis_url, name="test") as connection:
        keeper = Keeper(connection, prefix)
        await keeper.discoverer.turn()
        yield keeper


def _fill(client: redis.Redis, prefix: str, count: int) -> ShardKeys:
    """Has messages hold slots, of as many keys."""
    keys = ShardKeys(prefix, "orders")
    client.eval(_FILL, 3, keys.of("messages"), keys.of("busy"), keys.of("slots"), count)
    return keys


async def test_a_large_topic_in_rotation(keeper: Keeper, client: redis.Redis, prefix: str) -> None:
    """Only the first turn looks at all slots. Each other looks at a share, and what is wrong is found in a few."""
    keys = _fill(client, prefix, 10_000)
    whole = await keeper.turn()
    assert whole > 2 * _MOST
    shares = [await keeper.turn() for _ in range(8)]
    assert max(shares) == _MOST
    assert sum(shares[: -(-whole // _MOST)]) == whole
    for n in (1, 5_000, 10_000):
        client.hdel(keys.of("messages"), f"id{n}")
    for _ in range(whole // _MOST + 2):
        await keeper.turn()
    assert client.hlen(keys.of("busy")) == 9_997


async def test_a_small_topic_in_each_turn(keeper: Keeper, client: redis.Redis, prefix: str) -> None:
    """A topic of a few pages is tidied in each turn."""
    keys = _fill(client, prefix, 1_000)
    for n in range(1, 5):
        await keeper.turn()
        client.hdel(keys.of("messages"), f"id{n}")
        assert await keeper.turn() < _MOST
        assert client.hlen(keys.of("busy")) == 1_000 - n


async def test_much_damage_is_mended_at_once(keeper: Keeper, client: redis.Redis, prefix: str) -> None:
    """Once something is wrong, the turn looks at all the rest."""
    keys = _fill(client, prefix, 10_000)
    await keeper.turn()
    client.delete(keys.of("messages"))
    while client.hlen(keys.of("busy")) == 10_000:
        await keeper.turn()
    assert client.hlen(keys.of("busy")) == 0


async def test_a_lost_index_is_made_anew_at_once(keeper: Keeper, orders: Queue, client: redis.Redis) -> None:
    """The turn that finds that it is wrong makes all of it, also beyond its share."""
    orders.limit(max_in_flight_per_key=1)
    orders.join("g")
    for start in range(0, 6_000, 1_000):
        orders.send_all([outgoing(f"m{n}", key="k") for n in range(start, start + 1_000)])
    while orders.promote().more:
        pass
    await keeper.turn()
    parked = orders.keys.of("parked")
    before = client.zrange(parked, 0, -1)
    assert len(before) == 5_999
    client.delete(parked)
    await keeper.turn()
    assert client.zrange(parked, 0, -1) == before


async def test_another_limit(keeper: Keeper, admin: AsyncAdmin, client: redis.Redis, prefix: str) -> None:
    """The next turn looks at all slots once, also where this manager does not know the policy yet; an error resumes."""
    _fill(client, prefix, 10_000)
    for limit in (2, None):
        await keeper.turn()
        await keeper.turn()
        await admin.set_policy("orders", max_in_flight_per_key=limit)
        keeper.connection.breaks_after = 50
        assert await keeper.turn() == 50
        assert await keeper.turn() > 40
        assert await keeper.turn() <= _MOST


async def test_a_server_that_was_away(keeper: Keeper, client: redis.Redis, prefix: str, monkeypatch: Any) -> None:
    """What it could not look at, it looks at later."""
    keys = _fill(client, prefix, 100)

    async def fail(_: Any) -> Any:
        raise ServerError("the server went away")

    with monkeypatch.context() as patched:
        patched.setattr(keeper.connection, "execute_each", fail)
        with pytest.raises(LisaError):
            await keeper.turn()
    client.hdel(keys.of("messages"), "id7")
    await keeper.turn()
    assert client.hlen(keys.of("busy")) == 99


async def test_all_keys_of_slots_are_lost(keeper: Keeper, orders: Queue, client: redis.Redis) -> None:
    """Parked messages of which nothing but their times tells become due again."""
    orders.limit(max_in_flight_per_key=1)
    orders.join("g")
    for id in "ab":
        orders.send(id, key="k")
    orders.promote()
    client.delete(*map(orders.keys.of, ("busy", "slots", "parked")))
    orders.ack(*orders.read("g"))
    assert orders.promote().count == 0
    await keeper.turn()
    assert orders.promote().count == 1
