"""Handlers that users write, and how they are called."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Any

from lisa_common.bodies import BodyType, InvalidBody
from lisa_common.errors import InvalidInput, LisaError
from lisa_common.escaping import safe_text
from lisa_common.model.delivery import Delivery
from lisa_common.protocol.consuming import Nack, Postponed
from lisa_common.validation import MAX_DELAY_S, Duration, check_int, duration_ms
from lisa_consumer.delivery.error_details import last_frames, leaves, with_causes
from lisa_consumer.handling.batches import BatchSize
from lisa_consumer.handling.middleware import (
    Middleware,
    check_has_run,
    is_async,
    is_generator,
    run_in_thread,
    wrap,
    wrap_async,
)

__all__ = [
    "BatchHandler",
    "Handler",
    "RateLimited",
    "Reject",
    "Retry",
    "Route",
    "Snooze",
    "deciding_error",
    "is_wish",
    "outcome_of",
]

Handler = Callable[[Delivery], object]

BatchHandler = Callable[[list[Delivery]], object]


def _reason(name: str, given: object, default: str) -> str:
    """The text of a reason; raises InvalidInput for what may be meant as a delay."""
    if given is not None and not isinstance(given, str | BaseException):
        raise InvalidInput("reason", given, f"text; give a delay by its name, as in {name}(delay=60)")
    return str(given or "") or default


class Retry(LisaError):
    """Raised by a handler to have its message delivered again after `delay`, in seconds or as a timedelta.

    Without a delay the policy's backoff decides. The attempt counts, as with any failure.
    """

    def __init__(self, reason: str = "", *, delay: Duration | None = None) -> None:
        self.delay_ms = None if delay is None else duration_ms("delay", delay)
        super().__init__(_reason("Retry", reason, "the handler asked for a retry"))


class Snooze(LisaError):
    """Raised by a handler to have its message delivered again after `delay`, without spending an attempt.

    `delay` is seconds or a timedelta. The message may still expire meanwhile. Raises InvalidInput.
    """

    def __init__(self, delay: Duration, reason: str = "") -> None:
        self.delay_ms = duration_ms("delay", delay)
        super().__init__(_reason("Snooze", reason, "the handler snoozed the message"))


class Reject(LisaError):
    """Raised by a handler that can never handle its message: it becomes garbage, whatever attempts are left."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(_reason("Retry", reason, "the handler rejected the message"))


class RateLimited(LisaError):
    """Raised by a handler that may go on only after `delay`, in seconds or as a timedelta: at an HTTP 429, for example.

    Its message is given back, and no attempt is spent. For so long nothing of the topic becomes ready, in any group;
    messages that are ready already are still delivered. With `here`, only this worker stops reading the topic,
    and gives back what it has not begun; other workers and groups go on. Raises InvalidInput for a delay out of range.
    """

    def __init__(self, delay: Duration, reason: str = "", *, here: bool = False) -> None:
        self.here = here
        self.delay_ms = duration_ms("delay", delay, low_ms=1)
        super().__init__(_reason("RateLimited", reason, f"the handler may go on after {self.delay_ms / 1000:g} s"))


@dataclass(frozen=True, slots=True)
class Route:
    """A topic, its handler, and how many calls of it may run at once.

    Raises InvalidInput for a handler whose call would handle nothing.
    """

    topic: str
    handler: Callable[[Any], object]
    concurrency: int
    timeout_s: float | None = None
    body: BodyType[Any] | None = None
    batch: BatchSize | None = None
    middleware: tuple[Middleware, ...] = ()
    _is_async: bool = field(init=False)
    coroutine: Callable[[Delivery], Awaitable[object]] | None = field(init=False)
    """The handler, if a call takes no more than to await it."""

    def __post_init__(self) -> None:
        if not _is_fit(self.handler):
            raise InvalidInput("handler", self.handler, "a coroutine function or a plain function")
        if not _takes_one(self.handler):
            raise InvalidInput("handler", self.handler, "a function that can be called with one argument, the delivery")
        object.__setattr__(self, "_is_async", is_async(self.handler))
        is_plain = self._is_async and not (self.middleware or self.timeout_s or self.body)
        object.__setattr__(self, "coroutine", self.handler if is_plain else None)

    def prepared(self, *, most: int, middleware: Sequence[Middleware]) -> "Route":
        """The route as a worker serves it: with its middleware, and at most so many calls at once.

        Raises InvalidInput for middleware that cannot surround the handler.
        """
        handler = self.handler
        if not self._is_async:
            handler = wrap(handler, middleware)
        elif plain := next((each for each in middleware if not is_async(each)), None):
            expected = f"a coroutine function, like the handler of topic {self.topic!r}"
            raise InvalidInput("middleware", plain, expected)
        around = tuple(filter(is_async, middleware))
        return replace(self, handler=handler, concurrency=min(self.concurrency, most), middleware=around)

    @property
    def slots(self) -> int:
        """How many messages may be handled at once."""
        return self.concurrency * (self.batch.most if self.batch else 1)

    def decoded(self, delivery: Delivery) -> Delivery:
        """The delivery as the handler takes it. Raises Reject for a body that does not fit."""
        if self.body is None:
            return delivery
        try:
            return delivery._replace(value=self.body.decode(delivery.body))
        except InvalidBody as error:
            raise Reject(str(error)) from None

    async def call(self, given: Delivery | list[Delivery], threads: Executor) -> None:
        """Runs the handler until it ends: a coroutine in the event loop, a plain function in a thread.

        `given` is decoded. Raises the handler's errors, and TimeoutError when a coroutine takes longer than the route
        allows. A cancelled call still waits for its thread, which cannot be stopped.
        """
        if self.middleware:
            result: object = wrap_async(lambda passed: self._handle(passed, threads), self.middleware)(given)
        elif self._is_async:
            result = self.handler(given)
        else:
            result = await run_in_thread(self.handler, given, threads)
        if inspect.isawaitable(result):
            result = await (result if self.timeout_s is None else _within(self.timeout_s, result))
        check_has_run(result, awaited=True)

    async def _handle(self, given: Delivery | list[Delivery], threads: Executor) -> object:
        """The innermost call, within middleware. Result: that of the handler."""
        result = self.handler(given) if self._is_async else await run_in_thread(self.handler, given, threads)
        if inspect.isawaitable(result):
            result = await result
        return check_has_run(result, awaited=True)


async def _within(timeout_s: float, result: Awaitable[object]) -> object:
    try:
        async with asyncio.timeout(timeout_s) as limit:
            return await result
    except TimeoutError:
        if limit.expired():
            raise TimeoutError(f"the handler took longer than {timeout_s:g} s") from None
        raise


def _is_fit(handler: object) -> bool:
    """Whether a call handles a message: a generator would not run, and a class would only make an object."""
    if not callable(handler) or inspect.isclass(handler):
        return False
    return not is_generator(handler)


def _takes_one(handler: Callable[..., object]) -> bool:
    """Whether a handler can be called with a delivery alone, as far as its signature is known."""
    try:
        # A decorator's function counts, whatever it wraps.
        signature = inspect.signature(handler, follow_wrapped=False)
    except (TypeError, ValueError):
        # Some functions that are written in C do not say.
        return True
    try:
        signature.bind(None)
    except TypeError:
        return False
    return True


_WISHES = (Reject, RateLimited, Snooze, Retry)
"""What handlers raise to say what they want, the strongest first."""


def is_wish(error: BaseException) -> bool:
    """Whether an exception was raised to say what to do with the message."""
    return isinstance(error, _WISHES)


def deciding_error(error: BaseException) -> BaseException:
    """Of a group of exceptions, as a task group raises it, the one that decides; the group itself if it is a failure.

    The strongest wish decides, and of several of its kind the one with the longest delay. Beside an error that is no
    wish, only `Reject` and `Retry` do: the other wishes spend no attempt, and the error would come again for ever.
    """
    members = leaves(error)
    if len(members) == 1:
        return members[0]
    kinds = _WISHES if all(map(is_wish, members)) else (Reject, Retry)
    for kind in kinds:
        if wishes := [each for each in members if isinstance(each, kind)]:
            return max(wishes, key=_delay_ms)
    return error


def _delay_ms(wish: Any) -> int:
    try:
        return int(wish.delay_ms)
    except BaseException:  # noqa: BLE001 - it may have none, and a user's subclass anything
        return 0


def outcome_of(delivery: Delivery, error: BaseException) -> Nack | Postponed:
    """What an exception of a handler asks for. One that cannot say is a failure as any other."""
    try:
        return _wanted_outcome(delivery, error)
    except BaseException:  # noqa: BLE001 - a user's subclass may lack attributes, or raise anything where it has them
        return _failed(delivery, error)


def _wanted_outcome(delivery: Delivery, error: BaseException) -> Nack | Postponed:
    wish = deciding_error(error)
    if isinstance(wish, RateLimited):
        return Postponed(_checked_ms(wish.delay_ms), here=bool(wish.here))
    # Beside other errors the group says more than the wish.
    text = with_causes(wish, safe_text(wish)) if all(map(is_wish, leaves(error))) else with_causes(error)
    if isinstance(wish, Reject):
        return Nack(delivery.entry, text, rejected=True)
    if isinstance(wish, Snooze):
        return Nack(delivery.entry, text, _checked_ms(wish.delay_ms), snoozed=True)
    if isinstance(wish, Retry):
        delay_ms = None if wish.delay_ms is None else _checked_ms(wish.delay_ms)
        return Nack(delivery.entry, text, delay_ms)
    return _failed(delivery, error)


def _failed(delivery: Delivery, error: BaseException) -> Nack:
    return Nack(delivery.entry, with_causes(error), trace=last_frames(error))


def _checked_ms(delay_ms: int) -> int:
    """The delay of an exception, whose class may have set anything; raises InvalidInput."""
    return check_int("delay_ms", delay_ms, 0, MAX_DELAY_S * 1000)
