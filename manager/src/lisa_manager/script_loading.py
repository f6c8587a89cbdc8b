"""Loads the scripts at the server."""

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import LisaError
from lisa_common.protocol.call import Call, command, error_in
from lisa_common.protocol.scripts import SCRIPT_NAMES, load

__all__ = ["load_scripts"]


async def load_scripts(connection: AsyncConnection) -> int:
    """Loads all scripts at each node. Returns the number of nodes; raises the first error."""
    calls: list[Call[bytes]] = [command("SCRIPT", "LOAD", load(name).text) for name in SCRIPT_NAMES]
    answers = await connection.survey(calls)
    for answer in answers.values():
        if error := error_in([answer] if isinstance(answer, LisaError) else answer):
            raise error
    return len(answers)
