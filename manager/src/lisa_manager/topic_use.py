"""Reads from the keys when a topic was last used, for topics that expire when nobody uses them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from lisa_common.model.keys import ShardKeys, text_of
from lisa_common.model.sharding import Layout
from lisa_common.protocol.call import Call, Flow, command
from lisa_common.protocol.consuming import server_time
from lisa_manager.queries import consumers, groups, read_all, stream_fields
from lisa_manager.resharding import CONTENTS

__all__ = ["TopicUse", "read_use"]

_READ_MS: Final = 5_000
"""A consumer counts as using a topic for so long after it began a read, as the read may still wait at the server."""


@dataclass(frozen=True, slots=True)
class TopicUse:
    """The use of one topic at one moment, as the server reports it. Times are ms of its clock."""

    now_ms: int
    has_schedules: bool
    is_drained: bool
    """Whether no shard holds anything but its stream, known ids included."""
    used_ms: int
    """When a message last became ready, or a consumer last asked; 0 for never."""
    last: dict[ShardKeys, str]
    """The last entry that each shard ever had."""


def read_use(layout: Layout, *, read_ms: int = _READ_MS) -> Flow[TopicUse]:
    """Looks at all shards of a topic, in two round trips. Raises LisaError for keys of a wrong type.

    A read of a consumer may wait at the server for `read_ms`.
    """
    shards = layout.served
    now_ms, *answers = yield from read_all([server_time(), *(call for keys in shards for call in _shard_calls(keys))])
    contents, scheduled, streams, infos = (answers[start::4] for start in range(4))
    last = {
        keys: text_of(stream.get("last-generated-id", b"0-0")) for keys, stream in zip(shards, streams, strict=True)
    }
    calls = [consumers(keys, group.name) for keys, of_shard in zip(shards, infos, strict=True) for group in of_shard]
    readers = [reader for of_group in (yield from read_all(calls)) for reader in of_group]
    # One that holds deliveries uses the topic now.
    asked = [now_ms - (0 if reader["pending"] else max(0, reader["idle"] - read_ms)) for reader in readers]
    made = [int(entry.partition("-")[0]) for entry in last.values()]
    # The clock may have been set back since.
    used_ms = min(now_ms, max((*asked, *made), default=0))
    return TopicUse(now_ms, any(scheduled), not any(contents), used_ms, last)


def _shard_calls(keys: ShardKeys) -> Iterator[Call[Any]]:
    yield command("EXISTS", *map(keys.of, CONTENTS))
    yield command("EXISTS", keys.of("schedules"))
    yield stream_fields(keys)
    yield groups(keys)
