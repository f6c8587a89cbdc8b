"""The soak, shortened: the figures are taken and judged, and a server forgets as fast as it is made to remember."""

import pytest

from chaos.soak import Growth, Options, Soak, growth_of, soak

_MIB = 1024 * 1024


@pytest.mark.slow
@pytest.mark.long
def test_nothing_grows_under_load() -> None:
    """8,000 messages, each forgotten 2 s after its ack: 20 s later nothing of them is left, in no program's memory."""
    result = soak(Options(8_000, 60, window_s=2, quiet_poll_s=1, back_s=20))
    summary = "\n".join(result.lines())
    print(summary)  # noqa: T201 - figures to look at
    assert result.sent == 8_000
    assert list(result.problems()) == [], summary
    assert set(result.growth) >= {"producer", "manager", "worker", "worker 1", "worker 2"}
    assert result.peak_mib > result.base_mib + 0.1, "the load is seen, also by a slow machine"


def test_growth_is_told_from_warming_up() -> None:
    """What a program takes at first is none; what it takes from then on is."""
    warming = [20, 40, 50, *[60] * 9]
    assert growth_of([each * _MIB for each in warming]).mib == 0
    leaking = [60 + each for each in range(30)]
    assert growth_of([each * _MIB for each in leaking]).mib == 10


def test_what_grew_is_a_problem() -> None:
    """A program, a server that does not get back to where it began, a key."""
    result = Soak(Options(growth_mib=8), back_s=3.0)
    result.growth = {"manager": Growth(60, 67), "worker": Growth(60, 69)}
    assert list(result.problems()) == ["worker grew by 9.0 MiB; 8 are allowed"]
    result.back_s, result.growth, result.keys_left = None, {}, ["soak:{orders}:finished"]
    (problem,) = result.problems()
    assert "finished" in problem
    assert "PROBLEM" in "\n".join(result.lines())
