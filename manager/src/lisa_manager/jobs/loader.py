"""The loader: keeps the scripts at the server, for users who may run scripts but not load them."""

import logging

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import AccessDenied, LisaError, Unreachable
from lisa_common.logs import event
from lisa_common.model.needs import Optional
from lisa_common.protocol.call import Call, command
from lisa_common.protocol.scripts import SCRIPT_NAMES, load
from lisa_manager.script_loading import load_scripts

__all__ = ["Loader"]

logger = logging.getLogger(__name__)


class Loader:
    """Loads the scripts whenever one is missing: a server loses them by a restart, a flush or a fail-over."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def turn(self) -> None:
        """Loads all scripts if one is missing anywhere. Raises LisaError as the server answers."""
        exist: Call[list[int]] = command("SCRIPT", "EXISTS", *(load(name).sha for name in SCRIPT_NAMES))
        answers = await self._connection.survey([exist])
        for node, answer in answers.items():
            found = answer if isinstance(answer, LisaError) else answer[0]
            if isinstance(found, AccessDenied):
                self._connection.refusals.note(Optional.SCRIPTS, found)
            elif isinstance(found, LisaError):
                # A node of a Cluster may be away; the next turn asks it again.
                if node == "" or not isinstance(found, Unreachable):
                    raise found
            elif not all(found) and Optional.LOAD not in self._connection.refusals:
                try:
                    await load_scripts(self._connection)
                except AccessDenied as error:
                    self._connection.refusals.note(Optional.LOAD, error)
                else:
                    logger.info("loaded the scripts", extra=event("scripts_loaded"))
                return
