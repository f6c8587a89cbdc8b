"""A manager that works on request: one turn does all the work of a manager that is due."""

from lisa_common.client.connection import Connection
from lisa_common.model.keys import ShardKeys
from lisa_common.model.sharding import Layout
from lisa_common.protocol import managing
from lisa_common.protocol.call import command
from lisa_common.protocol.consuming import server_time
from lisa_common.protocol.registry import read_registry

__all__ = ["layouts", "turn"]

_LIMIT = 1_000
_SPENT_MS = 600_000


def layouts(connection: Connection, prefix: str) -> list[Layout]:
    """The shards and policies of all topics."""
    topics = connection.run(read_registry(prefix))
    return [Layout(prefix, name, topic.policy) for name, topic in topics.items()]


def turn(connection: Connection, prefix: str, *, with_retries: bool = True) -> int:
    """Reclaims, expires, promotes and trims what is due in every topic. Result: how many messages were promoted.

    Without retries, a shard that has any due is not promoted: on a slow machine they fall due by themselves.
    """
    promoted = 0
    for layout in layouts(connection, prefix):
        for keys in layout.served:
            trimmed = connection.call(managing.trim(keys, spent_ms=_SPENT_MS))
            for group in (name for name, pending in trimmed.pending.items() if pending):
                cursor = "0-0"
                while True:
                    call = managing.reclaim(keys, group, layout.policy, cursor=cursor, limit=_LIMIT)
                    cursor = connection.call(call).cursor
                    if cursor == "0-0":
                        break
            while connection.call(managing.sweep(keys, layout.policy, limit=_LIMIT)).more:
                pass
            while with_retries or not _has_due_retries(connection, keys):
                result = connection.call(managing.promote(keys, limit=_LIMIT))
                promoted += result.count
                if not result.more:
                    break
    return promoted


def _has_due_retries(connection: Connection, keys: ShardKeys) -> bool:
    first: list[bytes] = connection.call(command("ZRANGE", keys.of("retry"), 0, 0, "WITHSCORES"))
    return bool(first) and float(first[1]) <= connection.call(server_time())
