"""The only place where a test sleeps."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

_T = TypeVar("_T")
_PAUSE_S = 0.005
_PATIENCE_S = 30.0
"""Processes and servers of a busy machine may stall for seconds. What comes in time costs none of this."""
_RARER = 50
"""A wait ends late by at most one part in so many of its time. Tests that look all the time keep a processor busy."""


def wait_until(predicate: Callable[[], _T], timeout: float = _PATIENCE_S, *, what: str = "") -> _T:
    """Return the first truthy value of `predicate`, or fail naming what was waited for.

    `what` completes the sentence "waited 30 s for …"; without it the predicate's source is shown.
    """
    began = time.monotonic()
    while True:
        # Before the look: this process may stall, too, and what has come meanwhile has come.
        waited = time.monotonic() - began
        if value := predicate():
            return value
        if waited > timeout:
            raise AssertionError(_complaint(predicate, timeout, what, value))
        time.sleep(max(_PAUSE_S, waited / _RARER))


async def wait_until_async(
    predicate: Callable[[], _T | Awaitable[_T]], timeout: float = _PATIENCE_S, *, what: str = ""
) -> _T:
    """Do as `wait_until`, letting the event loop run; the predicate may be a coroutine function."""
    began = time.monotonic()
    while True:
        waited = time.monotonic() - began
        result = predicate()
        value: _T = await result if inspect.isawaitable(result) else result
        if value:
            return value
        if waited > timeout:
            raise AssertionError(_complaint(predicate, timeout, what, value))
        await asyncio.sleep(max(_PAUSE_S, waited / _RARER))


def idle(seconds: float) -> None:
    """Let time pass, for tests of what happens meanwhile."""
    time.sleep(seconds)


async def idle_async(seconds: float) -> None:
    """Do as `idle`, letting the event loop run."""
    await asyncio.sleep(seconds)


def _complaint(predicate: Callable[[], object], timeout: float, what: str, last: object) -> str:
    return f"waited {timeout:g} s for {what or _source(predicate)}; the last value was {last!r}"


def _source(predicate: Callable[[], object]) -> str:
    try:
        return " ".join(inspect.getsource(predicate).split())
    except (OSError, TypeError):
        return repr(predicate)
