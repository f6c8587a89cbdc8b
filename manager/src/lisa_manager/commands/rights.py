"""`lisa-manager acl`."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from lisa_common.cli import JsonFlag, print_json, say
from lisa_common.errors import InvalidInput
from lisa_common.transport.address import read_url
from lisa_common.values import check_name
from lisa_manager.commands.shared import operator
from lisa_manager.operator.rights import ANY_TOPIC, RoleName, rules
from lisa_manager.settings import ManagerSettings

__all__ = ["acl"]


@operator
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
    preloaded: Annotated[
        bool,
        typer.Option("--preloaded", help="Only managers load scripts; other roles run no others."),
    ] = False,
    json: JsonFlag = False,
    settings: ManagerSettings,
) -> None:
    """Prints the ACL users that each role needs, with what its work is made of and nothing else: for redis-cli.

    They have no passwords yet, so that nobody can log in as them; users that are there keep theirs.
    """
    if user is not None and role is None:
        raise InvalidInput("user", user, "together with a ROLE a name is")
    name = user and check_name("user", user)
    address = read_url(settings.redis_url.get_secret_value(), settings.tls)
    select, cluster = bool(address.options.get("db")), bool(address.nodes)
    of_server = {"before_7_2": before_7_2, "select": select, "cluster": cluster, "preloaded": preloaded}
    users = {
        # Managers serve all topics there are.
        name or f"{settings.prefix}-{one}": rules(
            one, settings.prefix, topic if topic and one is not RoleName.MANAGER else [ANY_TOPIC], **of_server
        )
        for one in ([role] if role else RoleName)
    }
    _print_users(users, json=json)


def _print_users(users: Mapping[str, Sequence[str]], *, json: bool) -> None:
    if json:
        print_json([{"user": name, "rules": found} for name, found in users.items()])
        return
    for name, found in users.items():
        say(f"ACL SETUSER {name} {' '.join(found)}")
