"""Schedules on a Cluster, under the faults of `tests/chaos`, while slots move."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from chaos.schedule_run import run_schedules
from chaos.schedules import Options
from lisa_common.model.keys import ShardKeys, schedules_key
from support.cluster import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.long]

_PREFIX = "sched"


@pytest.mark.timeout(400)
def test_each_tick_is_one_message_while_slots_move(own_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    """Those of topics, with the marks, and that of the registry; managers die and freeze, authors die half-way."""
    cluster = own_cluster(appendonly="yes", appendfsync="always", cluster_node_timeout="5000")
    options = Options("cluster", 40, 24, topics=("orders", "mail"), share=1)
    keys = [schedules_key(_PREFIX), *(ShardKeys(_PREFIX, topic).of("ticks") for topic in options.topics)]
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
