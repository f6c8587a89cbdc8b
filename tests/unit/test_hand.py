"""How much a worker takes in hand."""

from math import inf

import pytest

from lisa_consumer.core import MAX_BATCH
from lisa_consumer.hand import Hand


@pytest.mark.parametrize(
    ("concurrency", "prefetch", "handling_s", "room"),
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
def test_room(concurrency: int, prefetch: int, handling_s: float | None, room: int) -> None:
    """For what may run, and for what begins within a tenth of a second: one at least, and no more than allowed."""
    hand = Hand(concurrency, prefetch)
    if handling_s is not None:
        hand.note(handling_s)
    assert hand.room == room


def test_what_counts_is_how_long_the_latest_took() -> None:
    """Handlers that become slow leave less room soon, and those that become quick more."""
    hand, rooms = Hand(1, 64), []
    for handling_s in (0.001, 1.0, *[0.001] * 50):
        hand.note(handling_s)
        rooms.append(hand.room)
    assert (rooms[:2], rooms[-1]) == ([65, 2], 65)


@pytest.mark.parametrize(
    ("concurrency", "prefetch", "handling_s", "most_held"),
    [
        *((32, 64, 0.01, 48), (32, 64, 1.0, 32), (32, 0, 1.0, 31)),
        *((1, 64, 1.0, 1), (1, 0, 1.0, 0), (4, 4, 0.01, 4), (2_000, 64, 0.01, 2_000)),
    ],
)
def test_when_to_read(concurrency: int, prefetch: int, handling_s: float, most_held: int) -> None:
    """Batches are waited for only while all slots have something to do."""
    hand = Hand(concurrency, prefetch)
    hand.note(handling_s)
    hand.held = most_held
    assert hand.is_worth_a_read
    hand.held += 1
    assert not hand.is_worth_a_read


def test_a_hand_that_shrinks_has_no_room() -> None:
    """What is held already stays."""
    hand = Hand(1, 64)
    hand.note(0.001)
    hand.held = 65
    hand.note(1.0)
    assert (hand.room, hand.is_worth_a_read) == (-63, False)


def test_how_long_what_is_held_takes() -> None:
    """By the mean of the latest, as many at once as may run; unknown while nothing has been handled."""
    hand = Hand(2, 64)
    hand.held = 3
    assert hand.expected_s == inf
    hand.note(0.5)
    assert hand.expected_s == 1.0
    hand.held = 0
    assert hand.expected_s == 0.0
