"""Connections that are lent: no more than there may be, in the order of asking, and none is lost."""

import asyncio
import threading
from threading import Thread

import pytest

from lisa_common.client.lending import AsyncIdleConnections, IdleConnections
from lisa_common.client.translation import lisa_error
from lisa_common.errors import NoFreeConnection, OutcomeUnknown, Unreachable
from support import wait_until


class _Lent:
    """Stands for a connection."""


def test_who_finds_none_waits_and_is_refused_in_the_end() -> None:
    """It is Unreachable, as nothing was done, and says how many there are and how long it waited."""
    idle = IdleConnections(2)
    assert idle.next is None
    places = [idle.pop(1), idle.pop(1)]
    assert not any(places)
    lent = [idle.track(place, _Lent()) for place in places]
    with pytest.raises(Unreachable, match=r"all 2 connections stayed in use for 0\.05 s") as caught:
        idle.pop(0.05)
    assert isinstance(caught.value, NoFreeConnection)
    assert not isinstance(lisa_error(caught.value), OutcomeUnknown)
    idle.append(lent[0])
    assert idle.pop(1) is lent[0]


def test_lost_connections_are_replaced() -> None:
    """One that neither is idle nor exists any more was lost by an interrupt: a caller that waits gets another."""
    idle = IdleConnections(2)
    lost, kept = [idle.track(idle.pop(1), _Lent()) for _ in range(2)]
    del lost
    another = idle.track(idle.pop(0.01), _Lent())
    with pytest.raises(NoFreeConnection):
        idle.pop(0.01)
    assert kept is not another


def test_a_place_that_a_caller_holds_is_not_lost() -> None:
    """After a stall all connections are given up at once. Who has got a place has yet to connect, and others wait."""
    idle = IdleConnections(2)
    lent = [idle.track(idle.pop(1), _Lent()) for _ in range(2)]
    for connection in lent:
        idle.replace(connection)
    places = [idle.pop(1), idle.pop(1)]
    with pytest.raises(NoFreeConnection):
        idle.pop(0.01)
    del places
    assert not idle.pop(0.01)


@pytest.mark.parametrize("kind", [IdleConnections, AsyncIdleConnections])
def test_a_new_connection_takes_the_place_of_one_given_up(kind: type[IdleConnections | AsyncIdleConnections]) -> None:
    """The next caller gets it, not one that may be as dead as the last."""
    idle = kind(2)
    given_up, other = [idle.track(place, _Lent()) for place in idle._idle]
    idle._idle = [other]
    idle.replace(given_up)
    first, place = idle._idle
    assert first is other
    assert not place


def test_threads_are_served_in_their_order() -> None:
    """What was given back last is lent first, and nobody overtakes those who wait."""
    idle, served = IdleConnections(1), []
    held = idle.pop(1)
    threads = []
    for n in range(5):
        threads.append(Thread(target=lambda n=n: served.append((n, idle.pop(10)))))
        threads[-1].start()
        wait_until(lambda: len(idle._waiters) == len(threads))
    for n in range(5):
        idle.append(f"c{n}")
        wait_until(lambda n=n: len(served) == n + 1)
    assert served == [(n, f"c{n}") for n in range(5)]
    assert not held


async def test_tasks_are_served_in_their_order() -> None:
    """One that was cancelled, or refused, is passed over; a connection that it had been lent is not lost."""
    idle = AsyncIdleConnections(1)
    assert idle.has_free
    idle.pop()
    with pytest.raises(NoFreeConnection):
        await idle.wait(0.01)
    waiters = [asyncio.create_task(idle.wait(10)) for _ in range(3)]
    await asyncio.sleep(0)
    waiters[0].cancel()
    await asyncio.sleep(0)
    idle.append("one")
    waiters[1].cancel()
    assert await waiters[2] == "one"
    assert not idle.has_free


def test_a_lost_connection_is_replaced_at_once() -> None:
    """A caller that finds none free looks for lost ones before it waits: nobody returns these."""
    idle = IdleConnections(1)
    lost = idle.track(idle.pop(1), _Lent())
    del lost
    assert not idle.pop(threading.TIMEOUT_MAX)
