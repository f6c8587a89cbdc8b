"""Drops a group beside running managers.

Entries of the stream, `retry` and `garbage` name the copies that a group owes; with several groups, `owed` does as
well. Copies that only entries name end first, page by page, while the group exists and so keeps them from being
trimmed. Once no shard has any, the group is destroyed in all of them, and keys name the rest. So an interrupted drop
can run again to finish; and while a group owes much, a check does not find it missing in the shards that are done.
"""

from collections.abc import Sequence

from lisa_common.model.keys import ShardKeys, split_copy, text_of
from lisa_common.model.sharding import Layout
from lisa_common.protocol import consuming, managing
from lisa_common.protocol.call import Flow
from lisa_common.protocol.scanning import literal, scan
from lisa_manager.queries import PAGE, require_topic

__all__ = ["drop_group", "drop_in_shards"]

_STEP = 200
"""Most copies that one script call ends."""


def drop_group(layout: Layout, group: str, *, force: bool) -> Flow[int | None]:
    """Drops a group as `drop_in_shards` does, in all shards of a topic, also in those of a reshard meanwhile."""
    dropped: set[ShardKeys] = set()
    ended = 0
    while left := [keys for keys in layout.served if keys not in dropped]:
        count = yield from drop_in_shards(left, group, force=force)
        if count is None:
            return None
        ended += count
        dropped.update(left)
        layout = yield from require_topic(layout.prefix, layout.topic)
    return ended


def drop_in_shards(shards: Sequence[ShardKeys], group: str, *, force: bool) -> Flow[int | None]:
    """Drops a group in shards, in all at once; with `force`, even if it owes messages.

    Returns how many copies of messages were ended, or None if the group stays because it owes some.
    """
    ended, limit = 0, 0
    if force:
        limit = _STEP
        # Retries first: a retry that is promoted meanwhile ends with the entries.
        for keys in shards:
            ended += yield from _end_copies(keys, group, "retry", "garbage", gone=False)
    left, destroy = shards, False
    while left:
        steps: list[tuple[str, int]] = yield [
            managing.drop_group(keys, group, limit=limit, destroy=destroy) for keys in left
        ]
        outcomes = {outcome for outcome, _ in steps}
        ended += sum(count for _, count in steps)
        if "owes" in outcomes:
            if gone := [keys for keys, (outcome, _) in zip(left, steps, strict=True) if outcome == "done"]:
                # A message came to another shard since the last look. What comes to these must not miss the group.
                yield [consuming.join(keys, group) for keys in gone]
            return None
        left = [keys for keys, (outcome, _) in zip(left, steps, strict=True) if outcome in {"more", "settled"}]
        destroy = destroy or "more" not in outcomes
    for keys in shards:
        ended += yield from _end_owed(keys, group)
        ended += yield from _end_copies(keys, group, "retry", "garbage", "failures", gone=True)
    return ended


def _end_owed(keys: ShardKeys, group: str) -> Flow[int]:
    ended = 0
    pages = scan(keys, "owed", count=PAGE)
    while not pages.done:
        page = yield from pages.next_page()
        ids = [text_of(id) for id, names in page if group in text_of(names).split(",")]
        ended += yield from _end(keys, group, ids, gone=True)
    return ended


def _end_copies(keys: ShardKeys, group: str, *names: str, gone: bool) -> Flow[int]:
    """Ends the copies that the keys of these names have, one key after the other."""
    ended = 0
    for name in names:
        pages = scan(keys, name, count=PAGE, match=literal(group) + b"/*")
        while not pages.done:
            page = yield from pages.next_page()
            ended += yield from _end(keys, group, [split_copy(text_of(copy))[1] for copy, _ in page], gone=gone)
    return ended


def _end(keys: ShardKeys, group: str, ids: Sequence[str], *, gone: bool) -> Flow[int]:
    done = ended = 0
    while done < len(ids):
        count, ended_now = yield managing.end_copies(keys, group, ids[done : done + _STEP], gone=gone)
        done, ended = done + count, ended + ended_now
    return ended
