"""Checks when a program starts whether its user may do what the program needs."""

import logging
from collections.abc import Iterable
from typing import Any

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import OF_A_NODE, AccessDenied
from lisa_common.logs import event
from lisa_common.model.keys import ShardKeys
from lisa_common.model.needs import Optional
from lisa_common.model.rights import RoleName
from lisa_common.protocol.call import Call, command
from lisa_common.protocol.user_rights import OPTIONAL, Verdict, commands_of, find_refused

__all__ = ["check_user", "judge_user"]

logger = logging.getLogger(__name__)


async def check_user(connection: AsyncConnection, role: RoleName, keys: ShardKeys) -> None:
    """Says once what the server refuses to a program. Raises AccessDenied where the program cannot work.

    `keys` are those of a topic of the program. Where the server is away, nothing is checked.
    """
    try:
        verdict = await judge_user(connection, role, keys)
    except OF_A_NODE:
        return
    if verdict.needed:
        raise AccessDenied(f"Redis denies access: {verdict.refusal}")
    for lost in verdict.lost:
        connection.refusals.note(lost)
    if verdict.failing:
        logger.warning("%s", verdict.partly, extra=event("server_refuses", commands=verdict.failing))


async def judge_user(
    connection: AsyncConnection, role: RoleName, keys: ShardKeys, known: Iterable[Optional] = ()
) -> Verdict:
    """Returns what a program can do as the connection's user; `known` are refusals found before. Raises LisaError."""
    refused = await connection.run(find_refused(role, keys, in_cluster=connection.in_cluster))
    lost = {*known, *connection.refusals}
    refused |= {name for name in commands_of(role) if OPTIONAL.get(name) in lost}
    if role is RoleName.CONSUMER:
        # A proxy refuses by itself, and the server does not know of it. No group has such a name.
        read: Call[Any] = command("XREADGROUP", "GROUP", ":", ":", "COUNT", "1", "STREAMS", keys.of("ready"), ">")
        [result] = await connection.execute_each([read])
        refused |= {"xreadgroup"} if isinstance(result, AccessDenied) else set()
    return Verdict.of(role, refused)
