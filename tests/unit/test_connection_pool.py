"""The connections of a program: no more than there may be, in the order of asking, and no place is lost."""

import asyncio
import threading
from threading import Thread

import pytest

from lisa_common.client.connection_pool import AsyncConnectionPool, ConnectionPool, Place
from lisa_common.client.translation import lisa_error
from lisa_common.errors import NoFreeConnection, OutcomeUnknown, Unreachable
from support import wait_until


class _Connection:
    """Stands for a connection."""


def _keep(pool: ConnectionPool | AsyncConnectionPool, place: Place) -> None:
    """Ends a call whose replies have come."""
    pool.keep(place)
    pool.leave(place)


def test_a_caller_that_finds_none_waits_and_is_refused() -> None:
    """It is Unreachable, as nothing was done, and says how many there are and how long it waited."""
    pool = ConnectionPool(2, _Connection)
    assert pool.next is None
    places = [pool.enter(1), pool.enter(1)]
    with pytest.raises(Unreachable, match=r"all 2 connections stayed in use for 0\.05 s") as caught:
        pool.enter(0.05)
    assert isinstance(caught.value, NoFreeConnection)
    assert not isinstance(lisa_error(caught.value), OutcomeUnknown)
    connection = places[0].connection
    _keep(pool, places[0])
    assert pool.enter(1).connection is connection


def test_a_place_ends_with_its_caller() -> None:
    """An interrupt may end a caller before it gives anything back: the next one need not wait."""
    pool = ConnectionPool(2, _Connection)
    held, lost = pool.enter(1), pool.enter(1)
    del lost
    another = pool.enter(threading.TIMEOUT_MAX)
    with pytest.raises(NoFreeConnection):
        pool.enter(0.01)
    assert held.connection is not another.connection


def test_a_waiting_thread_finds_a_place_that_was_lost() -> None:
    """Nothing wakes it: it looks by itself."""
    pool, entered = ConnectionPool(1, _Connection), []
    lost = pool.enter(1)
    thread = Thread(target=lambda: entered.append(pool.enter(20)))
    thread.start()
    wait_until(lambda: len(pool._places) == 2)
    del lost
    thread.join(10)
    assert len(entered) == 1


@pytest.mark.parametrize("kind", [ConnectionPool, AsyncConnectionPool])
async def test_a_new_connection_follows_one_that_was_closed(kind: type[ConnectionPool | AsyncConnectionPool]) -> None:
    """The next caller gets it, not one that may be as dead as the last."""
    pool = kind(2, _Connection)
    other, closed = [await place if asyncio.iscoroutine(place) else place for place in (pool.enter(1), pool.enter(1))]
    kept = other.connection
    _keep(pool, other)
    pool.leave(closed)
    assert pool.next is None
    later = [await place if asyncio.iscoroutine(place) else place for place in (pool.enter(1), pool.enter(1))]
    assert later[0].connection is not kept
    assert later[1].connection is kept


def test_threads_are_served_in_their_order() -> None:
    """Nobody overtakes those who wait."""
    pool = ConnectionPool(1, _Connection)
    served: list[tuple[int, Place]] = []
    held = pool.enter(1)
    threads = []
    for n in range(5):
        threads.append(Thread(target=lambda n=n: served.append((n, pool.enter(10)))))
        threads[-1].start()
        wait_until(lambda: len(pool._places) == len(threads) + 1)
    for n in range(5):
        _keep(pool, held)
        wait_until(lambda n=n: len(served) == n + 1)
        number, held = served[-1]
        assert number == n


async def test_tasks_are_served_in_their_order() -> None:
    """One that was cancelled, or refused, is passed over, also if its turn had come."""
    pool = AsyncConnectionPool(1, _Connection)
    held = await pool.enter(1)
    with pytest.raises(NoFreeConnection):
        await pool.enter(0.01)
    waiting = [asyncio.create_task(pool.enter(10)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    connection = held.connection
    _keep(pool, held)
    waiting[1].cancel()
    assert (await waiting[2]).connection is connection
    with pytest.raises(NoFreeConnection):
        await pool.enter(0.01)
