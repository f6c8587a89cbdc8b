"""When a run counts as drained."""

import redis

from chaos.draining import unfinished
from lisa_common.client.connection import Connection
from lisa_common.model.keys import ShardKeys
from support.queue import Queue


def _left(client: redis.Redis, keys: ShardKeys) -> dict[str, int]:
    return {name: size for name, size in unfinished(client, keys) if size}


def test_a_dead_letter_is_looked_at_once_more(redis_url: str, client: redis.Redis, prefix: str) -> None:
    """It stays in expiring until a sweep after its time to live; what comes before that is no leak, but too early."""
    keys = ShardKeys(prefix, "orders")
    with Connection(redis_url) as connection:
        queue = Queue(connection, keys)
        queue.join("g")
        queue.send("a", ttl_ms=100)
        queue.nack(*queue.read("g"), rejected=True)
        queue.trim()
        queue.advance(99)
        queue.sweep()
        assert _left(client, keys) == {"expiring": 1}
        queue.advance(1)
        queue.sweep()
        assert _left(client, keys) == {}
        assert queue.contents().left == ["records", "failures", "garbage"]
