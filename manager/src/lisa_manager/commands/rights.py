"""`lisa-manager acl`."""

from typing import Annotated

import typer

from lisa_common.cli import JsonFlag, print_json, say
from lisa_common.client.address import read_url
from lisa_common.errors import InvalidInput
from lisa_common.validation import check_name
from lisa_manager.admin.rights import ANY_TOPIC, RoleName, rules
from lisa_manager.commands.shared import admin_command
from lisa_manager.settings import ManagerSettings

__all__ = ["acl"]


@admin_command
def acl(
    role: Annotated[
        RoleName | None, typer.Argument(metavar="ROLE", help="Only this one, of producer, consumer, manager, reader.")
    ] = None,
    *,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", metavar="TOPIC", help="Only these topics, but for managers; shop.* is all that begin so."
        ),
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", metavar="NAME", help="The user's name; else the prefix and the role.")
    ] = None,
    before_7_2: Annotated[bool, typer.Option("--before-7-2", help="For a Redis that is older than 7.2.")] = False,
    preloaded: Annotated[bool, typer.Option("--preloaded", help="Only managers load scripts, for all others.")] = False,
    json: JsonFlag = False,
    settings: ManagerSettings,
) -> None:
    """Prints the ACL users that each role needs, with what its work is made of and nothing else: for redis-cli.

    They have no passwords yet, so that nobody can log in as them; users that are there keep theirs.
    """
    if user is not None and role is None:
        raise InvalidInput("user", user, "together with a ROLE a name is")
    shared = _options(settings) | {"before_7_2": before_7_2, "preloaded": preloaded}
    users = {}
    for one in [role] if role else RoleName:
        # Managers serve all topics there are.
        topics = topic if topic and one is not RoleName.MANAGER else [ANY_TOPIC]
        name = f"{settings.prefix}-{one}" if user is None else check_name("user", user)
        users[name] = rules(one, settings.prefix, topics, **shared)
    if json:
        print_json([{"user": name, "rules": found} for name, found in users.items()])
        return
    for name, found in users.items():
        say(f"ACL SETUSER {name} {' '.join(found)}")


def _options(settings: ManagerSettings) -> dict[str, bool]:
    """What the URL asks for."""
    address = read_url(settings.redis_url.get_secret_value(), settings.tls)
    return {"select": bool(address.options.get("db")), "cluster": bool(address.nodes)}
