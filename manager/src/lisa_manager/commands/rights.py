"""`lisa-manager acl`."""

from typing import Annotated

import typer

from lisa_common.cli import JsonFlag, print_json, say
from lisa_common.client.address import read_url
from lisa_common.errors import InvalidInput
from lisa_common.validation import check_name
from lisa_manager import ManagerSettings
from lisa_manager.admin.rights import ANY_TOPIC, RoleName, rules
from lisa_manager.commands.shared import admin_command

__all__ = ["acl"]


@admin_command
def acl(
    role: Annotated[
        RoleName | None,
        typer.Argument(metavar="ROLE", help="Only this role: producer, consumer, manager, reader or gateway."),
    ] = None,
    *,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="TOPIC",
            help="Only these topics, except for managers; shop.* covers all that begin with shop.",
        ),
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", metavar="NAME", help="The user's name; default: the prefix and the role.")
    ] = None,
    before_7_2: Annotated[bool, typer.Option("--before-7-2", help="For a Redis older than 7.2.")] = False,
    preloaded: Annotated[bool, typer.Option("--preloaded", help="Only managers load scripts, for all others.")] = False,
    json: JsonFlag = False,
    settings: ManagerSettings,
) -> None:
    """Prints ACL users for redis-cli: one for each role, with only the commands and keys that the role needs.

    New users have no passwords, so nobody can log in as them yet. Existing users keep their passwords.
    """
    if user is not None and role is None:
        raise InvalidInput("user", user, "used with a ROLE")
    shared = _options(settings) | {"before_7_2": before_7_2, "preloaded": preloaded}
    users = {}
    for each in [role] if role else RoleName:
        # Managers serve all topics.
        topics = topic if topic and each is not RoleName.MANAGER else [ANY_TOPIC]
        name = f"{settings.prefix}-{each}" if user is None else check_name("user", user)
        users[name] = rules(each, settings.prefix, topics, **shared)
    if json:
        print_json([{"user": name, "rules": user_rules} for name, user_rules in users.items()])
        return
    for name, user_rules in users.items():
        say(f"ACL SETUSER {name} {' '.join(user_rules)}")


def _options(settings: ManagerSettings) -> dict[str, bool]:
    """The rules that the URL requires."""
    address = read_url(settings.redis_url.get_secret_value(), settings.tls)
    return {"select": bool(address.options.get("db")), "cluster": bool(address.nodes)}
