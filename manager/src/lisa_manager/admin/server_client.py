"""The connection of `Admin`, and what it asks of every node of the server."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, TypeVar

from lisa_common.client.closing import Closing
from lisa_common.client.connection import Connection
from lisa_common.client.per_loop import is_loop_running
from lisa_common.protocol.call import Flow, told_in_part
from lisa_common.protocol.managers import find_absence
from lisa_common.protocol.registry import Topics
from lisa_common.settings import Settings
from lisa_manager.admin.async_server_client import AsyncServerAdmin
from lisa_manager.server_checks import Health
from lisa_manager.server_facts import ServerFacts, read_time
from lisa_manager.settings import ManagerSettings

__all__ = ["ServerAdmin"]

T = TypeVar("T")


class ServerAdmin(Closing):
    """Runs the calls of operators; `AsyncServerAdmin` is its twin."""

    def __init__(self, url: str | None = None, *, settings: Settings | None = None, patience_s: float = 0.0) -> None:
        self._settings = ManagerSettings.load(redis_url=url) if settings is None else Settings.of(settings)
        self._url = url
        self._prefix = self._settings.prefix
        self._patience_s = patience_s
        self._connection = Connection.of(self._settings, name="lisa-operator", url=url)

    def doctor(self) -> Health:
        """Problems of the server, or of any node of a Cluster, for a queue that must not lose messages."""
        return self._at_all_nodes(AsyncServerAdmin.doctor)

    def missing_manager(self) -> str:
        """Returns one line with the command to run if no manager runs; "" if one does, or if the user may not know."""
        return self._run(find_absence(self._prefix))

    def server_time(self) -> datetime:
        """The server's clock: the `as_of` of filters, so that a count and what follows it select the same."""
        return self._run(read_time())

    def server_facts(self) -> ServerFacts:
        """Version, memory, clients and clock of the server, or of each node, and the managers that lately lived."""
        return self._at_all_nodes(AsyncServerAdmin.server_facts)

    def server_version(self) -> tuple[int, ...]:
        """The version of Redis that the server, or the oldest node of a Cluster, is compatible with, as in (7, 0)."""
        return self._at_all_nodes(AsyncServerAdmin.server_version)

    def load_scripts(self) -> int:
        """Loads all scripts at each node, for users who may not (`acl --preloaded`). Returns the number of nodes."""
        return self._at_all_nodes(AsyncServerAdmin.load_scripts)

    def close(self) -> None:
        """Closes the connections; later calls raise Closed."""
        self._connection.close()

    @property
    def _topics(self) -> Topics:
        # Made for each call: a cached topic may have been dropped since.
        return Topics(self._prefix)

    def _run(self, flow: Flow[T]) -> T:
        return self._connection.run(told_in_part(flow), patience_s=self._patience_s)

    def _at_all_nodes(self, call: Callable[[AsyncServerAdmin], Awaitable[T]]) -> T:
        async def work() -> T:
            # Only an asyncio connection can ask all nodes.
            async with AsyncServerAdmin(self._url, settings=self._settings) as admin:
                return await call(admin)

        return _run_async(work())


def _run_async(work: Coroutine[Any, Any, T]) -> T:
    if not is_loop_running():
        return asyncio.run(work)
    # A notebook, for example, runs a loop in its thread.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
