"""Marks on pending deliveries that say whether they have begun."""

from collections.abc import Sequence
from enum import IntEnum

from lisa_common.model.keys import ShardKeys
from lisa_common.protocol.call import Call, command

__all__ = ["MARKING", "StartMark", "mark"]

MARKING = "~"
"""Ends the names of consumers that mark begun deliveries; callers' names must not end in it."""


class StartMark(IntEnum):
    """Whether a delivery has begun, stored in its delivery counter; see `lua/include/lease.lua`."""

    NOT = 1
    """Set by a read. If the lease runs out, a worker's delivery spends no attempt; a plain consumer's spends one."""
    YES = 2
    """It has begun, and so have the consumer's earlier entries, except those that must run alone."""
    ALONE = 4
    """It has begun, and must run alone."""
    BESIDE = 3
    """It should run alone, but others run beside it: they may be why its lease runs out."""


def mark(keys: ShardKeys, group: str, consumer: str, entries: Sequence[str], begun: StartMark) -> Call[bool]:
    """Marks deliveries of this consumer, and renews their leases to the visibility timeout. Returns False on an error.

    Skips deliveries that are no longer pending.
    """
    return command(
        *("XCLAIM", keys.of("ready"), group, consumer, 0),
        *entries,
        *("RETRYCOUNT", int(begun), "JUSTID"),
        decode=lambda reply: not isinstance(reply, Exception),
        takes_errors=True,
    )
