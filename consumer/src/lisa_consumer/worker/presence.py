"""Shows a worker's group that it is alive, and when it ends."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.async_tasks import beside
from lisa_common.errors import LisaError
from lisa_common.logs import event
from lisa_common.protocol import consuming, groups
from lisa_common.protocol.call import error_in
from lisa_consumer.delivery.core import Core

__all__ = ["presence_shown"]

logger = logging.getLogger(__name__)

_BEAT_S = 5.0
"""Well below the shortest idle time after which managers remove a consumer, which is 10 s."""

_END_S = 1.0
"""How long an ending worker may take to deregister. Managers remove workers that did not."""


@asynccontextmanager
async def presence_shown(connection: AsyncConnection, core: Core) -> AsyncIterator[None]:
    """Shows that a worker is alive while the block runs. Then removes it from its group, unless it raised.

    A worker registers when it joins the group, whose consumers are the live ones. From then on this shows that it is
    alive, even if it reads nothing because no message is ready or all of its slots are taken.
    """
    async with beside(_keep_showing(connection, core)):
        yield
    await _end(connection, core)


async def _keep_showing(connection: AsyncConnection, core: Core) -> None:
    while True:
        await asyncio.sleep(_BEAT_S)
        if not core.joined:
            continue
        try:
            failure = await connection.run(groups.show_alive([*core.joined], core.group, core.name))
        except LisaError as error:
            failure = error
        # The reader reports what is wrong with the server, and joins dropped groups again.
        if failure:
            _log("cannot show that the worker is alive: %s", core, failure)


async def _end(connection: AsyncConnection, core: Core) -> None:
    """Removes the worker from its group, except from shards where it still holds something."""
    calls = [consuming.deregister(keys, core.group, core.name) for keys in core.joined]
    try:
        async with asyncio.timeout(_END_S):
            failure = error_in(await connection.execute_each(calls)) if calls else None
    except TimeoutError:
        failure = LisaError(f"no reply within {_END_S:g} s")
    except LisaError as error:
        failure = error
    if failure:
        _log("cannot deregister: %s", core, failure)


def _log(text: str, core: Core, error: LisaError) -> None:
    logger.debug(text, error, extra=event("presence_failed", group=core.group, error=str(error)))
