"""The keys that a test has left in Redis."""

import redis

from lisa_common.model.keys import managers_key


def keys_left(client: "redis.Redis", prefix: str) -> list[str]:
    """Return every key below `prefix`, sorted, to check what a drained topic leaves.

    Without the sign of managers that run, which expires by itself.
    """
    keys = sorted(key.decode() for key in client.scan_iter(match=f"{prefix}:*", count=1000))
    return [key for key in keys if key != managers_key(prefix)]


def remove_keys(client: "redis.Redis", prefix: str) -> None:
    """Remove the keys below `prefix` and no others: the server may be shared."""
    for key in (*keys_left(client, prefix), managers_key(prefix)):
        client.unlink(key)
