"""Waits for a server when a program starts."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from lisa_common.backoff import RECONNECT
from lisa_common.client.async_tasks import cancel_all, wait_at_most
from lisa_common.errors import OutcomeUnknown, Refused, Unreachable
from lisa_common.logs import event

__all__ = ["wait_for_server"]

logger = logging.getLogger(__name__)


async def wait_for_server(
    check: Callable[[], Awaitable[object]],
    *,
    patience_s: float,
    stopping: asyncio.Event,
    explain: Callable[[str], object] = lambda _: None,
) -> bool:
    """Repeats `check`, which makes calls, until it succeeds. Returns False if `stopping` was set before.

    `explain` is called with the text of each error that it waits out.

    Waits up to `patience_s` seconds while there is no server or it refuses; then raises the last error. Raises other
    errors at once, such as a wrong password: waiting does not correct a mistake.
    """
    deadline = time.monotonic() + patience_s
    reported, failures = "", 0
    while not stopping.is_set():
        stopped = asyncio.create_task(stopping.wait())
        checked = asyncio.ensure_future(check())
        try:
            await asyncio.wait((stopped, checked), return_when=asyncio.FIRST_COMPLETED)
            if not checked.done():
                return False
            checked.result()
        except (Unreachable, Refused, OutcomeUnknown) as error:
            failures += 1
            explain(str(error))
            delay_s = RECONNECT.compute(failures)
            if time.monotonic() + delay_s > deadline:
                raise
            if reported != (reported := str(error)):
                logger.warning("waiting for the server: %s", error, extra=event("server_awaited", error=reported))
            await wait_at_most(stopping, delay_s)
        else:
            return True
        finally:
            await cancel_all(stopped, checked)
    return False
