"""Where new groups of a stream begin.

The first group of a topic gets all that is ready. To begin later, it acks what became ready before, unread: nobody else
could handle it. A note beside the topic says so until that is done, as the group exists from then on. Messages that
became ready before any later group belong to other groups, and it cannot begin with them.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

from lisa_common.errors import InvalidInput
from lisa_common.model.keys import ShardKeys
from lisa_common.model.sharding import Layout
from lisa_common.protocol import consuming, groups
from lisa_common.protocol.call import Flow, command
from lisa_common.protocol.lending import store_text
from lisa_common.protocol.marking import MARKING
from lisa_common.protocol.registry import Topics
from lisa_producer.spark.pending_entries import PendingEntries, read_infos

__all__ = ["start_groups"]

Start = Literal["earliest", "latest"] | int
"""A time is in ms since the epoch."""

_CONSUMER = f"spark-start{MARKING}"
"""The same one again, if the driver dies meanwhile."""
_NOTED_MS = 30 * 86_400_000
_LAST = 2**64 - 1
"""The last entry of a millisecond."""


def start_groups(topics: Topics, layouts: Sequence[Layout], group: str, start: Start) -> Flow[None]:
    """Creates a group in the topics that lack it; elsewhere it keeps its position. Raises InvalidInput."""
    now_ms: int = yield consuming.server_time()
    if isinstance(start, int) and start > now_ms:
        raise InvalidInput(
            "option startingOffsets", _shown(start), f"a time before that of the server, {_shown(now_ms)}"
        )
    until_ms = start - 1 if isinstance(start, int) else now_ms if start == "latest" else 0
    new: list[tuple[Layout, int]] = []
    for layout in layouts:
        noted: bytes | None = yield command("GET", _note(layout, group))
        if noted is not None:
            # The option may have changed since: only what both leave out is acked.
            new.append((layout, min(int(noted), until_ms)))
        elif (others := (yield from _others(layout, group))) is not None:
            if others and start != "latest":
                raise InvalidInput(
                    "option startingOffsets",
                    _shown(start),
                    f"latest for the new group {group} of {layout.topic}, "
                    f"as messages that are ready belong to {', '.join(others)}",
                )
            if start != "earliest":
                new.append((layout, until_ms))
    for layout, end_ms in new:
        yield store_text(_note(layout, group), str(end_ms), _NOTED_MS)
        yield from groups.join([layout], group)
        for keys in layout.served:
            yield from PendingEntries(topics, keys, group, _CONSUMER).pass_over(f"{end_ms}-{_LAST}")
        yield command("UNLINK", _note(layout, group))


def _shown(start: Start) -> str:
    return start if isinstance(start, str) else datetime.fromtimestamp(start / 1000, UTC).isoformat()


def _note(layout: Layout, group: str) -> str:
    return ShardKeys(layout.prefix, layout.topic).query(f"{group}/start")


def _others(layout: Layout, group: str) -> Flow[list[str] | None]:
    """The other groups of a topic; None if the group exists."""
    found: set[str] = set()
    for keys in layout.served:
        found |= {info["name"].decode() for info in (yield from read_infos(keys))}
    return None if group in found else sorted(found)
