"""Reads from the keys when a topic was last used, for topics that expire when nobody uses them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lisa_common.errors import OF_THE_SERVER, LisaError
from lisa_common.model.keys import ShardKeys, bytes_of, text_of
from lisa_common.model.sharding import Layout
from lisa_common.protocol.call import Call, Flow, IndependentCalls, command
from lisa_common.protocol.consuming import server_time
from lisa_common.protocol.replies import pairs
from lisa_manager.resharding import CONTENTS
from lisa_manager.shard_groups import GroupInfo, groups

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
    now_ms, *answers = yield IndependentCalls(
        (server_time(), *(call for keys in shards for call in _shard_calls(keys)))
    )
    _raise_first((now_ms, *answers))
    contents, scheduled, infos = answers[::4], answers[1::4], answers[3::4]
    last = dict(zip(shards, answers[2::4], strict=True))
    calls = [_idle_times(keys, group) for keys, of_shard in zip(shards, infos, strict=True) for group in of_shard]
    idle_ms: list[Any] = (yield IndependentCalls(calls)) if calls else []
    _raise_first(idle_ms)
    asked = [now_ms - max(0, idle - read_ms) for of_group in idle_ms for idle in of_group]
    made = [int(entry.partition("-")[0]) for entry in last.values()]
    # The clock may have been set back since.
    used_ms = min(now_ms, max((*asked, *made), default=0))
    return TopicUse(now_ms, any(scheduled), not any(contents), used_ms, last)


def _raise_first(results: Sequence[Any]) -> None:
    for kind in (OF_THE_SERVER, LisaError):
        for result in results:
            if isinstance(result, kind):
                raise result


def _shard_calls(keys: ShardKeys) -> Iterator[Call[Any]]:
    yield command("EXISTS", *map(keys.of, CONTENTS))
    yield command("EXISTS", keys.of("schedules"))
    yield command("XINFO", "STREAM", keys.of("ready"), decode=_last_entry, takes_errors=True)
    yield groups(keys)


def _last_entry(reply: Any) -> str:
    if isinstance(reply, LisaError):
        if "no such key" in str(reply):
            return "0-0"
        raise reply
    fields = {text_of(name): value for name, value in pairs(reply)}
    return text_of(fields["last-generated-id"])


def _idle_times(keys: ShardKeys, group: GroupInfo) -> Call[list[int]]:
    """How long ago each consumer of a group asked, in ms; 0 for one that holds deliveries."""

    def decode(reply: Any) -> list[int]:
        if isinstance(reply, LisaError):
            # The group was dropped meanwhile.
            if "NOGROUP" in str(reply) or "no such key" in str(reply):
                return []
            raise reply
        consumers = [{text_of(name): value for name, value in pairs(info)} for info in reply]
        return [0 if consumer["pending"] else consumer["idle"] for consumer in consumers]

    return command("XINFO", "CONSUMERS", keys.of("ready"), bytes_of(group.name), decode=decode, takes_errors=True)
