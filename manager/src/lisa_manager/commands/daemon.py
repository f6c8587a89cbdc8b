"""`lisa-manager run` and `lisa-manager doctor`."""

import asyncio

import typer

from lisa_common.aio import AsyncConnection
from lisa_common.cli import EXIT_WRONG, JsonFlag, print_json, say, shown, with_settings
from lisa_common.logs import configure_logging
from lisa_manager.commands.shared import operator
from lisa_manager.settings import ManagerSettings

__all__ = ["doctor", "run"]


@with_settings(ManagerSettings)
def run(*, settings: ManagerSettings) -> None:
    """Runs a manager until SIGTERM. Any number may run at once; there is no leader."""
    # Imported here, as no other command needs a scheduler.
    from lisa_manager.daemon import serve  # noqa: PLC0415

    configure_logging(settings.log_level)
    serve(settings)


@operator
def doctor(*, json: JsonFlag = False, settings: ManagerSettings) -> None:
    """Says what is wrong with the server for a queue that must not lose messages; exits with 1 if anything is."""
    found = asyncio.run(_findings(settings))
    if json:
        print_json(found)
    else:
        for finding in found or ["nothing is wrong with the server"]:
            say(shown(finding))
    if found:
        raise typer.Exit(EXIT_WRONG)


async def _findings(settings: ManagerSettings) -> list[str]:
    from lisa_manager.server_checks import findings  # noqa: PLC0415 - as above

    async with AsyncConnection.of(settings, name="lisa-operator") as connection:
        return await findings(connection)
