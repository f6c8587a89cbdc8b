"""The quarantine: who is held back while a delivery runs alone, and for how long."""

from lisa_common.model.delivery import Delivery, Entry
from lisa_consumer.worker.concurrency import ConcurrencyLimit
from lisa_consumer.worker.held import HeldDelivery
from lisa_consumer.worker.quarantine import Quarantine
from support.holding import hold


class Clock:
    """A clock that stands still."""

    now = 1_000.0

    def __call__(self) -> float:
        """Returns the time."""
        return self.now


def delivery(id: str) -> HeldDelivery:
    """A delivery that is to run alone."""
    entry = Entry("1-0", id, 0, 2, "g", 0, alone=True)
    [held] = hold([Delivery("orders", "g", id, b"", {}, 2, 0, 0, entry)])
    return held


def test_alone_once_the_others_have_ended() -> None:
    """Others are held back from its arrival to its end; the next one waits until they have had their turn."""
    clock, limit = Clock(), ConcurrencyLimit(9, {"orders": 9})
    alone = Quarantine(clock)
    first, second = delivery("first"), delivery("second")
    alone.add(first)
    alone.add(second)
    limit.acquire("orders")
    assert alone.next(limit) is None
    assert alone.holds_back
    limit.release("orders")
    assert alone.next(limit) is first
    assert not first.has_company
    assert alone.next(limit) is None
    clock.now += 2
    alone.end(first)
    assert (alone.holds_back, alone.is_wanted) == (False, True)
    assert alone.next(limit) is None
    assert alone.next_at == clock.now + 2
    clock.now += 2
    limit.release("orders")
    assert alone.next(limit) is second


def test_others_are_not_held_back_for_ever() -> None:
    """Neither by running handlers, nor by a slow delivery, which then has company."""
    clock, limit = Clock(), ConcurrencyLimit(9, {"orders": 9})
    alone = Quarantine(clock)
    one = delivery("one")
    alone.add(one)
    limit.acquire("orders")
    assert alone.next(limit) is None
    clock.now = alone.next_at
    assert alone.next(limit) is one
    assert one.has_company
    assert alone.share() is None
    assert alone.holds_back
    clock.now = alone.next_at
    assert alone.share() is one
    assert not alone.holds_back


def test_clear_returns_what_has_not_begun() -> None:
    """Once; and nobody is held back for it any longer."""
    alone, limit = Quarantine(), ConcurrencyLimit(9, {"orders": 9})
    one = delivery("one")
    alone.add(one)
    limit.acquire("orders")
    assert alone.next(limit) is None
    assert alone.holds_back
    assert alone.clear() == [one]
    assert (alone.clear(), alone.is_wanted, alone.holds_back) == ([], False, False)
