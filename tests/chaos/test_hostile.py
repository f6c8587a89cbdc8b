"""A hostile neighbour of one topic: other topics are served as ever, every command answers, and a repair mends it."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
import redis

from chaos.hostile import LAST_ENTRY, Hostile
from lisa_common.model.keys import KEY_TYPES, ShardKeys, topics_key
from lisa_common.model.policy import Policy
from lisa_consumer import Delivery, Retry
from lisa_manager import Admin, ManagerSettings
from lisa_producer import AsyncProducer, ProducerSettings
from support import wait_until_async
from support.commands import Commands
from support.running import Handled, managed, new_worker, working

POLICY = Policy(visibility_ms=500, backoff="fixed", backoff_base_ms=50)
LOOKS = (
    *(["status"], ["status", "--json"], ["check"], ["check", "--json"], ["topic", "list"], ["group", "list", "bad"]),
    *(["schedule", "list"], ["schedule", "show", "bad", "of-bad"], ["schedule", "show", "good", "of-good"], ["doctor"]),
    *(["garbage", "list", "bad"], ["garbage", "list", "bad", "--json"], ["show", "bad", "a"], ["show", "bad", "known"]),
)


@pytest.fixture
def bad(redis_url: str, client: redis.Redis, prefix: str) -> ShardKeys:
    """A topic that others write to, beside a good one; a schedule sends to each."""
    with Admin(settings=ManagerSettings(redis_url=redis_url, prefix=prefix)) as admin:
        for topic in ("good", "bad"):
            client.hset(topics_key(prefix), topic, POLICY.dump())
            admin.set_schedule(topic, f"of-{topic}", every=timedelta(days=1))
    return ShardKeys(prefix, "bad")


@asynccontextmanager
async def _served(url: str, prefix: str) -> AsyncIterator[tuple[AsyncProducer, Handled]]:
    """A manager, and a worker that handles both topics; each good message fails once."""
    handled = Handled()
    worker = new_worker(url, prefix)

    @worker.on("good", "bad")
    async def handle(delivery: Delivery) -> None:
        handled.append(delivery)
        if delivery.topic == "good" and delivery.attempt == 1:
            raise Retry("once")

    settings = ProducerSettings(redis_url=url, prefix=prefix)
    async with AsyncProducer(settings=settings) as producer, managed(url, prefix), working(worker):
        yield producer, handled


async def _is_served(producer: AsyncProducer, handled: Handled, names: str) -> None:
    """Messages of the good topic are promoted, handled, retried and handled again in time."""
    ids = [f"{names}-{number}" for number in range(5)]
    for id in ids:
        await producer.send("good", b"x", id=id, delay=0.05)
    await wait_until_async(lambda: [handled.ids.count(id) for id in ids] == [2] * 5, what=f"{ids} twice each")


async def _all_answer(commands: Commands, *codes: int) -> None:
    for words in LOOKS:
        ran = await asyncio.to_thread(commands.manager, *words)
        assert ran.code in (0, 1, *codes), (words, ran)
        assert "\x1b" not in ran.out + ran.err, words


async def _is_mended(commands: Commands, producer: AsyncProducer, handled: Handled) -> None:
    """After a repair or two new messages of the topic are handled."""
    await asyncio.to_thread(commands.manager, "check", "bad", "--repair")
    await asyncio.to_thread(commands.manager, "check", "bad", "--repair")
    for number in range(3):
        await producer.send("bad", b"x", id=f"after-{number}", delay=0.05)
    await wait_until_async(lambda: {f"after-{number}" for number in range(3)} <= {*handled.ids}, what="the others")


def _faults(caplog: Any) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("seed", range(4))
async def test_a_hostile_writer_harms_its_own_topic_alone(
    *, redis_url: str, client: redis.Redis, prefix: str, bad: ShardKeys, seed: int, caplog: Any
) -> None:
    """Whatever values it writes into every key, by all commands that its role has (promise 12)."""
    caplog.set_level(logging.INFO)
    hostile, commands = Hostile(client, bad, seed), Commands(redis_url, prefix)
    async with _served(redis_url, prefix) as (producer, handled):
        for id in ("known", "a", "b"):
            await producer.send("bad", b"x", id=id, delay=600)
        for number in range(3):
            await asyncio.to_thread(hostile.write, 400)
            await _is_served(producer, handled, f"m{number}")
            await _all_answer(commands)
        client.unlink(bad.of("closed"))
        await _is_mended(commands, producer, handled)
        await _is_served(producer, handled, "last")
    assert _faults(caplog) == []
    assert len(caplog.records) < 3_000


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, kind in KEY_TYPES.items() if kind != "string"])
async def test_a_key_of_another_type_is_named_and_mended(
    *, redis_url: str, client: redis.Redis, prefix: str, bad: ShardKeys, name: str, caplog: Any
) -> None:
    """`status` and `check` say which topic it is, and go on with the others."""
    commands = Commands(redis_url, prefix)
    client.set(bad.of(name), "of another type")
    async with _served(redis_url, prefix) as (producer, handled):
        await _is_served(producer, handled, "m")
        ran = await asyncio.to_thread(commands.manager, "check")
        assert ran.code == 1
        assert f"{name} must be a" in ran.out
        ran = await asyncio.to_thread(commands.manager, "status")
        assert {"good", "bad"} <= {row[0] for row in ran.rows if row}
        ran = await asyncio.to_thread(commands.manager, "schedule", "list")
        assert {"good", "bad"} <= {row[0] for row in ran.rows if row}
        await _all_answer(commands, 2)
        await _is_mended(commands, producer, handled)
    assert _faults(caplog) == []


async def test_a_stream_at_its_end_loses_nothing(
    *, redis_url: str, client: redis.Redis, prefix: str, bad: ShardKeys, caplog: Any
) -> None:
    """Nothing can be added behind the highest entry id: what falls due stays where it is until a repair."""
    commands = Commands(redis_url, prefix)
    client.xadd(bad.of("ready"), {"x": "y"}, id=LAST_ENTRY)
    async with _served(redis_url, prefix) as (producer, handled):
        await producer.send("bad", b"x", id="due", delay=0.05)
        await _is_served(producer, handled, "m")
        assert client.zscore(bad.of("waiting"), "due") is not None
        await _is_mended(commands, producer, handled)
        await wait_until_async(lambda: "due" in handled.ids)
    assert _faults(caplog) == []
    assert client.zscore(bad.of("waiting"), "due") is None
