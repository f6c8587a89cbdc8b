"""Marks on deliveries that are pending: whether they have begun."""

from collections.abc import Sequence
from enum import IntEnum

from lisa_common.model.keys import ShardKeys
from lisa_common.protocol.call import Call, command

__all__ = ["MARKING", "Begun", "mark"]

MARKING = "~"
"""What the name of a consumer ends in that marks what has begun; no name that a caller gives may."""


class Begun(IntEnum):
    """Whether a delivery has begun, as the server's counter of its deliveries says; see `lua/include/lease.lua`."""

    NOT = 1
    """What a read leaves. If the lease of a worker's runs out, no attempt is spent; of a plain consumer one is."""
    YES = 2
    """It has, and with it all that the consumer holds of entries before it, but those that are to run alone."""
    ALONE = 4
    """It has, and is to run alone."""
    BESIDE = 3
    """It was to run alone, and others run beside it: if its lease runs out, that may be their doing."""


def mark(keys: ShardKeys, group: str, consumer: str, entries: Sequence[str], begun: Begun) -> Call[bool]:
    """Marks deliveries of this consumer, and renews their leases to the visibility timeout. Result: whether it could.

    Leaves alone what is no longer pending.
    """
    return command(
        *("XCLAIM", keys.of("ready"), group, consumer, 0),
        *entries,
        *("RETRYCOUNT", int(begun), "JUSTID"),
        decode=lambda reply: not isinstance(reply, Exception),
        takes_errors=True,
    )
