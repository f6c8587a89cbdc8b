"""When a manager's calls begin, so that they get to the server at a time of its clock."""

import pytest

from lisa_manager.server_clock import ServerClock

_EPOCH_MS = 1_700_000_000_000


def _seen(*calls: tuple[float, float]) -> ServerClock:
    """A clock that has seen calls: when each began, and how long it took to get there, in seconds.

    The server's clock is at the epoch when the monotonic one is at 0.
    """
    clock = ServerClock()
    for began, took_s in calls:
        clock.see(_EPOCH_MS + (began + took_s) * 1000, began)
    return clock


def test_a_call_begins_as_much_earlier_as_the_quickest_takes() -> None:
    """None gets there too early, unless it is quicker than all of late."""
    clock = _seen((1, 0.005), (2, 0.003), (3, 0.2))
    assert clock.moment_of(_EPOCH_MS + 10_000) == pytest.approx(10 - 0.003, abs=1e-4)
    assert clock.ms_at(10) == pytest.approx(_EPOCH_MS + 10_003, abs=1)


def test_only_the_latest_calls_count() -> None:
    """The way to the server may become longer."""
    clock = _seen((1, 0.001), *((number, 0.004) for number in range(2, 18)))
    assert clock.moment_of(_EPOCH_MS + 30_000) == pytest.approx(30 - 0.004, abs=1e-4)


@pytest.mark.parametrize("by_s", [-3600, -2, 2, 3600])
def test_a_clock_that_is_set_is_followed_at_once(by_s: float) -> None:
    """What was seen before says nothing any more."""
    clock = _seen(*((number, 0.001) for number in range(16)))
    clock.see(_EPOCH_MS + (20 + by_s) * 1000, 20)
    assert clock.moment_of(_EPOCH_MS + (30 + by_s) * 1000) == pytest.approx(30, abs=1e-4)


def test_one_slow_call_is_not_a_clock_that_was_set_for_long() -> None:
    """It looks like one until the next call."""
    clock = _seen((1, 0.001), (2, 3.0), (5, 0.001))
    assert clock.moment_of(_EPOCH_MS + 30_000) == pytest.approx(30 - 0.001, abs=1e-4)
