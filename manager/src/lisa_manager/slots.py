"""Slots of keys: mends what a change of their limit, or damage, has left behind."""

from lisa_common.model.keys import ShardKeys
from lisa_common.protocol import managing
from lisa_common.protocol.call import Flow

__all__ = ["tidy"]


def tidy(keys: ShardKeys, *, mend: bool) -> Flow[int]:
    """Looks at all slots of a shard. Returns how many were wrong; `mend` also mends them."""
    cursor, total = b"", 0
    while True:
        page: tuple[bytes, int] = yield managing.tidy_slots(keys, cursor, mend=mend)
        cursor, total = page[0], total + page[1]
        if not cursor:
            return total
