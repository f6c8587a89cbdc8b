"""Calls about all deliveries that one consumer holds, where only their entries matter."""

from collections.abc import Sequence
from typing import Any

from lisa_common.model.keys import ShardKeys
from lisa_common.protocol.call import Call, command
from lisa_common.protocol.replies import number, rows

__all__ = ["count_held", "held_ages", "held_entries", "renew"]


def held_entries(
    keys: ShardKeys, group: str, consumer: str, *, after: str = "0-0", last: str = "+", limit: int
) -> Call[list[str]]:
    """Entry ids that a consumer holds, after one and up to another, at most `limit`, oldest first. Raises NoGroup."""

    def decode(reply: Any) -> list[str]:
        return [row[0].decode() for row in rows(reply)]

    return command("XPENDING", keys.of("ready"), group, f"({after}", last, limit, consumer, decode=decode)


def held_ages(keys: ShardKeys, group: str, consumer: str, *, after: str, limit: int) -> Call[list[tuple[str, int]]]:
    """As `held_entries`, with the ms since each was read or renewed."""

    def decode(reply: Any) -> list[tuple[str, int]]:
        return [(entry.decode(), number(age)) for entry, _, age, _ in rows(reply)]

    # Not XPENDING's own IDLE: that would look at all that the consumer holds, in one call.
    return command("XPENDING", keys.of("ready"), group, f"({after}", "+", limit, consumer, decode=decode)


def count_held(keys: ShardKeys, group: str, consumer: str) -> Call[int]:
    """How many deliveries a consumer holds. Raises NoGroup."""

    def decode(reply: Any) -> int:
        *_, consumers = rows(reply, 4)
        return next((int(count) for name, count in rows(consumers or []) if name == consumer.encode()), 0)

    return command("XPENDING", keys.of("ready"), group, decode=decode)


def renew(keys: ShardKeys, group: str, consumer: str, entries: Sequence[str]) -> Call[Any]:
    """Renews the leases of a consumer's deliveries, and leaves their lengths and marks as they are.

    Skips deliveries that are no longer pending. Pass what the consumer held a moment ago: a delivery that another
    consumer has got meanwhile would be taken from it. Raises NoGroup.
    """
    return command("XCLAIM", keys.of("ready"), group, consumer, 0, *entries, "JUSTID")
