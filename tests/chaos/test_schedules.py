"""Schedules under faults: each tick exactly one message, and none of a former version."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from chaos.schedule_run import Outcome, run_schedules
from chaos.schedules import Fault, Options
from support import Server


def check(url: str, directory: Path, options: Options, managers: int, more: Sequence[Fault] = ()) -> Outcome:
    """Makes a run, which must keep all promises, and must have been one of many changes."""
    outcome = run_schedules(url, directory, options, managers, more)
    print(*outcome.lines(), *outcome.verdict.violations, sep="\n")  # noqa: T201 - figures to look at
    assert outcome.verdict.violations == []
    assert not outcome.findings
    assert outcome.changes.acknowledged > options.seconds
    assert outcome.changes.abandoned > options.seconds / 8
    return outcome


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_thousand_ticks_under_all_faults(own_server: Callable[..., Server], tmp_path: Path) -> None:
    """Managers with wrong clocks die and freeze, authors die half-way, the server is killed, topics are resharded."""
    server = own_server(appendonly="yes", appendfsync="always")

    def kill(_: random.Random) -> None:
        server.kill()
        server.start()

    options = Options("long", 40, 100, topics=("orders", "mail"))
    assert check(server.url, tmp_path, options, 8, [kill]).verdict.expected >= 1_000
