"""A node of a Cluster is away: managers sample the topics of the others, and operators see them."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lisa_common.errors import Unreachable
from lisa_common.model.keys import topics_key
from lisa_manager import Admin, ManagerSettings
from lisa_producer import Producer, ProducerSettings
from support import wait_until
from support.cluster import Cluster, spread
from support.metrics import metrics_url, scrape
from support.processes import Programs

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
    if not with_registry:
        with Admin(settings=ManagerSettings(redis_url=cluster.url, prefix=PREFIX)) as admin:
            for found in (admin.status(), admin.sizes(), admin.traffic()):
                assert [each.topic for each in found if each.damage] == [lost]
            with pytest.raises(Unreachable):
                admin.status(lost)
    victim.start()
    wait_until(lambda: waiting() == dict.fromkeys(left, 2) | {lost: 1}, 30, what="a sample of all again")
