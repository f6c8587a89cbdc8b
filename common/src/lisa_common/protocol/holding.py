"""Calls about all deliveries that one consumer holds, where only their entries matter."""

from collections.abc import Sequence
from typing import Any

from lisa_common.model.keys import ShardKeys
from lisa_common.protocol.call import Call, command
from lisa_common.protocol.replies import rows
from lisa_common.protocol.scripts import Arg

__all__ = ["held_entries", "renew"]


def held_entries(
    keys: ShardKeys,
    group: str,
    consumer: str,
    *,
    after: str = "0-0",
    last: str = "+",
    limit: int,
    idle_ms: int = 0,
) -> Call[list[str]]:
    """Entry ids that a consumer holds, after one and up to another, at most `limit`, oldest first. Raises NoGroup.

    With `idle_ms` only those that were neither read nor renewed for so long.
    """
    idle: tuple[Arg, ...] = ("IDLE", idle_ms) if idle_ms else ()

    def decode(reply: Any) -> list[str]:
        return [row[0].decode() for row in rows(reply)]

    return command("XPENDING", keys.of("ready"), group, *idle, f"({after}", last, limit, consumer, decode=decode)


def renew(keys: ShardKeys, group: str, consumer: str, entries: Sequence[str]) -> Call[Any]:
    """Renews the leases of a consumer's deliveries, and leaves their lengths and marks as they are.

    Skips deliveries that are no longer pending. Pass what the consumer held a moment ago: a delivery that another
    consumer has got meanwhile would be taken from it. Raises NoGroup.
    """
    return command("XCLAIM", keys.of("ready"), group, consumer, 0, *entries, "JUSTID")
