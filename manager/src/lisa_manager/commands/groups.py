"""`lisa-manager group list | drop`."""

from dataclasses import asdict
from typing import Annotated

import typer

from lisa_common.cli import Column, Declined, JsonFlag, YesFlag, confirm, print_json, print_table, say
from lisa_common.errors import UnknownGroup
from lisa_common.validation import check_name
from lisa_manager.admin.group_drop import drop_group
from lisa_manager.admin.groups import GroupDebt, read_groups
from lisa_manager.admin.queries import existing
from lisa_manager.commands.shared import TopicName, admin_command, connected
from lisa_manager.commands.topics import ForceFlag
from lisa_manager.settings import ManagerSettings

__all__ = ["drop", "list_"]

_NUMBERS = ("ready", "delivered", "retry", "garbage", "consumers")
_COLUMNS = (Column("group"), *(Column(name, number=True) for name in _NUMBERS), Column(""))


@admin_command
def list_(topic: TopicName, *, json: JsonFlag = False, settings: ManagerSettings) -> None:
    """Lists the groups of a topic, and what each owes; also those that are gone and still named by messages."""
    with connected(settings) as connection:
        layout = connection.run(existing(settings.prefix, topic))
        found = connection.run(read_groups(layout))
    if json:
        print_json([asdict(group) for group in found])
        return
    rows = [
        [group.group, *(f"{getattr(group, name):,}" for name in _NUMBERS), "" if group.exists else "gone; drop it"]
        for group in found
    ]
    print_table(_COLUMNS, rows, nothing=f"{topic} has no groups")


@admin_command
def drop(
    topic: TopicName,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group.", show_default=False)],
    *,
    force: ForceFlag = False,
    yes: YesFlag = False,
    json: JsonFlag = False,
    settings: ManagerSettings,
) -> None:
    """Drops a group, and with --force what it owes: messages that no other group owes are gone then.

    Stop its consumers first: they make it again.
    """
    with connected(settings) as connection:
        layout = connection.run(existing(settings.prefix, topic))
        debt = next((found for found in connection.run(read_groups(layout)) if found.group == group), None)
        if debt is None:
            raise UnknownGroup(topic, check_name("group", group))
        if not force:
            _refuse(topic, debt)
        confirm(f"Drop group {group} of {topic} ({_owing(debt)})?", yes=yes)
        ended = connection.run(drop_group(layout, group, force=force))
        if ended is None:
            raise Declined(f"group {group} of {topic} owes messages since a moment ago; --force ends them")
    if json:
        print_json({"topic": topic, "group": group, "ended": ended})
    else:
        say(f"dropped group {group} of {topic}, and ended {ended:,} copies of messages")


def _refuse(topic: str, debt: GroupDebt) -> None:
    if debt.reading:
        raise Declined(
            f"{debt.reading} consumers of {topic} are reading in group {debt.group} and would make it again; "
            "stop them, or --force"
        )
    if debt.owes:
        raise Declined(f"group {debt.group} of {topic} still owes ({_owing(debt)}); --force ends these copies")


def _owing(debt: GroupDebt) -> str:
    names = ("ready", "delivered", "retry", "garbage") if debt.exists else ("retry", "garbage", "owed")
    counts = ((name, getattr(debt, name)) for name in names)
    return ", ".join(f"{count:,} {name}" for name, count in counts if count) or "owes nothing"
