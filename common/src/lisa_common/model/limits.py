"""The limits of a shard, as the scripts read them from the key `door`: `lua/include/door.lua`."""

import json

from lisa_common.model.keys import ShardKeys
from lisa_common.model.rate import read_rate
from lisa_common.model.sharding import Layout

__all__ = ["limits_of", "revision_of"]


def limits_of(layout: Layout, keys: ShardKeys) -> str:
    """The limits of a shard, as JSON; empty where it has none.

    Each shard that holds messages gets an equal share of `max_in_flight`, `rate` and `burst`, and each current one of
    `max_messages`; the first ones get what is left over. So the shares add up to the limit of the topic.
    """
    policy = layout.policy
    if not policy.is_limited or keys not in layout.served:
        return ""
    at, count = layout.served.index(keys), len(layout.served)
    limits: dict[str, object] = {"revision": policy.limits_revision}
    if policy.paused:
        limits["paused"] = True
    if policy.max_in_flight is not None:
        limits["in_flight"] = _share(policy.max_in_flight, at, count)
    if policy.max_in_flight_per_key is not None:
        # Never shared: the messages of a key are all in one shard, as such a topic has only one.
        limits["per_key"] = policy.max_in_flight_per_key
    if policy.rate is not None:
        messages, period_ms = read_rate(policy.rate)
        # One ms more than the period: times are whole ms, and a window may include both its ends.
        limits["interval_ms"] = (period_ms + 1) / _share(messages, at, count)
        limits["burst"] = _share(policy.effective_burst, at, count)
    if policy.max_messages is not None and keys in layout.shards:
        limits["messages"] = _share(policy.max_messages, layout.shards.index(keys), len(layout.shards))
    return json.dumps(limits, separators=(",", ":"))


def revision_of(limits: str) -> int:
    """The revision of a shard's limits; 0 where it cannot be read."""
    try:
        revision = json.loads(limits)["revision"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return 0
    return revision if isinstance(revision, int) else 0


def _share(total: int, at: int, count: int) -> int:
    return total // count + (at < total % count)
