"""Slots of a Cluster: the slot of a call, the node that serves it, and calls that span several slots."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from lisa_common.client.address import NodeName
from lisa_common.model.keys import absent_key
from lisa_common.protocol.call import Call, key_of
from lisa_common.protocol.scripts import Arg

__all__ = [
    "block_of",
    "guarded",
    "members",
    "owners",
    "slot_of",
    "slot_of_key",
    "split_count",
    "split_read",
    "with_block",
    "without_block",
]


@lru_cache(maxsize=100_000)
def slot_of_key(key: Arg) -> int:
    """The slot of a key."""
    return key_slot(key if isinstance(key, bytes) else str(key).encode(), REDIS_CLUSTER_HASH_SLOTS)


def slot_of(call: Call[Any]) -> int | None:
    """The slot of a call's first key, None for a call without keys."""
    key = key_of(call)
    return None if key is None else slot_of_key(key)


def owners(reply: Sequence[Any], informant: NodeName) -> dict[int, NodeName]:
    """The node that serves each slot, from the reply to CLUSTER SLOTS."""
    found = dict[int, NodeName]()
    for first, last, master, *_ in reply:
        found |= dict.fromkeys(range(first, last + 1), _name(master, informant))
    return found


def members(reply: Sequence[Any], informant: NodeName) -> list[NodeName]:
    """The masters and replicas in the reply to CLUSTER SLOTS, by name; the informant if no slot is served."""
    return sorted({_name(node, informant) for _, _, *nodes in reply for node in nodes}) or [informant]


def _name(node: Sequence[Any], informant: NodeName) -> NodeName:
    """Host and port of a node; a node that does not know its own host omits it."""
    host, port, *_ = node
    return (host.decode() if host else informant[0], port)


def split_read(call: Call[Any]) -> dict[int, Call[Any]]:
    """A read of streams as one read per slot; empty for other calls."""
    if call.args[0] != "XREADGROUP":
        return {}
    at = call.args.index("STREAMS", 4) + 1
    streams = call.args[at:]
    half = len(streams) // 2
    return _split(call, call.args[:at], zip(streams[:half], streams[half:], strict=True))


def split_count(call: Call[Any]) -> dict[int, Call[Any]]:
    """An EXISTS of several keys as one per slot; empty for other calls."""
    return _split(call, call.args[:1], zip(call.args[1:], strict=True)) if call.args[0] == "EXISTS" else {}


def _split(call: Call[Any], words: tuple[Arg, ...], rows: Iterable[tuple[Arg, ...]]) -> dict[int, Call[Any]]:
    """The call for each slot: its words, the keys of the slot, then the other columns of their rows."""
    by_slot = defaultdict(list)
    for row in rows:
        by_slot[slot_of_key(row[0])].append(row)
    return {
        slot: call._replace(args=(*words, *chain.from_iterable(zip(*slot_rows, strict=True))))
        for slot, slot_rows in by_slot.items()
    }


def guarded(call: Call[Any]) -> Call[Any]:
    """The same call; a script of several keys gets one more key, which never exists.

    A server that moves a slot starts a script if it has all of its keys, and aborts it, keeping its writes, when it
    reads a key that it has just emptied. A missing key makes it refuse the script before it starts (TRYAGAIN). Scripts
    of one key do not empty it before their last command.
    """
    if call.args[0] != "EVALSHA":
        return call
    name, sha, keys, *rest = call.args
    count = int(keys)
    if count <= 1:
        return call
    return call._replace(args=(name, sha, str(count + 1), *rest[:count], absent_key(str(rest[0])), *rest[count:]))


def block_of(read: Call[Any]) -> int | None:
    """How long a read waits, in ms; None if it does not wait."""
    at = _block_at(read)
    return int(read.args[at + 1]) if at else None


def with_block(read: Call[Any], block_ms: int) -> Call[Any]:
    """A waiting read with another wait, in ms."""
    words, at = read.args, _block_at(read)
    return read._replace(args=(*words[: at + 1], str(block_ms), *words[at + 2 :]))


def without_block(read: Call[Any]) -> Call[Any]:
    """The same read without waiting."""
    words, at = read.args, _block_at(read)
    return read._replace(args=(*words[:at], *words[at + 2 :])) if at else read


def _block_at(read: Call[Any]) -> int:
    """The position of BLOCK in a read, 0 for none."""
    words = read.args
    end = words.index("STREAMS", 4)
    return words.index("BLOCK", 4) if "BLOCK" in words[4:end] else 0
