"""A master of a Cluster hangs (SIGSTOP): the topics of the others are served as if nothing were."""

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from lisa_common.aio import AsyncConnection
from lisa_common.call import Call, command
from lisa_common.errors import OutcomeUnknown, Unreachable
from lisa_common.keys import TopicKeys, topics_key, wake_channel
from lisa_common.protocol import consuming, producing
from lisa_common.protocol.producing import Outgoing
from lisa_common.record import pack_content
from lisa_consumer import Delivery
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
USUAL_S = 3.0
"""How long it is looked what lag is usual."""
HANG_S = 22.0
MORE_S = 1.0
"""How much later than usual messages of the other nodes may be."""


class _Arrivals:
    """When messages arrived, and how late."""

    def __init__(self) -> None:
        self.times: Counter[str] = Counter()
        self.tries: Counter[tuple[str, int]] = Counter()
        self._lags: dict[str, list[tuple[float, str]]] = defaultdict(list)

    async def take(self, delivery: Delivery) -> None:
        self.times[delivery.id] += 1
        self.tries[delivery.id, delivery.attempt] += 1
        self._lags[delivery.topic].append((time.time() - delivery.due_ms / 1000, delivery.id))

    def largest_lag(self, topics: Sequence[str]) -> tuple[float, str]:
        """Of the messages since the last time, in seconds; and whose it was."""
        return max((found for topic in topics for found in self._lags.pop(topic, [])), default=(0.0, ""))


def send(keys: TopicKeys, *messages: Outgoing) -> Call[list[int]]:
    """Sends messages, again if it must be."""
    return producing.send(keys, messages, repeatable=True)


def in_turn(name: str, seconds: float) -> list[Outgoing]:
    """Messages that fall due one after the other, twenty in a second."""
    return [Outgoing(f"{name}-{n}", f"+{n * 50}", CONTENT) for n in range(int(seconds * 20))]


async def send_now_and_then(connection: AsyncConnection, topics: Sequence[TopicKeys], sent: set[str]) -> None:
    """Sends to quiet topics, of which a manager has to hear, until cancelled."""
    for number in range(100_000):
        for keys in topics:
            id = f"{keys.topic}-now-{number}"
            await connection.call(send(keys, Outgoing(id, "+200", CONTENT)))
            sent.add(id)
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
        assert commands.manager("topic", "set", keys.topic, "--visibility", "5s").code == 0
    masters = ",".join(f"127.0.0.1:{node.port}" for node in cluster.masters())
    programs = Programs(f"redis+cluster://{masters}", PREFIX, tmp_path)
    arrivals, sent = _Arrivals(), set[str]()
    worker = new_worker(cluster.url, PREFIX, block_s=2, concurrency=64)
    worker.on(*(keys.topic for keys in topics))(arrivals.take)
    try:
        manager = await asyncio.to_thread(programs.manager)
        node = await wait_until_async(lambda: choose(cluster))
        assert node
        there = [keys for keys in topics if cluster.master_of(keys.of("ready")) is node]
        others = [keys for keys in topics if keys not in there]
        names = [keys.topic for keys in others]
        async with AsyncConnection(cluster.url) as connection, working(worker):
            for keys in (there[0], *others[::2]):
                messages = in_turn(keys.topic, USUAL_S + HANG_S)
                sent |= {message.id for message in messages}
                await connection.call(send(keys, *messages))
            sending = asyncio.create_task(send_now_and_then(connection, others[1::2], sent))
            await idle_async(USUAL_S)
            usual_s, _ = arrivals.largest_lag(names)
            node.freeze()
            await idle_async(HANG_S)
            lag_s, whose = arrivals.largest_lag(names)
            before_its_end = sum(arrivals.times[id] for id in sent if id.startswith(there[0].topic))
            node.thaw()
            sending.cancel()
            logger.info("lag before %.3f s; while a node hung %.3f s (%s)", usual_s, lag_s, whose)
            await wait_until_async(lambda: arrivals.times.keys() >= sent, 60, what="all that was sent")
        assert lag_s < usual_s + MORE_S, whose
        elsewhere = {id for id in sent if not id.startswith(there[0].topic)}
        assert {id: arrivals.times[id] for id in elsewhere} == dict.fromkeys(elsewhere, 1)
        if replicas:
            assert before_its_end > (len(in_turn("", USUAL_S + HANG_S)) * 3) // 4
        else:
            assert set(arrivals.tries.values()) == {1}
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
    async with asyncio.timeout(20):
        *found, error = await opened.execute_each(joins)
        assert (found, type(error)) == ([False] * 2, OutcomeUnknown)
        *found, error = await opened.execute_each(joins)
        assert (found, type(error)) == ([False] * 2, Unreachable)
        for id, keys in zip("ab", here, strict=True):
            reading = asyncio.create_task(
                opened.call(consuming.read([*here, there], "g", "c", limit=9, block_ms=9_000))
            )
            await idle_async(0.3)
            await other.call(send(keys, Outgoing(id, "+0", CONTENT)))
            assert [entry.id for _, entries in await reading for entry in entries] == [id]
        with pytest.raises(Unreachable):
            await opened.call(consuming.read([*here, there], "g", "c", limit=9, block_ms=100))
    node.thaw()
    assert await opened.call(joins[-1], patience_s=20) is False


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
    async with asyncio.timeout(10):
        assert [entry.id for _, entries in await reading for entry in entries] == ["a"]
    node.thaw()
