"""`lisa-manager doctor` on a Cluster: every node is asked, and what is wrong names those with whom it is."""

from collections.abc import Callable

import pytest

from support import Server, wait_until
from support.cluster import Cluster
from support.commands import Commands

pytestmark = [pytest.mark.slow, pytest.mark.long]


def _name(node: Server) -> str:
    return f"127.0.0.1:{node.port}"


def _set(node: Server, name: str, value: str) -> None:
    with node.client() as client:
        client.config_set(name, value)


def test_a_cluster_that_is_well(own_cluster: Callable[..., Cluster]) -> None:
    """Exit code 0, and what there is of nodes; what is wrong with a replica is told as of any node."""
    cluster = own_cluster(replicas=1, appendonly="yes")
    commands = Commands(cluster.url, "lisa")
    ran = commands.manager("doctor")
    assert ran.code == 0
    assert ran.out.startswith("a Cluster: 3 masters, 3 replicas\nnothing is wrong with its nodes\nas producer: works")
    masters = cluster.masters()
    replica = next(node for node in cluster.nodes if node not in masters)
    _set(replica, "maxmemory-policy", "allkeys-lru")
    [finding] = commands.manager("doctor", "--json").document
    assert finding.startswith(f"{_name(replica)}: maxmemory-policy is allkeys-lru")
    assert commands.manager("doctor").code == 1


def test_a_cluster_that_is_not_well(own_cluster: Callable[..., Cluster]) -> None:
    """What all nodes share is said once; slots without a node, and nodes that are away, are findings."""
    cluster = own_cluster()
    commands = Commands(cluster.url, "lisa")
    ran = commands.manager("doctor")
    alone = ", ".join(sorted(map(_name, cluster.nodes)))
    shape = "a Cluster: 3 masters, 0 replicas\nhint: topics of a master without a replica wait while it is away"
    assert (ran.code, ran.out.startswith(f"{shape}: {alone}\nevery node: no persistence")) == (1, True), ran.out
    first, *_, dead = cluster.nodes
    with first.client() as client:
        client.execute_command("CLUSTER", "DELSLOTS", 0)
    assert f"{_name(first)}: 16383 of 16384 slots" in commands.manager("doctor").out
    dead.kill()

    def told() -> str:
        return commands.manager("doctor").out

    wait_until(lambda: "cluster_state is not ok" in told() and "slots have a failed node" in told(), 20)
    assert "2 masters, 0 replicas, 1 unchecked" in told()
    assert f"{_name(dead)}: cannot be checked: cannot reach Redis" in told()


def test_a_cluster_of_which_nothing_was_made_yet(
    own_server: Callable[..., Server], reserve_port: Callable[[], int]
) -> None:
    """A node that knows of no slots is asked all the same."""
    node = own_server(cluster_enabled="yes", cluster_port=str(reserve_port()))
    ran = Commands(f"redis+cluster://{_name(node)}", "lisa").manager("doctor")
    assert (ran.code, "every node: 0 of 16384 slots have a node" in ran.out) == (1, True), ran.out
