"""How to be rid of a group, beside managers that run, and whatever is interrupted.

What a group owes is named by entries of the stream, by `retry` and `garbage`, and where there are several groups by
`owed`. What only entries name is ended first, page by page, while the group is there, and so keeps them from being
trimmed. Then it is destroyed, and what is left of it is named by keys. So a drop that broke off is resumed by another.
"""

import re
from collections.abc import Iterator, Sequence

from lisa_common.model.keys import ShardKeys, bytes_of, split_copy, text_of
from lisa_common.model.sharding import Layout
from lisa_common.protocol import managing
from lisa_common.protocol.call import Flow, command
from lisa_manager.admin.queries import PAGE, existing

__all__ = ["drop_group", "drop_in_shard"]

_AT_ONCE = 200


def drop_group(layout: Layout, group: str, *, force: bool) -> Flow[int | None]:
    """Drops a group and what is left of it, with force all that it owes, in all shards.

    Also in those of a reshard meanwhile. Result: how many copies of messages were ended, or None: without force it was
    not dropped, as it owes.
    """
    dropped: set[ShardKeys] = set()
    ended = 0
    while left := [keys for keys in layout.served if keys not in dropped]:
        for keys in left:
            count = yield from drop_in_shard(keys, group, force=force)
            if count is None:
                return None
            ended += count
        dropped.update(left)
        layout = yield from existing(layout.prefix, layout.topic)
    return ended


def drop_in_shard(keys: ShardKeys, group: str, *, force: bool) -> Flow[int | None]:
    """The same in one shard."""
    # Retries first: those that are promoted meanwhile are ended with the entries.
    ended = (yield from _end_failed(keys, group, gone=False)) if force else 0
    outcome = "more"
    while outcome == "more":
        outcome, count = yield managing.disband(keys, group, limit=_AT_ONCE if force else 0)
        ended += count
    if outcome == "owes":
        return None
    ended += yield from _end_owed(keys, group)
    ended += yield from _end_failed(keys, group, gone=True)
    ended += yield from _end_copies(keys, group, "HSCAN", "failures", gone=True)
    return ended


def _end_owed(keys: ShardKeys, group: str) -> Flow[int]:
    cursor, ended = b"0", 0
    while True:
        cursor, flat = yield command("HSCAN", keys.of("owed"), cursor, "COUNT", PAGE)
        ids = [text_of(id) for id, names in _each(flat) if group in text_of(names).split(",")]
        ended += yield from _end(keys, group, ids, gone=True)
        if cursor == b"0":
            return ended


def _end_failed(keys: ShardKeys, group: str, *, gone: bool) -> Flow[int]:
    ended: int = yield from _end_copies(keys, group, "ZSCAN", "retry", gone=gone)
    ended += yield from _end_copies(keys, group, "ZSCAN", "garbage", gone=gone)
    return ended


def _end_copies(keys: ShardKeys, group: str, verb: str, name: str, *, gone: bool) -> Flow[int]:
    cursor, ended = b"0", 0
    while True:
        cursor, flat = yield command(verb, keys.of(name), cursor, "MATCH", _pattern(group), "COUNT", PAGE)
        ended += yield from _end(keys, group, [split_copy(text_of(copy))[1] for copy, _ in _each(flat)], gone=gone)
        if cursor == b"0":
            return ended


def _pattern(group: str) -> bytes:
    return re.sub(rb"([\\*?\[\]^-])", rb"\\\1", bytes_of(group)) + b"/*"


def _end(keys: ShardKeys, group: str, ids: Sequence[str], *, gone: bool) -> Flow[int]:
    done = ended = 0
    while done < len(ids):
        count, ended_now = yield managing.leave(keys, group, ids[done : done + _AT_ONCE], gone=gone)
        done, ended = done + count, ended + ended_now
    return ended


def _each(flat: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)
