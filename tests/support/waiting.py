"""The only place where a test sleeps."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

_T = TypeVar("_T")
_PAUSE_S = 0.005


def wait_until(predicate: Callable[[], _T], timeout: float = 10.0, *, what: str = "") -> _T:
    """Return the first truthy value of `predicate`, or fail naming what was waited for.

    `what` completes the sentence "waited 10 s for …"; without it the predicate's source is shown.
    """
    deadline = time.monotonic() + timeout
    while not (value := predicate()):
        if time.monotonic() > deadline:
            raise AssertionError(_complaint(predicate, timeout, what, value))
        time.sleep(_PAUSE_S)
    return value


async def wait_until_async(predicate: Callable[[], _T | Awaitable[_T]], timeout: float = 10.0, *, what: str = "") -> _T:
    """Do as `wait_until`, letting the event loop run; the predicate may be a coroutine function."""
    deadline = time.monotonic() + timeout
    while True:
        result = predicate()
        value: _T = await result if inspect.isawaitable(result) else result
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(_complaint(predicate, timeout, what, value))
        await asyncio.sleep(_PAUSE_S)


def idle(seconds: float) -> None:
    """Let time pass, for tests of what happens meanwhile."""
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > end, seconds + 10)


async def idle_async(seconds: float) -> None:
    """Do as `idle`, letting the event loop run."""
    end = time.monotonic() + seconds
    await wait_until_async(lambda: time.monotonic() > end, seconds + 10)


def _complaint(predicate: Callable[[], object], timeout: float, what: str, last: object) -> str:
    return f"waited {timeout:g} s for {what or _source(predicate)}; the last value was {last!r}"


def _source(predicate: Callable[[], object]) -> str:
    try:
        return " ".join(inspect.getsource(predicate).split())
    except (OSError, TypeError):
        return repr(predicate)
