"""What docs/guarantees.md says of durability: the server is killed under load, and what was confirmed is there."""

import random
from pathlib import Path

import pytest

from chaos.deliveries import LOSS_S
from chaos.durability import TIERS, crash_process, fail_over
from support.engines import own_binary

pytestmark = pytest.mark.slow

_LEAST_S = LOSS_S + 0.5
"""Of a load that has something older to lose than what came during an fsync."""


@pytest.mark.parametrize("name", ["always", "WAITAOF"])
def test_a_crash_of_the_process_loses_nothing_that_was_confirmed(name: str, tmp_path: Path) -> None:
    """What the server writes to its AOF before it answers, the kernel has."""
    loss = crash_process(TIERS[name], own_binary(), tmp_path / "server", random.Random(name), 2)
    assert loss.crashes == 2
    assert loss.confirmed > 0
    assert loss.lost == 0


def test_with_everysec_a_crash_of_the_process_loses_what_came_during_an_fsync_at_most(tmp_path: Path) -> None:
    """While one is under way, the server answers before it writes: for 2 s, if the disk is that slow."""
    loss = crash_process(TIERS["everysec"], own_binary(), tmp_path / "server", random.Random(1), 1, least_s=_LEAST_S)
    assert loss.crashes == 1
    assert loss.confirmed > 0
    assert loss.oldest_s < LOSS_S


def test_a_fail_over_loses_nothing_that_replicas_confirmed(tmp_path: Path) -> None:
    """The replica that confirmed becomes the primary."""
    loss = fail_over(TIERS["WAIT"], own_binary(), tmp_path, random.Random(1), 2)
    assert loss.confirmed > 0
    assert loss.lost == 0


def test_without_an_aof_a_crash_loses_what_was_confirmed(tmp_path: Path) -> None:
    """That the counting counts: snapshots lose all since the last one."""
    loss = crash_process(TIERS["snapshots"], own_binary(), tmp_path / "server", random.Random(1), 1, least_s=_LEAST_S)
    assert 0 < loss.lost == loss.worst <= loss.confirmed
    assert loss.oldest_s > LOSS_S
