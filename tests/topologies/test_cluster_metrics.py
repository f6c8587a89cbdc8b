"""A node of a Cluster is away: managers sample the topics of the others, and take back what was delivered of them."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.model.keys import topics_key
from lisa_common.protocol.call import command
from lisa_consumer import AsyncConsumer, ConsumerSettings
from lisa_manager import AsyncAdmin, ManagerSettings
from lisa_producer import AsyncProducer, Producer, ProducerSettings
from support import wait_until, wait_until_async
from support.cluster import Cluster, spread
from support.metrics import metrics_url, scrape
from support.processes import Programs
from support.running import managed

pytestmark = pytest.mark.slow

PREFIX = "lisa"


@pytest.fixture
def served(own_cluster: Callable[..., Cluster], tmp_path: Path) -> Iterator[tuple[Cluster, Programs]]:
    """A Cluster that goes on without some of its slots, and programs on it."""
    options = {"cluster-require-full-coverage": "no", "appendonly": "yes", "appendfsync": "always"}
    cluster = own_cluster(**options)
    with closing(Programs(cluster.url, PREFIX, tmp_path)) as programs:
        yield cluster, programs


@pytest.mark.parametrize("with_registry", [False, True], ids=["another node", "the registry's node"])
def test_the_figures_of_the_other_nodes_go_on(served: tuple[Cluster, Programs], *, with_registry: bool) -> None:
    """Topics of the lost node are left out and counted as errors; those of the others are sampled as before."""
    cluster, programs = served
    topics = {keys.topic: cluster.master_of(keys.of("ready")) for keys in spread(cluster, PREFIX)}
    of_registry = cluster.master_of(topics_key(PREFIX))
    victim = of_registry if with_registry else next(node for node in cluster.nodes if node is not of_registry)
    manager = programs.manager("--metrics", "127.0.0.1:0", "--sample-s", "1")
    url = metrics_url(manager)

    def waiting() -> dict[str, float]:
        samples = scrape(url).samples
        return {s.labels["topic"]: s.value for s in samples if s.labels.get("state") == "waiting"}

    with Producer(settings=ProducerSettings(redis_url=cluster.url, prefix=PREFIX)) as producer:
        for topic in topics:
            producer.send(topic, b"x", delay=3600)
        wait_until(lambda: waiting() == dict.fromkeys(topics, 1), 20, what="a sample of all")
        errors = scrape(url).sum("lisa_manager_errors_total", job="sample")
        victim.kill()
        left = [topic for topic, node in topics.items() if node is not victim]
        for topic in left:
            producer.send(topic, b"x", delay=3600)
    wait_until(lambda: waiting() == dict.fromkeys(left, 2), 30, what="a sample of the others")
    assert scrape(url).sum("lisa_manager_errors_total", job="sample") > errors
    [lost] = topics.keys() - set(left)
    manager.wait_for(f"sample of {lost} failed")
    victim.start()
    wait_until(lambda: waiting() == dict.fromkeys(left, 2) | {lost: 1}, 30, what="a sample of all again")


async def test_leases_at_the_other_nodes_run_out(own_cluster: Callable[..., Cluster]) -> None:
    """However many topics of the lost node have deliveries, too."""
    cluster = own_cluster(cluster_require_full_coverage="no")
    topics = {keys: cluster.master_of(keys.of("ready")) for keys in spread(cluster, PREFIX, of_each=20)}
    of_registry = cluster.master_of(topics_key(PREFIX))
    victim = next(node for node in cluster.nodes if node is not of_registry)
    others = [next(keys for keys in topics if topics[keys] is node) for node in cluster.nodes if node is not victim]
    chosen = [keys.topic for keys in topics if topics[keys] is victim or keys in others]
    settings: dict[str, Any] = {"redis_url": cluster.url, "prefix": PREFIX}
    async with AsyncAdmin(settings=ManagerSettings(**settings)) as admin, AsyncConnection(cluster.url) as connection:
        for topic in chosen:
            await admin.create_topic(topic, visibility_ms=5_000, backoff_base_ms=3_600_000)
        reader = AsyncConsumer(chosen, "billing", settings=ConsumerSettings(**settings))
        async with managed(cluster.url, PREFIX) as manager, reader as consumer:
            await consumer.read()
            async with AsyncProducer(settings=ProducerSettings(**settings)) as producer:
                for topic in chosen:
                    await producer.send(topic, b"x")
            taken = 0
            while taken < len(chosen):
                taken += len(await consumer.read(100, wait=10))
            shards = manager._table.shards
            await wait_until_async(lambda: sum(shard.has_pending for shard in shards.values()) == len(chosen))
            victim.kill()
            for keys in others:
                there = command("EXISTS", keys.of("retry"))
                await wait_until_async(lambda there=there: connection.call(there), 30, what="a reclaim")
