"""Handlers that users write, and how they are called."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import TypeVar

from lisa_common.errors import InvalidInput, LisaError
from lisa_common.model.delivery import Delivery
from lisa_common.protocol.consuming import Nack, Postponed
from lisa_common.validation import Duration, duration_ms

__all__ = ["Handler", "RateLimited", "Reject", "Retry", "Route", "outcome_of"]

T = TypeVar("T")

Handler = Callable[[Delivery], object] | Callable[[Delivery], Awaitable[object]]


class Retry(LisaError):
    """Raised by a handler to have its message delivered again after `delay`, in seconds or as a timedelta.

    Without a delay the policy's backoff decides. The attempt counts, as with any failure.
    """

    def __init__(self, reason: str = "", *, delay: Duration | None = None) -> None:
        self.delay_ms = None if delay is None else duration_ms("delay", delay)
        super().__init__(reason or "the handler asked for a retry")


class Reject(LisaError):
    """Raised by a handler that can never handle its message: it becomes garbage, whatever attempts are left."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "the handler rejected the message")


class RateLimited(LisaError):
    """Raised by a handler that may go on only after `delay`, in seconds or as a timedelta: at an HTTP 429, for example.

    Its message is given back, and no attempt is spent. For so long nothing of the topic becomes ready, in any group;
    messages that are ready already are still delivered. Raises InvalidInput for a delay out of range.
    """

    def __init__(self, delay: Duration, reason: str = "") -> None:
        self.delay_ms = duration_ms("delay", delay, low_ms=1)
        super().__init__(reason or f"the handler may go on after {self.delay_ms / 1000:g} s")


@dataclass(frozen=True, slots=True)
class Route:
    """A topic, its handler, and how many of its messages may be handled at once.

    Raises InvalidInput for a handler whose call would handle nothing.
    """

    topic: str
    handler: Handler
    concurrency: int
    timeout_s: float | None = None
    _is_async: bool = field(init=False)

    def __post_init__(self) -> None:
        if not _is_fit(self.handler):
            raise InvalidInput("handler", self.handler, "a coroutine function or a plain function")
        object.__setattr__(self, "_is_async", _is_async(self.handler))

    async def call(self, delivery: Delivery, threads: Executor) -> None:
        """Runs the handler until it ends: a coroutine in the event loop, a plain function in a thread.

        Raises the handler's errors, and TimeoutError when a coroutine takes longer than the route allows. A cancelled
        call still waits for its thread, which cannot be stopped.
        """
        if self._is_async:
            result = self.handler(delivery)
        else:
            loop = asyncio.get_running_loop()
            running = loop.run_in_executor(threads, copy_context().run, _outcome, self.handler, delivery)
            result, error = await _wait_for(running)
            if error is not None:
                raise error
        if inspect.isawaitable(result):
            await (result if self.timeout_s is None else _within(self.timeout_s, result))


async def _wait_for(running: asyncio.Future[T]) -> T:
    """Waits for a thread even when cancelled: it runs on, and its message must not begin elsewhere meanwhile."""
    while not running.done():
        with suppress(asyncio.CancelledError):
            await asyncio.shield(running)
    return running.result()


async def _within(timeout_s: float, result: Awaitable[object]) -> None:
    try:
        async with asyncio.timeout(timeout_s) as limit:
            await result
    except TimeoutError:
        if limit.expired():
            raise TimeoutError(f"the handler took longer than {timeout_s:g} s") from None
        raise


def _outcome(handler: Handler, delivery: Delivery) -> tuple[object, BaseException | None]:
    # A future cannot carry every exception: it refuses StopIteration, and GeneratorExit closes the waiting coroutine.
    try:
        return handler(delivery), None
    except BaseException as error:  # noqa: BLE001 - the caller raises it again
        return None, error


# An object counts as what its __call__ is.


def _is_async(handler: object) -> bool:
    return any(map(inspect.iscoroutinefunction, (handler, type(handler).__call__)))


def _is_fit(handler: object) -> bool:
    """Whether a call handles a message: a generator would not run, and a class would only make an object."""
    if not callable(handler) or inspect.isclass(handler):
        return False
    functions = (handler, type(handler).__call__)
    return not any(inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in functions)


def outcome_of(delivery: Delivery, error: BaseException) -> Nack | Postponed:
    """What an exception of a handler asks for."""
    if isinstance(error, RateLimited):
        return Postponed(error.delay_ms)
    if isinstance(error, Reject):
        return Nack(delivery.entry, str(error), rejected=True)
    if isinstance(error, Retry):
        return Nack(delivery.entry, str(error), error.delay_ms)
    return Nack(delivery.entry, f"{type(error).__name__}: {_text_of(error)}")


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as inner:  # noqa: BLE001 - a handler's error may be of any class, with any bug in its __str__
        return f"no text, as its __str__ raised {type(inner).__name__}"
