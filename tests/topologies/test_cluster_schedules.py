"""Schedules on a Cluster, under the faults of `tests/chaos`, while slots move."""

import random
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest
import redis

from chaos.schedule_run import run_schedules
from chaos.schedules import Options
from lisa_common.model.keys import ShardKeys, topics_key
from lisa_manager import Admin, ManagerSettings
from support import wait_until
from support.cluster import Cluster, spread
from support.engines import PATIENT_MS
from support.processes import Programs
from support.waiting import idle

pytestmark = [pytest.mark.slow, pytest.mark.long]

_PREFIX = "sched"
_HANG_S = 15.0
_LATE_MS = 8_000
"""How late ticks of other nodes may be on a busy machine. A hung node that was waited for: 10 s, the timeout."""


@pytest.mark.timeout(400)
def test_each_tick_is_one_message_while_slots_move(own_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    """Those of topics, with their schedules; managers die and freeze, authors die half-way."""
    cluster = own_cluster(appendonly="yes", appendfsync="always", cluster_node_timeout=str(PATIENT_MS))
    options = Options("cluster", 25, 24, topics=("orders", "mail"), share=1)
    keys = [ShardKeys(_PREFIX, topic).of("ticks") for topic in options.topics]
    moved: list[str] = []

    def move(dice: random.Random) -> None:
        key = dice.choice(keys)
        source, target = cluster.begin_to_move(key)
        cluster.move_keys(key, source, target)
        cluster.end_move(key, source, target)
        moved.append(key)

    outcome = run_schedules(cluster.url, tmp_path, options, 4, [move])
    print(*outcome.lines(), *outcome.verdict.violations, f"{len(moved)} moves", sep="\n")  # noqa: T201 - to look at
    assert outcome.verdict.violations == []
    assert not outcome.findings
    assert outcome.verdict.expected > 100
    assert len(moved) > 5


def _ticks(client: redis.Redis, keys: ShardKeys) -> list[tuple[int, int]]:
    """Each tick, and when it was ready, in ms."""
    return [
        (
            round(datetime.fromisoformat(fields[b"id"].decode().strip("~").partition("@")[2]).timestamp() * 1_000),
            int(entry.partition(b"-")[0]),
        )
        for entry, fields in client.xrange(keys.of("ready"))
    ]


def test_a_registry_that_hangs_stops_no_ticks_elsewhere(own_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    """Those of healthy nodes come in time, those of the hung one later; each once."""
    cluster = own_cluster(cluster_require_full_coverage="no")
    topics = spread(cluster, _PREFIX)
    with Admin(settings=ManagerSettings.load(redis_url=cluster.url, prefix=_PREFIX)) as admin:
        for keys in topics:
            admin.set_schedule(keys.topic, "s", every=1, catchup="all")
    clients = {keys: cluster.master_of(keys.of("ready")).client() for keys in topics}
    hung = cluster.master_of(topics_key(_PREFIX))
    others = [keys for keys in topics if cluster.master_of(keys.of("ready")) is not hung]
    programs = Programs(cluster.url, _PREFIX, tmp_path)
    try:
        programs.manager()
        wait_until(lambda: all(len(_ticks(clients[keys], keys)) >= 2 for keys in topics), 30, what="the first ticks")
        before = {keys: len(_ticks(clients[keys], keys)) for keys in others}
        hung.freeze()
        idle(_HANG_S)
        meanwhile = {keys: _ticks(clients[keys], keys)[before[keys] :] for keys in others}
        hung.thaw()
        for keys in others:
            assert len(meanwhile[keys]) >= _HANG_S - _LATE_MS / 1_000 - 1
            assert max(ready - tick for tick, ready in meanwhile[keys]) < _LATE_MS
        wait_until(lambda: all(len(_ticks(clients[keys], keys)) >= _HANG_S for keys in topics), 30, what="all ticks")
        for keys in topics:
            ticks = sorted(tick for tick, _ in _ticks(clients[keys], keys))
            assert {later - tick for tick, later in pairwise(ticks)} == {1_000}
    finally:
        programs.close()
        for client in clients.values():
            client.close()
