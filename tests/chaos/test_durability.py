"""What docs/guarantees.md says of durability: the server is killed under load, and what was confirmed is there."""

import random
from pathlib import Path

import pytest

from chaos.durability import TIERS, crash_process, fail_over
from support.engines import own_binary

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["everysec", "always", "WAITAOF"])
def test_a_crash_of_the_process_loses_nothing_that_was_confirmed(name: str, tmp_path: Path) -> None:
    """With an AOF of any kind the kernel has what the server acknowledged."""
    loss = crash_process(TIERS[name], own_binary(), tmp_path / "server", random.Random(name), 2)
    assert loss.crashes == 2
    assert loss.confirmed > 0
    assert loss.lost == 0


def test_a_fail_over_loses_nothing_that_replicas_confirmed(tmp_path: Path) -> None:
    """The replica that confirmed becomes the primary."""
    loss = fail_over(TIERS["WAIT"], own_binary(), tmp_path, random.Random(1), 2)
    assert loss.confirmed > 0
    assert loss.lost == 0


def test_without_an_aof_a_crash_loses_what_was_confirmed(tmp_path: Path) -> None:
    """That the counting counts: snapshots lose all since the last one."""
    loss = crash_process(TIERS["snapshots"], own_binary(), tmp_path / "server", random.Random(1), 1)
    assert 0 < loss.lost == loss.worst <= loss.confirmed
