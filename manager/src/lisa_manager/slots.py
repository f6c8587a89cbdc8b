"""Slots of keys: mends what a change of their limit, or damage, has left behind."""

from lisa_common.model.keys import ShardKeys
from lisa_common.protocol import managing
from lisa_common.protocol.call import Flow

__all__ = ["tidy"]


def tidy(keys: ShardKeys, *, mend: bool) -> Flow[int]:
    """Looks at all slots of a shard. Returns how many were wrong; `mend` also mends them."""
    cursor, total = b"", 0
    while True:
        cursor, count = yield managing.tidy_slots(keys, cursor, mend=mend)
        total += count
        if not cursor:
            return total
