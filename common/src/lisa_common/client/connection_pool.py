"""The connections of a program to one server, shared by its threads, or by the tasks of an event loop.

Callers stand in a line, and the first `limit` of them may use a connection each. A caller holds its place in the line;
the line knows it only for as long as the caller does. So a place cannot be lost, wherever an interrupt ends a call:
what nobody holds any more takes no room.
"""

import asyncio
import queue
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Any
from weakref import ref

from lisa_common.errors import NoFreeConnection

__all__ = ["AsyncConnectionPool", "ConnectionPool", "ConnectionPools", "Place"]

_LOOK_S = 0.25
"""How often a waiting thread looks at the line: the caller before it may have been interrupted before it woke it."""


class Place:
    """A caller's place in the line, and the connection that it uses."""

    __slots__ = ("__weakref__", "connection", "turn")

    def __init__(self) -> None:
        self.connection: Any = None
        self.turn: Any = None
        """Wakes the caller; None where it does not wait."""


class _Line:
    def __init__(self, limit: int, make: Callable[[], Any]) -> None:
        self._limit = limit
        self._make = make
        self._idle: list[Any] = []
        """The connection that was used last is used next, so that a program keeps no more of them busy than it needs.

        None stands for a connection that is yet to be made.
        """
        self._places: dict[ref[Place], None] = {}
        """In order of arrival. Changes are single operations of the interpreter: they need no lock."""

    @property
    def next(self) -> Any:
        """The connection to be used next; None if it is yet to be made."""
        return next(iter(self._idle[-1:]), None)

    @property
    def connections(self) -> list[Any]:
        """Returns all connections, idle and in use."""
        places = [place() for place in list(self._places)]
        used = [place.connection for place in places if place is not None]
        return [connection for connection in self._idle + used if connection is not None]

    def keep(self, place: Place) -> None:
        """Makes the connection of a place idle: others may use it. It must be in step with the server."""
        connection, place.connection = place.connection, None
        self._idle.append(connection)

    def leave(self, place: Place) -> None:
        """Ends a place. A connection that it still has must have been closed."""
        if place.connection is not None:
            place.connection = None
            # The next caller makes a new connection: the others may be dead, too.
            self._idle.append(None)
        self._places.pop(ref(place), None)
        if len(self._places) >= self._limit:
            self._serve()

    def _take_connection(self, place: Place) -> None:
        try:
            connection = self._idle.pop()
        except IndexError:  # none is idle
            connection = None
        place.connection = connection or self._make()

    def _serve(self) -> None:
        """Wakes the callers whose turn it is. Ends the places that nobody holds any more."""
        # No more than these are looked at: thousands may stand in the line.
        first = list(islice(self._places, self._limit))
        for known in first:
            place = known()
            if place is None:
                self._places.pop(known, None)
            elif place.turn is not None:
                self._wake(place.turn)
        if any(known() is None for known in first):
            self._serve()

    def _wake(self, turn: Any) -> None:
        raise NotImplementedError

    def _refuse(self, waited_s: float) -> NoFreeConnection:
        return NoFreeConnection(f"cannot reach Redis: all {self._limit} connections stayed in use for {waited_s:g} s")


class ConnectionPool(_Line):
    """For the threads of one process."""

    def enter(self, timeout_s: float) -> Place:
        """Returns a place with a connection; raises NoFreeConnection where none is free for so many seconds."""
        place = Place()
        self._places[ref(place)] = None
        try:
            if len(self._places) > self._limit:
                self._await_turn(place, timeout_s)
            self._take_connection(place)
        except BaseException:
            self.leave(place)
            raise
        return place

    def _await_turn(self, place: Place, timeout_s: float) -> None:
        place.turn = queue.SimpleQueue()
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            self._serve()
            with suppress(queue.Empty):
                place.turn.get(timeout=min(left, _LOOK_S))
                place.turn = None
                return
        raise self._refuse(timeout_s)

    def _wake(self, turn: "queue.SimpleQueue[None]") -> None:
        turn.put(None)

    def break_idle(self) -> None:
        """Closes all idle connections; other threads may use the pool meanwhile."""
        with suppress(IndexError):
            while True:
                connection = self._idle.pop()
                if connection is not None:
                    connection.disconnect()

    def close(self) -> None:
        """Closes all connections, also those in use."""
        for connection in self.connections:
            connection.disconnect()


class ConnectionPools(dict[int, ConnectionPool]):
    """Pools by process: a forked child must not use its parent's connections, nor wait for its threads."""

    def __init__(self, limit: int, make: Callable[[], Any]) -> None:
        super().__init__()
        self._limit = limit
        self._make = make

    def __missing__(self, pid: int) -> ConnectionPool:
        return self.setdefault(pid, ConnectionPool(self._limit, self._make))


class AsyncConnectionPool(_Line):
    """For the tasks of one event loop."""

    async def enter(self, timeout_s: float) -> Place:
        """Returns a place with a connection; raises NoFreeConnection where none is free for so many seconds."""
        place = Place()
        self._places[ref(place)] = None
        try:
            if len(self._places) > self._limit:
                await self._await_turn(place, timeout_s)
            self._take_connection(place)
        except BaseException:
            self.leave(place)
            raise
        return place

    async def _await_turn(self, place: Place, timeout_s: float) -> None:
        place.turn = asyncio.get_running_loop().create_future()
        self._serve()
        await asyncio.wait((place.turn,), timeout=timeout_s)
        if not place.turn.done():
            raise self._refuse(timeout_s)
        place.turn = None

    def _wake(self, turn: "asyncio.Future[None]") -> None:
        if not turn.done():
            turn.set_result(None)

    async def break_idle(self) -> None:
        """Closes all idle connections."""
        while self._idle:
            connection = self._idle.pop()
            if connection is not None:
                await connection.disconnect(nowait=True)

    async def close(self) -> None:
        """Closes all connections, also those in use."""
        for connection in self.connections:
            await connection.disconnect()
