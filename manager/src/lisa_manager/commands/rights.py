"""`lisa-manager acl`."""

from typing import Annotated

import typer

from lisa_common.cli.options import JsonFlag, argument, option
from lisa_common.cli.output import print_json, say
from lisa_common.client.address import read_url
from lisa_common.errors import InvalidInput, LisaError
from lisa_common.validation import check_name
from lisa_manager import ManagerSettings
from lisa_manager.admin.rights import ANY_TOPIC, RoleName, rules
from lisa_manager.commands.shared import admin_command, opened

__all__ = ["acl"]

_SINCE = (7, 2)
"""The first version of Redis that knows all commands of the rules."""


Age = Annotated[
    bool | None,
    typer.Option(
        "--before-7-2/--since-7-2",
        help="For Redis before 7.2, or since; by default, asks the server.",
        show_default=False,
    ),
]


@admin_command
def acl(
    role: Annotated[RoleName | None, argument("Only this role.", "ROLE")] = None,
    *,
    topic: Annotated[
        list[str] | None,
        option("Only these topics, except for managers; shop.* covers all that begin with shop.", "TOPIC"),
    ] = None,
    user: Annotated[str | None, option("The user's name; default: the prefix and the role.", "NAME")] = None,
    before_7_2: Age = None,
    preloaded: Annotated[
        bool, typer.Option("--preloaded", help="Only managers load scripts; all other roles use these.")
    ] = False,
    json: JsonFlag = False,
    settings: ManagerSettings,
) -> None:
    """Prints ACL users for redis-cli: one for each role, with only the commands and keys that the role needs.

    New users have no passwords, so nobody can log in as them yet. Existing users keep their passwords.
    """
    if user is not None and role is None:
        raise InvalidInput("user", user, "used with a ROLE")
    is_old = _is_before_7_2(settings) if before_7_2 is None else before_7_2
    address = read_url(settings.redis_url.get_secret_value(), settings.tls)
    shared = {"select": bool(address.options.get("db")), "cluster": bool(address.nodes)}
    shared |= {"before_7_2": is_old, "preloaded": preloaded}
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


def _is_before_7_2(settings: ManagerSettings) -> bool:
    """Asks the server. If it does not answer, warns and assumes a current version."""
    try:
        with opened(settings) as admin:
            return admin.server_version() < _SINCE
    except LisaError as error:
        say(f"warning: printed for Redis 7.2 and later, as the server did not say its version: {error}", error=True)
        return False
