"""How the benchmark suite runs: how many rounds, and what an interruption does."""

import signal
from pathlib import Path

from benchmarks.bench import Bench, uninterrupted


def _laps(*, seconds: float, within_s: float, most: int | None = None) -> tuple[int, dict[str, str]]:
    """Rounds of so many seconds each. Returns how many were made, and what is noted of them."""
    laps = 0
    run = Bench(rounds=5, scale=1, directory=Path(), clock=lambda: laps * seconds)
    for _ in run.laps(within_s, most):
        laps += 1
    return laps, run.notes


def test_all_rounds_are_made_where_there_is_time() -> None:
    """As many as the run has, or as the part wants at most."""
    assert _laps(seconds=2, within_s=10) == (5, {})
    assert _laps(seconds=2, within_s=10, most=3) == (3, {})
    assert _laps(seconds=2, within_s=100, most=9) == (5, {})


def test_rounds_that_would_not_end_in_time_are_left_out() -> None:
    """It is said; and one round is always made."""
    assert _laps(seconds=3, within_s=10) == (3, {"rounds": "3 of 5 here, as a slow machine has 10 s for them"})
    assert _laps(seconds=11, within_s=10)[0] == 1


def test_an_interruption_waits_while_something_is_started() -> None:
    """Its handler runs when the block has ended, and not before; afterwards it runs at once again."""
    order: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda *_: order.append("interrupted"))
    try:
        with uninterrupted():
            signal.raise_signal(signal.SIGTERM)
            order.append("started")
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert order == ["started", "interrupted", "interrupted"]
