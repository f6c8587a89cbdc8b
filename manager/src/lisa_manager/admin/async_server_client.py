"""The connection of `AsyncAdmin`, and what it asks of every node of the server."""

import asyncio
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.async_start import wait_for_server
from lisa_common.client.closing import AsyncClosing
from lisa_common.errors import AccessDenied, LisaError
from lisa_common.model.keys import events_channel
from lisa_common.protocol.call import PING, Flow, told_in_part
from lisa_common.protocol.managers import find_absence
from lisa_common.protocol.registry import Topics
from lisa_common.settings import Settings
from lisa_manager.admin.events import TopicEvents, read_events
from lisa_manager.admin.topics.policies import list_topics
from lisa_manager.script_loading import load_scripts
from lisa_manager.server_checks import Health, examine, judge_roles, read_version
from lisa_manager.server_facts import ServerFacts, read_facts, read_time
from lisa_manager.settings import ManagerSettings

__all__ = ["AsyncServerAdmin"]

T = TypeVar("T")


class AsyncServerAdmin(AsyncClosing):
    """Runs the calls of operators; `ServerAdmin` is its twin."""

    def __init__(self, url: str | None = None, *, settings: Settings | None = None, patience_s: float = 0.0) -> None:
        self._settings = ManagerSettings.load(redis_url=url) if settings is None else Settings.of(settings)
        self._prefix = self._settings.prefix
        self._patience_s = patience_s
        self._connection = AsyncConnection.of(self._settings, name="lisa-operator", url=url)

    async def doctor(self) -> Health:
        """Problems of the server, or of any node of a Cluster, for a queue that must not lose messages."""
        try:
            health = await examine(self._connection)
        except AccessDenied as error:
            health = Health([f"the server cannot be checked: {error}"])
        try:
            roles = await judge_roles(self._connection, self._prefix)
        except LisaError as error:
            roles = [f"what users may do cannot be checked: {error}"]
        findings, hints = list[str](), list[str]()
        # A user may know one of them only, and of a Cluster a node may be away.
        with suppress(LisaError):
            hints = list(filter(None, [await self.missing_manager()]))
            if await self._run(list_topics(self._prefix)):
                findings, hints = hints, []
        return replace(health, findings=[*health.findings, *findings], roles=roles, hints=hints)

    async def missing_manager(self) -> str:
        """Returns one line with the command to run if no manager runs; "" if one does, or if the user may not know."""
        return await self._run(find_absence(self._prefix))

    async def server_time(self) -> datetime:
        """The server's clock: the `as_of` of filters, so that a count and what follows it select the same."""
        return await self._run(read_time())

    async def server_facts(self) -> ServerFacts:
        """Version, memory, clients and clock of the server, or of each node, and the managers that lately lived."""
        return await read_facts(self._connection, self._prefix)

    async def server_version(self) -> tuple[int, ...]:
        """The version of Redis that the server, or the oldest node of a Cluster, is compatible with, as in (7, 0)."""
        return await read_version(self._connection)

    async def load_scripts(self) -> int:
        """Loads all scripts at each node, for users who may not (`acl --preloaded`). Returns the number of nodes."""
        return await load_scripts(self._connection)

    async def events(self) -> AsyncGenerator[dict[str, TopicEvents]]:
        """The events that managers publish, by topic: about once a second, if anything happened.

        Raises when the subscription breaks.
        """
        async with aclosing(self._connection.listen(events_channel(self._prefix))) as messages:
            async for message in messages:
                if message is not None and (events := read_events(message)):
                    yield events

    async def wait_for_server(
        self,
        stopping: asyncio.Event,
        *,
        patience_s: float = math.inf,
        explain: Callable[[str], object] = lambda _: None,
    ) -> bool:
        """Waits up to `patience_s` seconds until the server answers. Returns False if `stopping` was set before.

        `explain` is called with each error that it waits out. Raises the last one in the end, and at once an error that
        waiting does not correct, such as a wrong password.
        """
        return await wait_for_server(
            lambda: self._connection.call(PING), patience_s=patience_s, stopping=stopping, explain=explain
        )

    async def close(self) -> None:
        """Closes the connections; later calls raise Closed."""
        await self._connection.close()

    @property
    def _topics(self) -> Topics:
        # Made for each call: a cached topic may have been dropped since.
        return Topics(self._prefix)

    async def _run(self, flow: Flow[T]) -> T:
        return await self._connection.run(told_in_part(flow), patience_s=self._patience_s)
