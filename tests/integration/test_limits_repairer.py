"""The limits repairer: which topics it looks at."""

from collections.abc import Callable

import pytest
import redis

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import LisaError
from lisa_common.model.keys import ShardKeys
from lisa_manager import AsyncAdmin
from lisa_manager.jobs.discoverer import Discoverer
from lisa_manager.jobs.limits_repairer import LimitsRepairer
from lisa_manager.settings import ManagerSettings
from lisa_manager.shard_table import ShardTable
from support import Server


async def test_a_change_is_looked_at_until_a_look_succeeds(own_server: Callable[..., Server], prefix: str) -> None:
    """A topic without limits keeps no door that an interrupted change has left; then it costs nothing."""
    server = own_server()
    door = ShardKeys(prefix, "orders").of("door")
    settings = ManagerSettings(redis_url=server.url, prefix=prefix)
    async with AsyncConnection(server.url) as connection, AsyncAdmin(settings=settings) as admin:
        await admin.set_policy("orders", max_retries=1)
        discoverer = Discoverer(connection, ShardTable(prefix, fallback_s=60))
        await discoverer.turn()
        keeper = LimitsRepairer(connection, discoverer)
        with server.client() as client:
            client.hset(door, "limits", "left behind")
            client.save()
        server.kill()
        with pytest.raises(LisaError):
            await keeper.turn()
        server.start()
        await keeper.turn()
        with server.client() as client:
            assert not client.exists(door)
            client.hset(door, "limits", "not looked at")
            await keeper.turn()
            assert client.exists(door)
            await admin.set_policy("orders", max_retries=2)
            await discoverer.turn()
            await keeper.turn()
            assert not client.exists(door)


async def test_limits_that_cannot_be_read_delay_no_other_topic(
    redis_url: str, prefix: str, client: redis.Redis
) -> None:
    """Another program may write any bytes. They are replaced."""
    settings = ManagerSettings(redis_url=redis_url, prefix=prefix)
    async with AsyncConnection(redis_url) as connection, AsyncAdmin(settings=settings) as admin:
        doors = [ShardKeys(prefix, topic).of("door") for topic in ("a", "b", "c")]
        for topic in ("a", "b", "c"):
            await admin.set_policy(topic, paused=True)
        discoverer = Discoverer(connection, ShardTable(prefix, fallback_s=60))
        await discoverer.turn()
        wanted = [client.hget(door, "limits") for door in doors]
        for door in doors:
            client.hset(door, "limits", b"\xff")
        await LimitsRepairer(connection, discoverer).turn()
        assert [client.hget(door, "limits") for door in doors] == wanted


async def test_a_damaged_shard_keeps_no_other_from_its_limits(redis_url: str, prefix: str, client: redis.Redis) -> None:
    """Neither a change nor a manager waits for it. The change says what is wrong."""
    settings = ManagerSettings(redis_url=redis_url, prefix=prefix)
    damaged, other = (ShardKeys(prefix, "orders", shard).of("door") for shard in ("0", "1"))
    async with AsyncConnection(redis_url) as connection, AsyncAdmin(settings=settings) as admin:
        await admin.create_topic("orders", shards=2)
        client.set(damaged, "of another program")
        with pytest.raises(LisaError, match="WRONGTYPE"):
            await admin.set_policy("orders", paused=True)
        assert b'"paused":true' in (client.hget(other, "limits") or b"")
        client.delete(other)
        discoverer = Discoverer(connection, ShardTable(prefix, fallback_s=60))
        await discoverer.turn()
        await LimitsRepairer(connection, discoverer).turn()
        assert b'"paused":true' in (client.hget(other, "limits") or b"")


async def test_limits_that_come_late_are_removed(redis_url: str, prefix: str, client: redis.Redis) -> None:
    """However late: a producer that was cut off may set limits that were lifted long ago."""
    door = ShardKeys(prefix, "orders").of("door")
    settings = ManagerSettings(redis_url=redis_url, prefix=prefix)
    async with AsyncConnection(redis_url) as connection, AsyncAdmin(settings=settings) as admin:
        await admin.set_policy("orders", paused=True)
        await admin.set_policy("orders", paused=False)
        discoverer = Discoverer(connection, ShardTable(prefix, fallback_s=60))
        await discoverer.turn()
        keeper = LimitsRepairer(connection, discoverer)
        for _ in range(3):
            await keeper.turn()
            assert not client.exists(door)
            client.hset(door, "limits", '{"revision":1,"paused":true}')
        await keeper.turn()
        assert not client.exists(door)
