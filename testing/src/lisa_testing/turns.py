"""A manager that works on request: one turn does all the work of a manager that is due."""

from collections.abc import Sequence

from lisa_common.client.connection import Connection
from lisa_common.model.keys import ShardKeys
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_common.protocol import managing
from lisa_common.protocol.call import command
from lisa_common.protocol.consuming import server_time
from lisa_common.protocol.paging import START
from lisa_common.protocol.registry import Topics, read_registry
from lisa_manager.dead_lettering import move_page

__all__ = ["layouts", "turn"]

_LIMIT = 1_000
_SPENT_MS = 600_000


def layouts(connection: Connection, prefix: str) -> list[Layout]:
    """The shards and policies of all topics."""
    topics = connection.run(read_registry(prefix))
    return [Layout(prefix, name, topic.policy) for name, topic in topics.items()]


def turn(connection: Connection, found: Sequence[Layout], *, with_retries: bool = True) -> int:
    """Reclaims, expires, promotes and trims what is due in these topics, and moves dead letters.

    Without retries, a shard that has any due is not promoted: on a slow machine they fall due by themselves. Result:
    how many messages were promoted or moved.
    """
    count = 0
    for layout in found:
        for keys in layout.served:
            trimmed = connection.call(managing.trim(keys, spent_ms=_SPENT_MS))
            for group in (name for name, pending in trimmed.pending.items() if pending):
                _reclaim(connection, keys, group, layout.policy)
            while connection.call(managing.sweep(keys, layout.policy, limit=_LIMIT)).more:
                pass
            if layout.policy.dead_letter_topic:
                count += _move_dead_letters(connection, keys, layout.policy)
            while with_retries or not _has_due_retries(connection, keys):
                result = connection.call(managing.promote(keys, limit=_LIMIT))
                count += result.count
                if not result.more:
                    break
    return count


def _has_due_retries(connection: Connection, keys: ShardKeys) -> bool:
    first: list[bytes] = connection.call(command("ZRANGE", keys.of("retry"), 0, 0, "WITHSCORES"))
    return bool(first) and float(first[1]) <= connection.call(server_time())


def _reclaim(connection: Connection, keys: ShardKeys, group: str, policy: Policy) -> None:
    cursor = "0-0"
    while True:
        cursor = connection.call(managing.reclaim(keys, group, policy, cursor=cursor, limit=_LIMIT)).cursor
        if cursor == "0-0":
            return


def _move_dead_letters(connection: Connection, keys: ShardKeys, policy: Policy) -> int:
    """Moves what can be moved. Returns how many. Raises the error of a dead letter topic that does not take them."""
    topics, point, count = Topics(keys.prefix), START, 0
    while True:
        moved = connection.run(move_page(keys, policy, topics, point))
        if moved.error:
            raise moved.error
        point, count = moved.rest, count + moved.moved
        if moved.at_end:
            return count
