"""A master of a Cluster hangs (SIGSTOP): the topics of the others are served as if nothing were."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.async_tasks import cancel_all
from lisa_common.errors import OutcomeUnknown, Unreachable
from lisa_common.model.keys import ShardKeys, topics_key, wake_channel
from lisa_common.model.message import Outgoing
from lisa_common.model.record import pack_content
from lisa_common.protocol import consuming, producing
from lisa_common.protocol.call import Call, command
from lisa_consumer import AsyncConsumer, AsyncSettler, ConsumerSettings, Delivery
from lisa_consumer.delivery.async_settler import Held
from lisa_producer import AsyncProducer, ProducerSettings
from support import Server, wait_until_async
from support.cluster import Cluster, spread
from support.commands import Commands
from support.processes import Programs
from support.running import new_worker, working
from support.waiting import idle_async

logger = logging.getLogger(__name__)

pytestmark = [pytest.mark.slow, pytest.mark.long]

PREFIX = "lisa"
CONTENT = pack_content(b"x")
HANG_S = 22.0
LATE_S = 8.0
"""How late messages of the other nodes may be on a busy machine.

A worker or a manager that waited for the node would be late by its timeout of 10 s.
"""


class _Messages:
    """Messages, when they are due, and when they arrived, in seconds since the epoch."""

    def __init__(self) -> None:
        self.due: dict[str, float] = {}
        self.handled: Counter[tuple[str, int]] = Counter()
        """How often each attempt of a message was handled."""
        self._arrived: dict[str, float] = {}

    async def take(self, delivery: Delivery) -> None:
        """Handles a message."""
        self.handled[delivery.id, delivery.attempt] += 1
        self._arrived.setdefault(delivery.id, time.time())

    def arrived(self, name: str = "") -> set[str]:
        """The messages of a topic that have arrived, or all."""
        return {id for id in self._arrived if id.startswith(name)}

    def largest_lag(self, names: Sequence[str], since: float) -> float:
        """Of messages of these topics that were due since a moment; also of those that have not arrived yet."""
        now = time.time()
        due = {id: at for id, at in self.due.items() if since <= at <= now and id.startswith(tuple(names))}
        return max(self._arrived.get(id, now) - at for id, at in due.items())


def send(keys: ShardKeys, *messages: Outgoing) -> Call[list[int]]:
    """Sends messages, again if it must be."""
    return producing.send(keys, messages, repeatable=True)


async def send_each(connection: AsyncConnection, keys: ShardKeys, messages: _Messages, seconds: float) -> None:
    """Sends messages that fall due one after the other, twenty in a second."""
    delays_ms = {f"{keys.topic}-{n}": n * 50 for n in range(int(seconds * 20))}
    began = time.time()
    await connection.call(send(keys, *(Outgoing(id, f"+{delay}", CONTENT) for id, delay in delays_ms.items())))
    messages.due |= {id: began + delay / 1000 for id, delay in delays_ms.items()}


async def send_now_and_then(connection: AsyncConnection, topics: Sequence[ShardKeys], messages: _Messages) -> None:
    """Sends to quiet topics, of which a manager has to hear, until cancelled."""
    for number in range(100_000):
        for keys in topics:
            id = f"{keys.topic}-now-{number}"
            due = time.time() + 0.2
            await connection.call(send(keys, Outgoing(id, "+200", CONTENT)))
            messages.due[id] = due
        await asyncio.sleep(0.5)


def listened_to(cluster: Cluster) -> Server | None:
    """The node at which a manager hears of sends."""
    channel = wake_channel(PREFIX)
    for node in cluster.masters():
        with node.client() as client:
            if dict(client.pubsub_numsub(channel))[channel.encode()]:
                return node
    return None


def with_registry(cluster: Cluster) -> Server | None:
    """The node that knows which topics there are."""
    return cluster.master_of(topics_key(PREFIX))


@pytest.mark.parametrize(("replicas", "choose"), [(0, with_registry), (0, listened_to), (1, listened_to)])
async def test_topics_of_other_nodes_are_served_while_one_hangs(
    own_cluster: Callable[..., Cluster], tmp_path: Path, replicas: int, choose: Callable[[Cluster], Server | None]
) -> None:
    """Throughout, as soon as ever. What the one has is handled once it goes on, or another has taken its place."""
    cluster = own_cluster(replicas=replicas, cluster_require_full_coverage="no")
    topics = spread(cluster, PREFIX, of_each=2)
    commands = Commands(cluster.url, PREFIX)
    for keys in topics:
        assert commands.manager("topic", "create", keys.topic, "--visibility", "5s").code == 0
    masters = ",".join(f"127.0.0.1:{node.port}" for node in cluster.masters())
    programs = Programs(f"redis+cluster://{masters}", PREFIX, tmp_path)
    messages = _Messages()
    worker = new_worker(cluster.url, PREFIX, block_s=2, concurrency=64)
    worker.on(*(keys.topic for keys in topics))(messages.take)
    try:
        manager = await asyncio.to_thread(programs.manager)
        node = await wait_until_async(lambda: choose(cluster))
        assert node
        there = [keys for keys in topics if cluster.master_of(keys.of("ready")) is node]
        others = [keys for keys in topics if keys not in there]
        names = [f"{keys.topic}-" for keys in others]
        async with AsyncConnection(cluster.url) as connection, working(worker):
            for keys in (there[0], *others[::2]):
                await send_each(connection, keys, messages, HANG_S)
            sending = asyncio.create_task(send_now_and_then(connection, others[1::2], messages))
            await wait_until_async(lambda: all(map(messages.arrived, names)), 30, what="messages of each")
            frozen = time.time()
            node.freeze()
            await idle_async(HANG_S)
            lag_s, meanwhile = messages.largest_lag(names, frozen), messages.arrived(f"{there[0].topic}-")
            node.thaw()
            await cancel_all(sending)
            await wait_until_async(lambda: messages.arrived() >= messages.due.keys(), 60, what="all that was sent")
        logger.info("lag while a node hung: %.3f s", lag_s)
        assert lag_s < LATE_S
        elsewhere = {(id, 1): 1 for id in messages.due if id.startswith(tuple(names))}
        assert {handled: messages.handled[handled] for handled in elsewhere} == elsewhere
        if replicas:
            assert len(meanwhile) > HANG_S * 20 * 3 / 4 - LATE_S * 20
        else:
            assert set(messages.handled.values()) == {1}
        assert manager.code is None
        assert commands.manager("check").code == 0
    finally:
        programs.close()


async def test_calls_to_a_node_that_hangs(own_cluster: Callable[..., Cluster], connect: Callable[..., Any]) -> None:
    """They are left soon, and then fail at once, while those of others have results. Reads wait for the others."""
    cluster = own_cluster(cluster_require_full_coverage="no")
    opened, other = connect(cluster.url, timeout_s=60), connect(cluster.url)
    *here, there = spread(cluster, PREFIX)
    joins = [consuming.join(keys, "g") for keys in (*here, there)]
    assert await opened.execute(joins) == [True] * 3
    await other.execute([command("EXISTS", keys.of("ready")) for keys in here])
    node = cluster.master_of(there.of("ready"))
    node.freeze()
    async with asyncio.timeout(40):
        *found, error = await opened.execute_each(joins)
        assert (found, type(error)) == ([False] * 2, OutcomeUnknown)
        *found, error = await opened.execute_each(joins)
        assert (found, type(error)) == ([False] * 2, Unreachable)
        for id, keys in zip("ab", here, strict=True):
            reading = asyncio.create_task(
                opened.call(consuming.read([*here, there], "g", "c", limit=9, block_ms=9_000))
            )
            await wait_until_async(lambda: cluster.count_waiting(but=node) == len(here))
            await other.call(send(keys, Outgoing(id, "+0", CONTENT)))
            assert [entry.id for _, entries in await reading for entry in entries] == [id]
        with pytest.raises(Unreachable):
            await opened.call(consuming.read([*here, there], "g", "c", limit=9, block_ms=100))
        if isinstance(opened, AsyncConnection):
            # As a manager does when it starts, and once a second.
            answers = await opened.survey([command("PING")])
            assert [name for name, answer in answers.items() if isinstance(answer, Unreachable)] == [
                f"127.0.0.1:{node.port}"
            ]
    node.thaw()
    assert await opened.call(joins[-1], patience_s=20) is False


async def test_a_refusal_does_not_hide_a_lost_reply(own_cluster: Callable[..., Cluster]) -> None:
    """A settler ends deliveries on two nodes: one refuses, and the other, which hangs, may have done its part."""
    cluster = own_cluster(cluster_require_full_coverage="no")
    topics = [keys.topic for keys in spread(cluster, PREFIX)[:2]]
    refusing, hung = [cluster.master_of(ShardKeys(PREFIX, topic).of("ready")) for topic in topics]
    async with (
        AsyncProducer(settings=ProducerSettings(redis_url=cluster.url)) as producer,
        AsyncConsumer(topics, "billing", settings=ConsumerSettings(redis_url=cluster.url)) as consumer,
        AsyncSettler(settings=ConsumerSettings(redis_url=cluster.url, timeout_s=1, patience_s=0)) as settler,
    ):
        for topic in topics:
            await producer.send(topic, b"x")
        read = dict[str, Delivery]()
        while len(read) < len(topics):
            read |= {delivery.topic: delivery for delivery in await consumer.read(wait=9)}
        # Of two consumers, as of two clients of a gateway.
        held = [Held(read[topic], f"client-{number}") for number, topic in enumerate(topics)]
        await settler.extend(held)
        with refusing.client() as client:
            client.acl_setuser("default", enabled=True, reset_keys=True, keys=["other"])
        hung.freeze()
        with pytest.raises(OutcomeUnknown):
            await settler.ack(held)
        hung.thaw()


async def test_a_read_that_waits_as_a_node_hangs(
    own_cluster: Callable[..., Cluster], connect: Callable[..., Any]
) -> None:
    """What has come from others is not kept back."""
    cluster = own_cluster(cluster_require_full_coverage="no")
    opened, other = connect(cluster.url, timeout_s=60), connect(cluster.url)
    *here, there = spread(cluster, PREFIX)
    await opened.execute([consuming.join(keys, "g") for keys in (*here, there)])
    await other.execute([command("EXISTS", keys.of("ready")) for keys in here])
    reading = asyncio.create_task(opened.call(consuming.read([*here, there], "g", "c", limit=9, block_ms=30_000)))
    await wait_until_async(lambda: cluster.count_waiting() == len(here) + 1)
    node = cluster.master_of(there.of("ready"))
    node.freeze()
    await other.call(send(here[0], Outgoing("a", "+0", CONTENT)))
    async with asyncio.timeout(20):
        assert [entry.id for _, entries in await reading for entry in entries] == ["a"]
    node.thaw()
