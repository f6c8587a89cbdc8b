"""Lends the idle connections to one server, in order of arrival: to threads, and to tasks.

Both lend the connection that was returned last, so that a program keeps no more connections busy than it needs. A place
stands for a connection that is yet to be made; it is false.
"""

import asyncio
import threading
from collections import deque
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from lisa_common.errors import NoFreeConnection

__all__ = ["AsyncIdleConnections", "IdleConnections", "IdleConnectionsByProcess", "refuse_connection"]


def refuse_connection(limit: int, waited_s: float) -> NoFreeConnection:
    """The error of a caller that got no free connection in time."""
    return NoFreeConnection(f"cannot reach Redis: all {limit} connections stayed in use for {waited_s:g} s")


class _Place:
    """Room for a connection."""

    __slots__ = ("__weakref__",)

    def __bool__(self) -> bool:
        return False


class _IdleConnections:
    _waiters: deque[Any]

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._idle: list[Any] = [_Place() for _ in range(limit)]
        self._waiters = deque()
        self._lock = threading.Lock()
        self._existing: WeakSet[Any] = WeakSet(self._idle)
        """All places, and all connections that have taken one, lent ones among them."""

    def append(self, connection: Any) -> None:
        """Takes a connection, or a place, back."""
        if connection:
            self._idle.append(connection)
        else:
            self._idle.insert(0, connection)
        if self._waiters:
            self._serve()

    def track(self, place: Any, connection: Any) -> Any:
        """Takes note of a new connection in a place that was lent, and returns it: `close` closes it."""
        with self._lock:
            self._existing.discard(place)
            self._existing.add(connection)
        return connection

    def replace(self, connection: Any) -> None:
        """Takes back a connection that is given up. The next caller makes a new one: the others may be dead, too."""
        with self._lock:
            self._existing.discard(connection)
            self._idle.append(place := _Place())
            self._existing.add(place)
        self._serve()

    def _serve(self) -> None:
        raise NotImplementedError


class _Waiter:
    """A thread that waits for a connection."""

    def __init__(self) -> None:
        self.connection: Any = None
        self.served = threading.Lock()
        self.served.acquire()


class IdleConnectionsByProcess(dict[int, "IdleConnections"]):
    """Idle connections by process: a forked child must not use its parent's connections, nor wait for its threads."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def __missing__(self, pid: int) -> "IdleConnections":
        return self.setdefault(pid, IdleConnections(self._limit))


class IdleConnections(_IdleConnections):
    """For the threads of one process."""

    _waiters: deque[_Waiter]

    @property
    def next(self) -> Any:
        """The connection to be lent next; None if it is yet to be made, or none is free."""
        return next(iter(self._idle[-1:]), None) or None

    def pop(self, timeout_s: float) -> Any:
        """Lends a connection; raises NoFreeConnection where none is returned for so many seconds."""
        if not self._waiters:
            # Without the lock: every call runs this, and it is atomic.
            try:
                return self._idle.pop()
            except IndexError:
                pass
        waiter = _Waiter()
        try:
            with self._lock:
                self._waiters.append(waiter)
            # Those that were lost are found at once: nobody waits for them.
            if self._found_lost(waiter) or waiter.served.acquire(timeout=timeout_s) or not self._withdraw(waiter):
                return waiter.connection
        except BaseException:
            if not self._withdraw(waiter):
                self.append(waiter.connection)
            raise
        raise refuse_connection(self._limit, timeout_s)

    def _serve(self) -> None:
        with self._lock:
            while self._waiters:
                try:
                    connection = self._idle.pop()
                except IndexError:
                    return
                waiter = self._waiters.popleft()
                waiter.connection = connection
                waiter.served.release()

    def _found_lost(self, waiter: _Waiter) -> bool:
        """Replaces connections that were lost, and returns whether that has served this waiter.

        A signal handler may raise after a connection is lent, and before it is in safe hands. Then it is neither idle
        nor in use.
        """
        with self._lock:
            places = [_Place() for _ in range(self._limit - len(self._existing))]
            self._existing.update(places)
            self._idle[:0] = places
        self._serve()
        return waiter.served.acquire(blocking=False)

    def _withdraw(self, waiter: _Waiter) -> bool:
        """Ends a wait. Result: False if a connection was lent already."""
        with self._lock:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
                return True
            return False

    def close(self) -> None:
        """Closes all connections, lent ones, too."""
        with self._lock:
            existing = list(self._existing)
        for connection in filter(None, existing):
            connection.disconnect()

    def disconnect(self) -> None:
        """Breaks all idle connections; other threads may borrow meanwhile."""
        taken = []
        with suppress(IndexError):
            while True:
                taken.append(self._idle.pop())
        for connection in taken:
            if connection:
                connection.disconnect()
            self.append(connection)


class AsyncIdleConnections(_IdleConnections):
    """For the tasks of one event loop."""

    _waiters: deque[asyncio.Future[Any]]

    @property
    def existing(self) -> list[Any]:
        """All connections, lent ones among them."""
        return list(filter(None, self._existing))

    @property
    def has_free(self) -> bool:
        """Whether `pop` may be called."""
        return bool(self._idle) and not self._waiters

    def pop(self) -> Any:
        """Lends a connection at once."""
        return self._idle.pop()

    async def wait(self, timeout_s: float) -> Any:
        """Lends a connection; raises NoFreeConnection where none is returned for so many seconds."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._serve()
        try:
            await asyncio.wait((waiter,), timeout=timeout_s)
        except asyncio.CancelledError:
            if waiter.done():
                self.append(waiter.result())
            raise
        finally:
            if not waiter.done():
                self._waiters.remove(waiter)
        if not waiter.done():
            raise refuse_connection(self._limit, timeout_s)
        return waiter.result()

    def _serve(self) -> None:
        while self._waiters and self._idle:
            self._waiters.popleft().set_result(self._idle.pop())

    async def close(self) -> None:
        """Closes all connections, lent ones, too."""
        for connection in self.existing:
            await connection.disconnect()

    async def disconnect(self) -> None:
        """Breaks all idle connections."""
        taken, self._idle = self._idle, []
        try:
            for connection in taken:
                if connection:
                    await connection.disconnect(nowait=True)
        finally:
            self._idle = taken + self._idle
            self._serve()
