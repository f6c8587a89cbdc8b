"""The keys that a test has left in Redis."""

import redis


def keys_left(client: "redis.Redis", prefix: str) -> list[str]:
    """Return every key below `prefix`, sorted, to check what a drained topic leaves."""
    return sorted(key.decode() for key in client.scan_iter(match=f"{prefix}:*", count=1000))


def remove_keys(client: "redis.Redis", prefix: str) -> None:
    """Remove the keys below `prefix` and no others: the server may be shared."""
    for key in keys_left(client, prefix):
        client.unlink(key)
