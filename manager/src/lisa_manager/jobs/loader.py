"""The loader: keeps the scripts at the server, for users who may run them and not load them."""

import logging

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import LisaError, Unreachable
from lisa_common.protocol.call import Call, command
from lisa_common.protocol.scripts import SCRIPT_NAMES, load

__all__ = ["Loader", "load_scripts"]

logger = logging.getLogger(__name__)


class Loader:
    """Looks whether the server has them all: after a restart, a flush, or a fail-over it has none."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def turn(self) -> None:
        """Loads what is missing, if anything is. Raises what the server says."""
        answers = await self._connection.survey([_exist()])
        for node, answer in answers.items():
            there = answer if isinstance(answer, LisaError) else answer[0]
            if isinstance(there, LisaError):
                # Of a Cluster, one node that is away; the next turn asks it again.
                if node == "" or not isinstance(there, Unreachable):
                    raise there
            elif not all(there):
                await load_scripts(self._connection)
                logger.info("loaded the scripts")
                return


def _exist() -> Call[list[int]]:
    return command("SCRIPT", "EXISTS", *(load(name).sha for name in SCRIPT_NAMES))


async def load_scripts(connection: AsyncConnection) -> int:
    """Loads all scripts, at each node. Result: how many nodes have them now. Raises the first error."""
    calls: list[Call[bytes]] = [command("SCRIPT", "LOAD", load(name).text) for name in SCRIPT_NAMES]
    answers = await connection.survey(calls)
    for answer in answers.values():
        for reply in [answer] if isinstance(answer, LisaError) else answer:
            if isinstance(reply, LisaError):
                raise reply
    return len(answers)
