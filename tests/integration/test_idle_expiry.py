"""Topics that nobody uses expire: not too soon, not while they hold anything, and with managers that come and go."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.model.keys import ShardKeys, idle_key
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_manager.topic_drop import drop_topic
from lisa_manager.topic_use import read_use
from lisa_producer import AsyncProducer
from support import idle_async, wait_until_async
from support.commands import Commands
from support.site import Site, take


async def _topics(site: Site) -> set[str]:
    return {topic.name for topic in await site.admin.topics()}


async def _gone(site: Site, topic: str) -> None:
    async def is_gone() -> bool:
        return topic not in await _topics(site)

    await wait_until_async(is_gone, 20, what=f"{topic} expires")


@pytest.mark.slow
async def test_nothing_is_left_of_a_topic(site: Site, sender: AsyncProducer, reading: Any, keys_of: Any) -> None:
    """Sent, handled and acked: once the dedup window is over and nobody asks any more, all keys go."""
    await site.admin.set_policy("orders", expire_idle_ms=500, dedup_window_ms=1_000)
    orders = reading("orders")
    async with site.managed():
        await orders.read()
        await sender.send("orders", "x", id="a")
        [delivery] = await take(orders)
        await orders.ack(delivery)
        await _gone(site, "orders")
        assert not keys_of("orders")
        # The registry forgets the topic first.
        await wait_until_async(lambda: not site.client.hgetall(idle_key(site.prefix)))


@pytest.fixture
def keys_of(site: Site) -> Callable[[str], list[str]]:
    """Names the keys of a topic that exist."""

    def keys_of(topic: str) -> list[str]:
        keys = ShardKeys(site.prefix, topic)
        return [name for name in map(keys.of, ("ready", "messages", "finished")) if site.client.exists(name)]

    return keys_of


async def test_an_open_dedup_window_keeps_a_topic(site: Site, sender: AsyncProducer, reading: Any) -> None:
    """Promise 6: within it, a send of the id is a duplicate."""
    await site.admin.set_policy("orders", expire_idle_ms=1)
    orders = reading("orders")
    await orders.read()
    await sender.send("orders", "x", id="a")
    await orders.ack(*await take(orders))
    site.client.xgroup_delconsumer(ShardKeys(site.prefix, "orders").of("ready"), "g", orders.name)
    async with site.managed():
        await idle_async(1.0)
        assert (await sender.send("orders", "x", id="a")).duplicate
        assert "orders" in await _topics(site)


async def test_a_restart_of_managers_does_not_begin_the_time_anew(site: Site) -> None:
    """It is stored since when a topic is unused."""
    await site.admin.set_policy("orders", expire_idle_ms=3_600_000)
    async with site.managed():
        await wait_until_async(lambda: site.client.hget(idle_key(site.prefix), "orders"))
    since = int(site.client.hget(idle_key(site.prefix), "orders") or 0)
    site.client.hset(idle_key(site.prefix), "orders", since - 3_600_000)
    async with site.managed():
        await _gone(site, "orders")


async def test_status_shows_the_time(site: Site, commands: Commands) -> None:
    """Also what ends where, and after how long."""
    await site.admin.set_policy(
        "orders", expire_idle_ms=3_600_000, dead_letter_topic="dead", dead_letter_delay_ms=5_000
    )
    seconds, _ = site.client.execute_command("TIME")
    site.client.hset(idle_key(site.prefix), "orders", (int(seconds) - 600) * 1000)
    [status] = await site.admin.status("orders")
    assert (status.dead_letter_topic, status.dead_letter_delay_ms) == ("dead", 5_000)
    assert status.expire_idle_ms == 3_600_000
    assert 600_000 <= (status.unused_ms or 0) < 620_000
    *_, shown = commands.manager("status").rows
    # A second or more may have passed.
    assert shown[:-1] == ["orders", "dead", "5s", "1h"]
    assert re.fullmatch(r"10m(\d+s)?", shown[-1])
    document = commands.manager("status", "--json").document
    assert document[0]["dead_letter_topic"] == "dead"


async def test_what_comes_between_the_look_and_the_drop_keeps_the_topic(
    site: Site, connection: AsyncConnection, sender: AsyncProducer, reading: Any
) -> None:
    """Even if it is acked by then: the id is known."""
    await site.admin.set_policy("orders", expire_idle_ms=1, expire_idle="always")
    layout = Layout(site.prefix, "orders", Policy(expire_idle_ms=1))
    use = await connection.run(read_use(layout))
    orders = reading("orders")
    await orders.read()
    await sender.send("orders", "x", id="a")
    await orders.ack(*await take(orders))
    for force in (False, True):
        dropped = await connection.run(drop_topic(site.prefix, "orders", force=force, last=use.last))
        assert not dropped.done
    assert (await sender.send("orders", "x", id="a")).duplicate
    use = await connection.run(read_use(layout))
    assert (await connection.run(drop_topic(site.prefix, "orders", force=False, last=use.last))).done


async def test_a_sharded_topic_expires_as_a_whole(site: Site, sender: AsyncProducer) -> None:
    """A message in any shard keeps all."""
    await site.admin.set_policy("orders", expire_idle_ms=1, shards=3)
    await sender.send("orders", "x", id="a", delay=60)
    async with site.managed():
        await idle_async(0.5)
        assert "orders" in await _topics(site)
        await site.admin.cancel("orders", ["a"])
        # Repeats of the send know it for a minute.
        site.client.delete(*(ShardKeys(site.prefix, "orders", shard).of("finished") for shard in "012"))
        await _gone(site, "orders")


async def test_a_damaged_topic_hurts_no_other(site: Site) -> None:
    """One with keys of another type stays, and is reported; foreign values of the mark count as none."""
    await site.admin.set_policy("damaged", expire_idle_ms=1)
    await site.admin.set_policy("orders", expire_idle_ms=1)
    site.client.set(ShardKeys(site.prefix, "damaged").of("ready"), "no stream")
    site.client.hset(idle_key(site.prefix), mapping={"orders": "9" * 400, "no topic": "x", b"\xff": b"\xff"})
    async with site.managed():
        await _gone(site, "orders")
        await wait_until_async(lambda: b"no topic" not in site.client.hgetall(idle_key(site.prefix)))
    assert await _topics(site) == {"damaged"}


async def test_a_topic_with_schedules_is_used(site: Site) -> None:
    """Even if its messages may be dropped: a schedule ends when somebody deletes it, and then the topic may expire."""
    await site.admin.set_policy("orders", expire_idle_ms=1, expire_idle="always")
    await site.admin.set_schedule("orders", "daily", every=86_400)
    mark = idle_key(site.prefix)
    async with site.managed():
        await wait_until_async(lambda: site.client.hget(mark, "orders"))
        first = site.client.hget(mark, "orders")
        await wait_until_async(lambda: site.client.hget(mark, "orders") != first, what="another look")
        assert "orders" in await _topics(site)
        assert [state.schedule.name for state in await site.admin.list_schedules()] == ["daily"]
        await site.admin.delete_schedule("orders", "daily")
        await _gone(site, "orders")
