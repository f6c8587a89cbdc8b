"""How many instructions each step takes stays as it is kept, and what differs is named."""

import shutil

import pytest

from benchmarks.instructions import count, differences, read_kept, this_environment

pytestmark = pytest.mark.long


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs valgrind")
def test_steps_take_the_instructions_that_are_kept() -> None:
    """`make instructions COSTS=--write` keeps what a change means to alter. Another Python takes others."""
    environment, kept = read_kept()
    counts = count()
    assert {program: set(steps) for program, steps in counts.items()} == {
        program: set(steps) for program, steps in kept.items()
    }
    if environment == this_environment():
        assert differences(counts, kept) == []
    else:
        assert all(found > 0 for steps in counts.values() for found in steps.values())


def test_a_dearer_step_is_named() -> None:
    """Beyond three per cent, dearer or cheaper."""
    _, kept = read_kept()
    send = kept["client"]["send"]
    assert differences(kept | {"client": kept["client"] | {"send": send * 1.02}}, kept) == []
    [found] = differences(kept | {"client": kept["client"] | {"send": send * 0.9}}, kept)
    assert found.startswith(f"send: instructions of the client must be {send:,.0f} as in instructions.json, within 3%")
