"""What each step costs stays as it is kept, and what differs is named."""

from collections.abc import Callable
from dataclasses import replace

from benchmarks.costs import differences, measure, read_kept
from support import Server


def test_steps_cost_what_is_kept(own_server: Callable[..., Server]) -> None:
    """Commands and bytes for each message; `make costs COSTS=--write` keeps what a change means to alter."""
    assert differences(measure(own_server().url), read_kept()) == []


def test_a_dearer_step_is_named() -> None:
    """Beyond three per cent, dearer or cheaper; also steps that are new or gone."""
    kept = read_kept()
    send = kept["send"]
    assert differences(kept | {"send": replace(send, sent=send.sent * 1.02)}, kept) == []
    [found] = differences(kept | {"send": replace(send, commands=7)}, kept)
    assert found == "send: commands must be 6 as in costs.json, within 3%; got 7"
    assert len(differences({}, kept)) == 3 * len(kept)
