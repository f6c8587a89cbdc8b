"""`lisa-manager group list | drop`."""

from dataclasses import asdict
from typing import Annotated

from lisa_common.cli.columns import Column
from lisa_common.cli.options import JsonFlag, YesFlag, argument
from lisa_common.cli.output import print_json, print_table, say
from lisa_common.cli.program import Declined, confirm
from lisa_common.errors import UnknownGroup
from lisa_common.validation import check_name
from lisa_manager import GroupDebt, ManagerSettings
from lisa_manager.commands.shared import TopicName, admin_command, complete_group, opened
from lisa_manager.commands.topics import ForceFlag

__all__ = ["drop", "list_"]

_NUMBERS = ("ready", "delivered", "retry", "garbage", "consumers")
_COLUMNS = (Column("group"), *(Column(name, number=True) for name in _NUMBERS), Column(""))


@admin_command
def list_(topic: TopicName, *, json: JsonFlag = False, settings: ManagerSettings) -> None:
    """Lists the groups of a topic, and what each owes; also dropped groups that messages still name."""
    with opened(settings) as admin:
        debts = admin.groups(topic)
    if json:
        print_json([asdict(debt) for debt in debts])
        return
    rows = [
        [debt.group, *(f"{getattr(debt, name):,}" for name in _NUMBERS), "" if debt.exists else "gone; drop it"]
        for debt in debts
    ]
    print_table(_COLUMNS, rows, nothing=f"{topic} has no groups")


@admin_command
def drop(
    topic: TopicName,
    group: Annotated[str, argument("The group.", "GROUP", complete_group)],
    *,
    force: ForceFlag = False,
    yes: YesFlag = False,
    json: JsonFlag = False,
    settings: ManagerSettings,
) -> None:
    """Drops a group. With --force also ends the copies that it owes; a message that no other group owes is deleted.

    Stop its consumers first: they make the group again.
    """
    with opened(settings) as admin:
        debt = next((debt for debt in admin.groups(topic) if debt.group == group), None)
        if debt is None:
            raise UnknownGroup(topic, check_name("group", group))
        if debt.reading and not force:
            raise Declined(
                f"{debt.reading} consumers of {topic} are reading in group {group} and would make it again; "
                "stop them, or --force"
            )
        if debt.owes and not force:
            raise Declined(f"group {group} of {topic} still owes ({_owing(debt)}); --force ends these copies")
        confirm(f"Drop group {group} of {topic} ({_owing(debt)})?", yes=yes)
        dropped = admin.drop_group(topic, group, force=force)
        if not dropped.done:
            raise Declined(f"group {group} of {topic} now owes messages, after the check; --force ends them")
    if json:
        print_json({"topic": topic, "group": group, "ended": dropped.ended})
    else:
        say(f"dropped group {group} of {topic}, and ended {dropped.ended:,} copies of messages")


def _owing(debt: GroupDebt) -> str:
    names = ("ready", "delivered", "retry", "garbage") if debt.exists else ("retry", "garbage", "owed")
    counts = ((name, getattr(debt, name)) for name in names)
    return ", ".join(f"{count:,} {name}" for name, count in counts if count) or "owes nothing"
