"""Handlers and middleware that end before their work is done, for want of an `await`: no such message is acked."""

import asyncio
import concurrent.futures
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from lisa_common.errors import InvalidInput
from lisa_consumer import Worker
from lisa_testing import Lisa


@pytest.fixture
def lisa_server(redis_url: str) -> str:
    """The test kit, on the server of this run."""
    return redis_url


def _decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


def _generator(*_: Any) -> Iterator[None]:
    yield


async def _async_generator(*_: Any) -> AsyncIterator[None]:
    yield


async def _work(*_: Any) -> None:
    """Some work."""


async def _forgets_to_await(given: Any) -> Any:
    return _work(given)


async def _leaves_a_task(given: Any) -> Any:
    return asyncio.create_task(_work(given))


async def _returns_a_generator(given: Any) -> Any:
    return _generator(given)


def _leaves_a_future(_: Any) -> concurrent.futures.Future[None]:
    return concurrent.futures.Future()


_UNDONE = {
    "decorated generator": _decorated(_generator),
    "decorated asynchronous generator": _decorated(_async_generator),
    "static method": staticmethod(_generator),
    "coroutine function without await": _forgets_to_await,
    "plain function of such a coroutine": _decorated(_forgets_to_await),
    "coroutine function with a task": _leaves_a_task,
    "coroutine function with a generator": _returns_a_generator,
    "context manager": contextmanager(_generator),
    "asynchronous context manager": asynccontextmanager(_async_generator),
    "future": _leaves_a_future,
}


async def _around(given: Any, call_next: Callable[[Any], Awaitable[object]]) -> None:
    await call_next(given)


def _plainly_around(given: Any, call_next: Callable[[Any], object]) -> None:
    call_next(given)


def _fails(lisa: Lisa, worker: Worker) -> None:
    lisa.attach(worker)
    lisa.send("orders", 1, id="a")
    drained = lisa.drain(worker)
    assert (len(drained.handled), len(drained.failed)) == (0, 1)
    found = lisa.find("orders", "a")
    assert found
    assert found.copies[0].failure
    expected = "TypeError: the work of a handler or middleware must be run or awaited before it ends; got a "
    assert found.copies[0].failure.error.startswith(expected)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("batch", [None, 2], ids=["single", "batch"])
@pytest.mark.parametrize("around", [None, _around], ids=["bare", "within middleware"])
@pytest.mark.parametrize("handler", _UNDONE.values(), ids=_UNDONE)
def test_undone_work_is_a_failure(
    lisa: Lisa, handler: Callable[[Any], Any], *, around: Callable[..., Any] | None, batch: int | None
) -> None:
    """The message comes again, with an error that says why."""
    worker = Worker("g", middleware=[around] if around else [])
    worker.on("orders", **({"batch": batch} if batch else {}))(handler)
    _fails(lisa, worker)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "handler", [_decorated(_generator), _decorated(_async_generator), _decorated(_work), _decorated(_leaves_a_task)]
)
def test_middleware_that_drops_the_result_hides_nothing(lisa: Lisa, handler: Callable[[Any], Any]) -> None:
    """What a plain handler within it returns is checked first."""
    worker = Worker("g", middleware=[_plainly_around])
    worker.on("orders")(handler)
    _fails(lisa, worker)


async def _forgets_to_await_the_next(given: Any, call_next: Callable[[Any], Awaitable[object]]) -> None:
    call_next(given)


async def _long(_: Any) -> None:
    await asyncio.Event().wait()


def test_middleware_that_leaves_the_handler_running_is_a_failure(lisa: Lisa) -> None:
    """An ack would say that the message is handled."""
    running = list[object]()

    async def leave_running(given: Any, call_next: Callable[[Any], Coroutine[Any, Any, object]]) -> None:
        running.append(asyncio.create_task(call_next(given)))
        await asyncio.sleep(0)

    worker = Worker("g", middleware=[leave_running])
    worker.on("orders")(_long)
    _fails(lisa, worker)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("inner", [[], [_around], [_forgets_to_await_the_next]], ids=["alone", "around", "both"])
@pytest.mark.parametrize("handler", [_work, lambda _: None], ids=["coroutine function", "plain function"])
def test_middleware_that_does_not_await_the_handler_is_a_failure(
    lisa: Lisa, handler: Callable[[Any], Any], inner: list[Any]
) -> None:
    """The handler was not called."""
    worker = Worker("g", middleware=[_forgets_to_await_the_next, *inner])
    worker.on("orders")(handler)
    _fails(lisa, worker)


@pytest.mark.filterwarnings("error")
def test_decorated_middleware_that_does_not_await_the_handler_is_a_failure(lisa: Lisa) -> None:
    """It looks like plain middleware around a plain handler."""
    worker = Worker("g", middleware=[_decorated(_forgets_to_await_the_next)])
    worker.on("orders")(_decorated(_work))
    _fails(lisa, worker)


@pytest.mark.parametrize("outer", [None, _plainly_around], ids=["alone", "within another"])
@pytest.mark.parametrize(
    "middleware",
    [
        *(_decorated(_generator), _decorated(_async_generator)),
        *(contextmanager(_generator), asynccontextmanager(_async_generator)),
    ],
    ids=["generator", "asynchronous generator", "context manager", "asynchronous context manager"],
)
def test_middleware_that_never_runs_is_a_failure(
    lisa: Lisa, middleware: Callable[..., Any], outer: Callable[..., Any] | None
) -> None:
    """A decorator hid from the worker that it is a generator, and the handler was not called."""
    worker = Worker("g", middleware=[*([outer] if outer else []), middleware])
    worker.on("orders")(print)
    _fails(lisa, worker)


@pytest.mark.parametrize("middleware", [_generator, _async_generator])
def test_a_generator_is_no_middleware(middleware: Callable[..., Any]) -> None:
    """A call of it would run neither itself nor the handler."""
    with pytest.raises(InvalidInput, match="middleware must be a function that takes a delivery and call_next; got "):
        Worker("g", middleware=[middleware])


async def _awaits_its_task(given: Any) -> Any:
    task = asyncio.create_task(_work(given))
    await task
    return task


async def _awaits_its_coroutine(given: Any) -> Any:
    work = _work(given)
    await work
    return work


def _with_a_future(_: Any) -> concurrent.futures.Future[None]:
    future = concurrent.futures.Future[None]()
    future.set_result(None)
    return future


@pytest.mark.parametrize(
    "handler",
    [_decorated(_work), _awaits_its_task, _awaits_its_coroutine, _with_a_future, lambda _: [1]],
    ids=["plain", "its own task", "its own coroutine", "a future", "a list"],
)
def test_results_are_free_otherwise(lisa: Lisa, handler: Callable[[Any], Any]) -> None:
    """A plain function may return a coroutine, which the worker awaits; what is done may be returned."""
    worker = Worker("g")
    worker.on("orders")(handler)
    lisa.attach(worker)
    lisa.send("orders", 1, id="a")
    assert len(lisa.drain(worker).handled) == 1


def _runs_it(given: Any, call_next: Callable[[Any], Coroutine[Any, Any, object]]) -> None:
    asyncio.run(call_next(given))


def _awaits_it_later(given: Any, call_next: Callable[[Any], Awaitable[object]]) -> Any:
    made = call_next(given)

    async def finish() -> object:
        return await made

    return finish()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("outer", [[], [_around]], ids=["alone", "within async"])
@pytest.mark.parametrize(
    "inner", [[_runs_it], [_awaits_it_later], [_awaits_it_later] * 2], ids=["runs", "awaits", "both await"]
)
def test_plain_middleware_may_see_to_a_coroutine(
    lisa: Lisa, inner: list[Callable[..., Any]], outer: list[Callable[..., Any]]
) -> None:
    """Of a handler that a decorator made plain: it may run it, or return something else that awaits it."""
    worker = Worker("g", middleware=[*outer, *inner])
    worker.on("orders")(_decorated(_work))
    lisa.attach(worker)
    lisa.send("orders", 1, id="a")
    assert len(lisa.drain(worker).handled) == 1


@pytest.mark.parametrize("kind", [asyncio.Future, concurrent.futures.Future], ids=["asyncio", "of a thread"])
def test_the_error_of_a_future_counts(lisa: Lisa, kind: type[Any]) -> None:
    """A future that is done and was not asked for its result."""
    worker = Worker("g")

    @worker.on("orders")
    async def handle(_: object) -> Any:
        future = kind()
        future.set_exception(ConnectionError("no bank"))
        return future

    lisa.attach(worker)
    lisa.send("orders", 1, id="a")
    lisa.drain(worker)
    found = lisa.find("orders", "a")
    assert found
    assert found.copies[0].failure
    assert found.copies[0].failure.error == "ConnectionError: no bank"
