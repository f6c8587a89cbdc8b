"""A manager estimates the server's clock from the times in replies."""

import pytest

from lisa_common.observing.server_clock import ServerClock

_EPOCH_MS = 1_700_000_000_000


def _seen(*calls: tuple[float, float, float]) -> ServerClock:
    """A clock that has seen calls: when each began, and how long it and its reply were under way, in seconds.

    The server's clock is at the epoch when the monotonic one is at 0.
    """
    clock = ServerClock()
    for began, call_s, reply_s in calls:
        clock.see(_EPOCH_MS + (began + call_s) * 1000, began, began + call_s + reply_s)
    return clock


def test_a_call_begins_as_much_earlier_as_the_quickest_takes() -> None:
    """It gets there no sooner, unless it is quicker than all of late."""
    clock = _seen((1, 0.005, 0.001), (2, 0.003, 0.001), (3, 0.2, 0.001))
    assert clock.begin_for(_EPOCH_MS + 10_000) == pytest.approx(10 - 0.003, abs=1e-4)


@pytest.mark.parametrize("slow_s", [0.0, 0.1, 3.0])
def test_the_clock_is_never_ahead_of_the_servers(slow_s: float) -> None:
    """However slow calls and replies are: else ticks that have not come yet would count as missed."""
    clock = _seen((1, 0.005, 0.002), (2, slow_s, 0.003), (6, slow_s, slow_s))
    assert _EPOCH_MS + 20_000 - 1000 * slow_s - 4 <= clock.ms_at(20) <= _EPOCH_MS + 20_000
    assert clock.ms_at(clock.moment_of(_EPOCH_MS + 20_000) + 1e-5) == _EPOCH_MS + 20_000


def test_only_the_latest_calls_count() -> None:
    """The way to the server may become longer."""
    clock = _seen((1, 0.001, 0.001), *((number, 0.004, 0.004) for number in range(2, 18)))
    assert clock.begin_for(_EPOCH_MS + 30_000) == pytest.approx(30 - 0.004, abs=1e-4)
    assert clock.ms_at(30) == pytest.approx(_EPOCH_MS + 30_000 - 4, abs=1)


@pytest.mark.parametrize("by_s", [-3600, -2, -0.1, 0.1, 2, 3600])
def test_a_clock_that_is_set_is_followed_at_once(by_s: float) -> None:
    """The earlier calls no longer count."""
    clock = _seen(*((number, 0.001, 0.001) for number in range(16)))
    clock.see(_EPOCH_MS + (20 + by_s) * 1000, 20, 20)
    assert clock.begin_for(_EPOCH_MS + (30 + by_s) * 1000) == pytest.approx(30, abs=1e-4)
    assert clock.ms_at(30) == pytest.approx(_EPOCH_MS + (30 + by_s) * 1000, abs=1)


def test_a_slow_call_is_not_a_clock_that_was_set() -> None:
    """The earlier calls still count."""
    clock = _seen((1, 0.001, 0.001), (2, 3.0, 0.001), (5, 0.001, 3.0))
    assert clock.begin_for(_EPOCH_MS + 30_000) == pytest.approx(30 - 0.001, abs=1e-4)
    assert clock.ms_at(30) == pytest.approx(_EPOCH_MS + 30_000, abs=2)


def test_a_clock_that_runs_faster_is_followed() -> None:
    """Old calls do not make new ones late."""
    clock, faster = ServerClock(), 1000.5
    for began in range(300):
        clock.see(_EPOCH_MS + (began + 0.001) * faster, began, began + 0.002)
    assert clock.begin_for(_EPOCH_MS + 300 * faster) == pytest.approx(300, abs=0.003)
