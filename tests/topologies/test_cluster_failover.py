"""A Cluster loses a master under load: programs go on by themselves, and nothing that was confirmed is lost.

`LISA_TEST_MESSAGES` is how many messages are sent, 8,000 unless it is given: then the machine is taken for a quiet one,
for the measurement of docs/sentinel-and-cluster.md.
"""

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.model.keys import ShardKeys, topics_key
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_common.protocol.call import command
from lisa_consumer import Delivery
from lisa_manager import AsyncAdmin
from lisa_producer import AsyncProducer, Confirm, Message, PartialSend, Producer, ProducerSettings, SendResult
from support import wait_until_async
from support.cluster import Cluster, spread
from support.commands import Commands
from support.processes import Programs
from support.running import new_worker, working
from support.twins import InThread

logger = logging.getLogger(__name__)

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

MESSAGES = int(os.environ.get("LISA_TEST_MESSAGES", "8000"))
NODE_TIMEOUT_MS = 1_000 if "LISA_TEST_MESSAGES" in os.environ else 5_000
"""So that a node of a busy machine is not taken for dead."""
LAYOUT = Layout("lisa", "orders", Policy(shards=8))


class _Sender:
    """Sends ids in batches, each until all of it is confirmed."""

    def __init__(self, producer: Any, ids: Sequence[str]) -> None:
        self._producer = producer
        self._ids = ids
        self.confirmed: list[str] = []
        self.told: Counter[str] = Counter()
        self.outage_s = 0.0
        self._last = 0.0

    async def run(self) -> None:
        self._last = time.monotonic()
        try:
            await self._send_all()
        finally:
            await self._producer.close()

    async def _send_all(self) -> None:
        for at in range(0, len(self._ids), 1_000):
            left = dict.fromkeys(self._ids[at : at + 1_000])
            while left:
                before = len(self.confirmed)
                messages = [Message(body=id, id=id, delay=number % 50 / 10) for number, id in enumerate(left)]
                with suppress(PartialSend):
                    await self._producer.send_many(LAYOUT.topic, messages, on_result=self._take)
                for id in self.confirmed[before:]:
                    del left[id]

    def _take(self, result: SendResult) -> None:
        if result.error:
            self.told[type(result.error).__name__] += 1
            return
        now = time.monotonic()
        self.outage_s, self._last = max(self.outage_s, now - self._last), now
        self.confirmed.append(result.id or "")


def senders(url: str) -> list[_Sender]:
    """Two producers, one of either kind, that share the work."""
    settings, confirm = ProducerSettings(redis_url=url), Confirm(replicas=1, timeout=2)
    return [
        _Sender(InThread(Producer(settings=settings, confirm=confirm)), [f"b{n}" for n in range(MESSAGES // 2)]),
        _Sender(AsyncProducer(settings=settings, confirm=confirm), [f"a{n}" for n in range(MESSAGES // 2)]),
    ]


async def test_a_master_is_killed_under_load(own_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    """What a replica has confirmed is handled; what is handled twice was on that master. No program is restarted."""
    cluster = own_cluster(
        replicas=1, appendonly="yes", cluster_node_timeout=str(NODE_TIMEOUT_MS), cluster_require_full_coverage="no"
    )
    commands = Commands(cluster.url, LAYOUT.prefix)
    options = ("--shards", LAYOUT.policy.shards, "--visibility", "10s")
    assert commands.manager("topic", "create", LAYOUT.topic, *options).code == 0
    programs = Programs(cluster.url, LAYOUT.prefix, tmp_path, [LAYOUT.topic])
    sending = senders(cluster.url)
    try:
        started = await asyncio.to_thread(lambda: [start() for start in (programs.manager, programs.worker) * 2])
        async with asyncio.TaskGroup() as running:
            for sender in sending:
                running.create_task(sender.run())
            await wait_until_async(lambda: len(confirmed(sending)) >= MESSAGES / 2, 300)
            hit = await lose_a_master(cluster, lambda: handled(programs, confirmed(sending)))
        assert len(confirmed(sending)) == MESSAGES
        await wait_until_async(lambda: handled(programs, confirmed(sending)), 300)
        twice = Counter(LAYOUT.home(id).tag for id, times in programs.journal.ended().items() if times > 1)
        told = [(f"{sender.outage_s:.1f} s", dict(sender.told)) for sender in sending]
        logger.info("longest without a confirmation, and errors: %s; handled twice: %s", told, dict(twice))
        assert twice.keys() <= hit
        assert [program.code for program in started] == [None] * 4
        assert commands.manager("check").code == 0
    finally:
        programs.close()


def confirmed(sending: Sequence[_Sender]) -> set[str]:
    """What they know to be safe."""
    return {id for sender in sending for id in sender.confirmed}


def handled(programs: Programs, ids: set[str]) -> bool:
    """Whether handlers of all of these have come to their end."""
    ended = programs.journal.ended()
    return len(ended) >= len(ids) and ids <= ended.keys()


async def lose_a_master(cluster: Cluster, is_enough: Callable[[], bool]) -> set[str]:
    """Kills the master of a shard, and starts it again when that is enough. Returns its shards.

    Until it is a replica itself, the new master has none that could confirm.
    """
    key = LAYOUT.shards[0].of("ready")
    master = cluster.master_of(key)
    hit = {shard.tag for shard in LAYOUT.shards if cluster.master_of(shard.of("ready")) is master}
    assert len(hit) < len(LAYOUT.shards)
    master.kill()
    await asyncio.to_thread(cluster.wait_for_another_master, key, master)
    await wait_until_async(is_enough, 300)
    master.start()
    return hit


MOST_COMPLAINTS = 2
"""Of a node: one as it goes away, and one before that, should the nodes not know each other's slots yet."""


@pytest.mark.parametrize(("bound", "other_bound"), [(4, 4), (32, 1), (1, 32)])
async def test_acks_wait_for_their_own_node_only(
    own_cluster: Callable[..., Cluster], caplog: pytest.LogCaptureFixture, bound: int, other_bound: int
) -> None:
    """While a node is away a worker goes on with the topics of others; what was handled meanwhile is acked at last.

    However much less room there is for the one topic than for the other, so that each is read by itself.
    """
    cluster = own_cluster(appendonly="yes", appendfsync="always", cluster_require_full_coverage="no")
    home = cluster.master_of(topics_key("lisa"))
    there = [keys for keys in spread(cluster, "lisa") if cluster.master_of(keys.of("ready")) is not home]
    away, other = (keys.topic for keys in there)
    worker = new_worker(cluster.url, "lisa", concurrency=max(bound, other_bound), prefetch=4)
    begun, done, handled = asyncio.Event(), asyncio.Event(), Counter[str]()

    @worker.on(away, concurrency=bound)
    async def wait(delivery: Delivery) -> None:
        begun.set()
        await done.wait()
        handled[delivery.id] += 1

    @worker.on(other, concurrency=other_bound)
    async def count(delivery: Delivery) -> None:
        handled[delivery.id] += 1

    async with AsyncProducer(settings=ProducerSettings(redis_url=cluster.url)) as producer, working(worker):
        await producer.send(away, "x", id="held")
        async with asyncio.timeout(30):
            await begun.wait()
        node = cluster.master_of(there[0].of("ready"))
        node.kill()
        done.set()
        await wait_until_async(lambda: handled["held"], 30)
        await producer.send_many(other, [Message(body="x", id=f"m{number}") for number in range(100)])
        await wait_until_async(lambda: len(handled) == 101, 60)
        node.start()
        await wait_until_async(lambda: is_acked(cluster, there[0]), 60)
    assert set(handled.values()) == {1}
    assert sum("cannot read" in message for message in caplog.messages) <= MOST_COMPLAINTS


VISIBILITY_MS = 8_000
"""A lease is renewed after a third of it: the rest is time that a busy machine may take."""


async def test_leases_are_renewed_at_their_own_node(own_cluster: Callable[..., Cluster]) -> None:
    """While a node is away, long handlers of the topics of others keep what they have, and end by an abort."""
    cluster = own_cluster(cluster_require_full_coverage="no")
    home = cluster.master_of(topics_key("lisa"))
    there = [keys for keys in spread(cluster, "lisa") if cluster.master_of(keys.of("ready")) is not home]
    away, other = (keys.topic for keys in there)
    worker = new_worker(cluster.url, "lisa", concurrency=4, drain_s=0.1)
    begun, ended = asyncio.Barrier(3), dict[str, asyncio.Event]()

    @worker.on(away, other)
    async def hold(delivery: Delivery) -> None:
        ended[delivery.topic] = asyncio.Event()
        await begun.wait()
        try:
            await asyncio.sleep(60)
        finally:
            ended[delivery.topic].set()

    async with AsyncConnection(cluster.url) as opened:
        for topic in (away, other):
            policy = Policy(visibility_ms=VISIBILITY_MS)
            await opened.call(command("HSET", topics_key("lisa"), topic, policy.dump()))
        async with AsyncProducer(settings=ProducerSettings(redis_url=cluster.url)) as producer, working(worker):
            for topic in (away, other):
                await producer.send(topic, "x", id="held")
            async with asyncio.timeout(30):
                await begun.wait()
            cluster.master_of(there[0].of("ready")).kill()
            began, longest_ms = time.monotonic(), 0
            while time.monotonic() - began < 2 * VISIBILITY_MS / 1_000:
                [[_, _, idle_ms, _]] = await opened.call(
                    command("XPENDING", there[1].of("ready"), "billing", "-", "+", 1), patience_s=5
                )
                longest_ms = max(longest_ms, idle_ms)
                await asyncio.sleep(0.05)
            assert longest_ms < VISIBILITY_MS
            async with AsyncAdmin(url=cluster.url) as admin, asyncio.timeout(20):
                assert await admin.abort(other, "held") == "aborted"
                await ended[other].wait()


async def is_acked(cluster: Cluster, keys: ShardKeys) -> bool:
    """Whether no delivery of a topic is without an ack."""
    async with AsyncConnection(cluster.url) as opened:
        summary = await opened.call(command("XPENDING", keys.of("ready"), "billing"), patience_s=30)
    return not summary[0]
