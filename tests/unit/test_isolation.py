"""Isolation: who is held back while a delivery runs alone, and for how long."""

import asyncio

import pytest

from lisa_common.model.delivery import Delivery, Entry
from lisa_consumer import isolation
from lisa_consumer.worker.held import HeldDelivery
from lisa_consumer.worker.quarantine import Isolation
from support import wait_until_async
from support.holding import hold


def delivery(id: str) -> HeldDelivery:
    """A delivery that is to run alone."""
    entry = Entry("1-0", id, 0, 2, "g", 0, alone=True)
    [held] = hold([Delivery("orders", "g", id, b"", {}, 2, 0, 0, entry)])
    return held


def free(topic: str) -> bool:
    """A handler can always run."""
    return bool(topic)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are not held back for long."""
    monkeypatch.setattr(isolation, "_PATIENCE_S", 0.05)
    monkeypatch.setattr(isolation, "_ALONE_S", 0.05)


async def test_alone_once_the_others_have_ended() -> None:
    """Others are held back from its arrival to its end; the next one waits until they have had their turn."""
    first, second = delivery("first"), delivery("second")
    starts: list[int] = []
    alone = Isolation(lambda: starts.append(1), lambda _: None)
    alone.add(first)
    alone.add(second)
    assert alone.next(2, free) is None
    assert alone.holds_back
    assert alone.next(0, free) is first
    assert alone.next(0, free) is None
    await asyncio.sleep(0.02)
    alone.end(first)
    assert (alone.holds_back, alone.is_wanted) == (False, True)
    assert alone.next(0, free) is None
    await wait_until_async(lambda: starts)
    assert alone.next(0, free) is second


@pytest.mark.usefixtures("quick")
async def test_others_are_not_held_back_for_ever() -> None:
    """Neither by running handlers, nor by a slow delivery, which then has company; `on_company` is called for it."""
    starts: list[int] = []
    company: list[HeldDelivery] = []
    alone = Isolation(lambda: starts.append(1), company.append)
    one = delivery("one")
    alone.add(one)
    assert alone.next(1, free) is None
    await wait_until_async(lambda: starts)
    assert alone.next(1, free) is one
    assert alone.holds_back
    await wait_until_async(lambda: company == [one])
    assert not alone.holds_back


def test_clear_returns_what_has_not_begun() -> None:
    """Once."""
    alone = Isolation(lambda: None, lambda _: None)
    one = delivery("one")
    alone.add(one)
    assert alone.clear() == [one]
    assert (alone.clear(), alone.is_wanted) == ([], False)


async def test_nobody_waits_for_what_was_cleared() -> None:
    """What was held back for it may begin in a drain."""
    alone = Isolation(lambda: None, lambda _: None)
    alone.add(delivery("one"))
    assert alone.next(1, free) is None
    assert alone.holds_back
    alone.clear()
    assert (alone.holds_back, alone.is_wanted) == (False, False)
