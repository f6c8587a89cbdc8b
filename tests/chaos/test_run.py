"""A short run: everything at once, for a third of a minute. `make chaos` makes longer ones."""

import pytest

from chaos.nemesis import KINDS
from chaos.run import Options, run

pytestmark = [pytest.mark.slow, pytest.mark.long]

_TOO_LONG = ("restart everything in turn", "load slowly", "leave connections half-open")
"""Faults that take a good part of a minute."""


@pytest.mark.timeout(400)
def test_the_promises_are_kept_under_faults() -> None:
    """Twenty seconds of faults at random, healed and drained: no promise is broken."""
    kinds = tuple(name for name in KINDS if name not in _TOO_LONG)
    result = run(Options("short", 20, rate=200, kinds=kinds, flood=0))
    summary = "\n".join(result.lines())
    print(summary)  # noqa: T201 - figures to look at
    assert result.verdict.violations == [], summary
    assert result.verdict.counts["messages"] > 1_000
    assert len(result.faults) >= 5
