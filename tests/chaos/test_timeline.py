"""What is known of the server's clock when it is set while samples are under way."""

import pytest

from chaos.history import Clock
from chaos.timeline import Timeline

_HOUR_MS = 3_600_000.0


def _sample(asked_s: float, answered_s: float, ahead_ms: float) -> Clock:
    return Clock(answered_s, asked_s, (asked_s + answered_s) / 2 * 1000 + ahead_ms)


def test_a_clock_set_during_a_slow_sample_may_show_either_time() -> None:
    """The sample may have been taken as soon as it was asked for, so the clock may be set long before the answer."""
    samples = [_sample(0, 0.001, 0), _sample(1, 3, 0), _sample(3, 3.001, -_HOUR_MS), _sample(4, 4.001, -_HOUR_MS)]
    timeline = Timeline(samples)
    assert timeline.at_least(2, 2.5) < 2_500 - _HOUR_MS
    assert timeline.at_most(2, 2.5) > 2_499
    assert timeline.at_most(3.5, 3.6) == pytest.approx(3_600 - _HOUR_MS, abs=2)
    assert timeline.at_least(0.5, 0.6) == pytest.approx(500, abs=2)


def test_a_clock_that_is_not_set_is_known_by_its_best_sample() -> None:
    """A slow sample says less than a fast one, and takes nothing from it."""
    timeline = Timeline([_sample(0, 0.001, 5), _sample(1, 3, 5), _sample(4, 4.001, 5)])
    assert timeline.at_most(2, 2) == pytest.approx(2_005, abs=2)
    assert timeline.at_least(2, 2) == pytest.approx(2_005, abs=2)


def test_without_samples_the_clock_may_show_anything() -> None:
    """So that nothing is called a violation."""
    assert Timeline([]).at_most(1, 2) == float("inf")
    assert Timeline([]).at_least(1, 2) == float("-inf")


def test_a_read_that_waits_while_the_clock_is_set_back_may_see_the_earlier_time() -> None:
    """What it brings may have been stored, and read, after the clock was set."""
    samples = [_sample(0, 0.001, 0), _sample(1, 1.001, 0), _sample(2, 2.001, -_HOUR_MS), _sample(3, 3.001, -_HOUR_MS)]
    assert Timeline(samples).at_least(0.5, 2.5) < 2_500 - _HOUR_MS
