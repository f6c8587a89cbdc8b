"""Functions that a worker calls when it starts, and when it has stopped."""

import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from lisa_common.errors import InvalidInput
from lisa_consumer.handling.middleware import takes

__all__ = ["Hook", "check_hook", "surrounded"]

Hook = Callable[[], object]


def check_hook(name: str, value: object) -> Hook:
    """A caller's function; raises InvalidInput."""
    if callable(value) and takes(value, 0):
        return value
    raise InvalidInput(name, value, "a function without arguments")


@asynccontextmanager
async def surrounded(on_start: Iterable[Hook], on_stop: Sequence[Hook]) -> AsyncIterator[None]:
    """Calls the first functions in order, and after the block the others, the last one first.

    Each of the others is called, even if one before it raises.
    """
    async with AsyncExitStack() as stack:
        for hook in on_stop:
            stack.push_async_callback(_call, hook)
        for hook in on_start:
            await _call(hook)
        yield


async def _call(hook: Hook) -> None:
    result = hook()
    if inspect.isawaitable(result):
        await result
