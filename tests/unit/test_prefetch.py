"""How many deliveries a worker prefetches."""

from math import inf

import pytest

from lisa_consumer.delivery.core import MAX_BATCH
from lisa_consumer.worker.windows import PrefetchWindow


@pytest.mark.parametrize(
    ("concurrency", "prefetch", "handling_s", "capacity"),
    [
        (1, 64, None, 2),
        (1, 64, 10.0, 2),
        (1, 64, 0.02, 6),
        (1, 64, 0.001, 65),
        (1, 64, 0.0, 65),
        (1, 0, None, 1),
        (1, 0, 0.0, 1),
        (32, 64, 10.0, 33),
        (32, 64, 0.1, 64),
        (32, 64, 0.01, 96),
        (10_000, 64, 0.01, MAX_BATCH),
    ],
)
def test_capacity(concurrency: int, prefetch: int, handling_s: float | None, capacity: int) -> None:
    """It covers what may run, and what starts within a tenth of a second: at least one, and at most `prefetch`."""
    window = PrefetchWindow(concurrency, prefetch)
    if handling_s is not None:
        window.observe([handling_s])
    assert window.capacity == capacity


def test_what_counts_is_how_long_the_latest_took() -> None:
    """The capacity shrinks soon after handlers become slow, and grows when they become quick."""
    window, capacities = PrefetchWindow(1, 64), []
    for handling_s in (0.001, 1.0, *[0.001] * 50):
        window.observe([handling_s])
        capacities.append(window.capacity)
    assert (capacities[:2], capacities[-1]) == ([65, 2], 65)


@pytest.mark.parametrize(
    ("concurrency", "prefetch", "handling_s", "most_held"),
    [
        *((32, 64, 0.01, 48), (32, 64, 1.0, 32), (32, 0, 1.0, 31)),
        *((1, 64, 1.0, 1), (1, 0, 1.0, 0), (4, 4, 0.01, 4), (2_000, 64, 0.01, 2_000)),
    ],
)
def test_when_to_read(concurrency: int, prefetch: int, handling_s: float, most_held: int) -> None:
    """A worker waits for room for a batch only while no handler would be idle."""
    window = PrefetchWindow(concurrency, prefetch)
    window.observe([handling_s])
    window.take(most_held)
    assert window.worth_a_read
    window.take(1)
    assert not window.worth_a_read


def test_a_window_that_shrinks_has_no_capacity() -> None:
    """Held deliveries stay."""
    window = PrefetchWindow(1, 64)
    window.observe([0.001])
    window.take(65)
    window.observe([1.0])
    assert (window.capacity, window.worth_a_read) == (-63, 0)


def test_how_long_what_is_held_takes() -> None:
    """By the average of the latest, as many at once as may run; infinite before the first."""
    window = PrefetchWindow(2, 64)
    window.take(3)
    assert window.expected_s == inf
    window.observe([0.5])
    assert window.expected_s == 1.0
    window.release(3)
    assert window.expected_s == 0.0


def test_few_large_messages_are_held() -> None:
    """Beyond those that may run at once, no more than one request brings; `prefetch` again once they are small."""
    window = PrefetchWindow(4, 64)
    window.observe([0.001])
    most_held = []
    for most in (MAX_BATCH, 8, 1, MAX_BATCH):
        window.limit(most)
        while window.capacity > 0:
            window.take(window.capacity)
        most_held.append(window.held)
        window.release(window.held)
    assert most_held == [68, 12, 5, 68]


def test_a_limit_before_the_first_observation() -> None:
    """It does not widen the window."""
    for prefetch, capacity in ((64, 5), (0, 4)):
        window = PrefetchWindow(4, prefetch)
        window.limit(8)
        assert window.capacity == capacity


def test_one_read_brings_few_whose_size_is_a_guess() -> None:
    """However large the window: the latest messages were small, these may not be."""
    window = PrefetchWindow(32, 1_000)
    window.observe([0.001])
    assert window.capacity == 416
    window.take(416)
    assert window.capacity == 416
    window.take(216)
    assert (window.capacity, window.worth_a_read) == (400, 0)


@pytest.mark.parametrize(
    ("concurrency", "handling_s", "soon"), [(1, 0.0, 500), (32, 0.0, 500), (32, 0.001, 64), (1, 0.001, 2), (1, 1.0, 0)]
)
def test_how_many_begin_soon(concurrency: int, handling_s: float, soon: int) -> None:
    """No more than a worker can begin, however quick their handler is: what is marked pays for a crash."""
    now = 0.0
    window = PrefetchWindow(concurrency, 1_000, lambda: now)
    assert window.soon == 0
    now += handling_s
    window.observe([handling_s] * concurrency)
    assert window.soon == soon


def test_few_begin_soon_where_handlers_keep_the_event_loop_busy() -> None:
    """They run one after the other, however many may run at once."""
    now = 0.0
    window = PrefetchWindow(32, 1_000, lambda: now)
    for _ in range(100):
        now += 0.032
        window.observe([0.001] * 32)
    assert window.soon == 2


def test_as_many_begin_soon_while_marks_are_late() -> None:
    """Then fewer handlers run at once: but that must not make marks cover fewer and fewer."""
    now = 0.001
    window = PrefetchWindow(32, 1_000, lambda: now)
    window.observe([0.001] * 32)
    for _ in range(10):
        now += 0.004
        window.observe([0.001] * 32)
    assert 50 < window.soon < 64
