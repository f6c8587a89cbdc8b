"""`lisa-manager run | doctor | load-scripts`."""

import typer

from lisa_common.cli.options import JsonFlag, with_settings
from lisa_common.cli.output import folded, print_json, say
from lisa_common.cli.program import EXIT_WRONG
from lisa_common.cli.waiting import WaitOption, wait_s
from lisa_common.escaping import shown
from lisa_common.protocol.scripts import SCRIPT_NAMES
from lisa_manager import ManagerSettings
from lisa_manager.commands.shared import admin_command, opened

__all__ = ["doctor", "load_scripts", "run"]


@with_settings(ManagerSettings)
def run(*, wait: WaitOption = None, settings: ManagerSettings) -> None:
    """Runs a manager until SIGTERM. Any number may run at once; there is no leader."""
    patience_s = wait_s(wait)
    # Imported here, as only this command needs a scheduler.
    from lisa_manager.daemon import serve  # noqa: PLC0415

    serve(settings, patience_s=patience_s)


@admin_command
def doctor(*, json: JsonFlag = False, settings: ManagerSettings) -> None:
    """Reports problems of the server, or of a node, that may lose messages; exits with 1 if it finds any."""
    with opened(settings) as admin:
        health = admin.doctor()
    if json:
        print_json(health.findings)
    else:
        well = f"nothing is wrong with {'its nodes' if health.remarks else 'the server'}"
        for line in (*health.remarks, *(health.findings or [well])):
            say(folded(shown(line)))
        for line in (*health.roles, *health.hints):
            say(shown(line))
    if health.findings:
        raise typer.Exit(EXIT_WRONG)


@admin_command
def load_scripts(*, json: JsonFlag = False, settings: ManagerSettings) -> None:
    """Loads all scripts at each node, for users who may not (acl --preloaded). A running manager does so as well."""
    with opened(settings) as admin:
        nodes = admin.load_scripts()
    print_json({"scripts": len(SCRIPT_NAMES), "nodes": nodes}) if json else say(f"loaded {len(SCRIPT_NAMES)} scripts")
