"""Slots of a Cluster: which one a call belongs to, who serves them, and calls that span several."""

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
    """Who serves each slot, by what CLUSTER SLOTS tells."""
    return {slot: _name(master, informant) for first, last, master, *_ in reply for slot in range(first, last + 1)}


def members(reply: Sequence[Any], informant: NodeName) -> list[NodeName]:
    """The nodes of which CLUSTER SLOTS tells, masters and replicas, by name; where no slot is served, who says so."""
    return sorted({_name(node, informant) for _, _, *nodes in reply for node in nodes}) or [informant]


def _name(node: Sequence[Any], informant: NodeName) -> NodeName:
    """Host and port of a node; one that does not know its own address leaves it out."""
    host, port, *_ = node
    return (host.decode() if host else informant[0], port)


def split_read(call: Call[Any]) -> dict[int, Call[Any]]:
    """A read of streams as one for each slot; empty for what is no read."""
    if call.args[0] != "XREADGROUP":
        return {}
    at = call.args.index("STREAMS", 4) + 1
    streams = call.args[at:]
    half = len(streams) // 2
    return _split(call, call.args[:at], zip(streams[:half], streams[half:], strict=True))


def split_count(call: Call[Any]) -> dict[int, Call[Any]]:
    """A count of the keys that are there as one for each slot; empty for what is no such count."""
    return _split(call, call.args[:1], zip(call.args[1:], strict=True)) if call.args[0] == "EXISTS" else {}


def _split(call: Call[Any], words: tuple[Arg, ...], rows: Iterable[tuple[Arg, ...]]) -> dict[int, Call[Any]]:
    """The call for each slot: its words, the keys of the slot, and behind them what else their rows hold."""
    by_slot = defaultdict(list)
    for row in rows:
        by_slot[slot_of_key(row[0])].append(row)
    return {
        slot: call._replace(args=(*words, *chain.from_iterable(zip(*found, strict=True))))
        for slot, found in by_slot.items()
    }


def guarded(call: Call[Any]) -> Call[Any]:
    """The same call; a script of several keys with one more, which is never there.

    A server that is moving a slot begins a script if it has all of its keys, and breaks it off half-way when it comes
    to a key that it has emptied itself: that might be elsewhere by now. A key that is not there has it refuse the
    script before it begins (TRYAGAIN).
    """
    name, *words = call.args
    if name != "EVALSHA" or words[1] in {0, 1}:
        return call
    sha, count, *rest = words
    count = int(count)
    return call._replace(args=(name, sha, count + 1, *rest[:count], absent_key(str(rest[0])), *rest[count:]))


def block_of(read: Call[Any]) -> int | None:
    """How long a read waits, in ms; None where it does not wait."""
    at = _block_at(read)
    return int(read.args[at + 1]) if at else None


def with_block(read: Call[Any], block_ms: int) -> Call[Any]:
    """The same read of one that waits, which waits for so long."""
    words, at = read.args, _block_at(read)
    return read._replace(args=(*words[: at + 1], block_ms, *words[at + 2 :]))


def without_block(read: Call[Any]) -> Call[Any]:
    """The same read, which does not wait."""
    words, at = read.args, _block_at(read)
    return read._replace(args=(*words[:at], *words[at + 2 :])) if at else read


def _block_at(read: Call[Any]) -> int:
    """Where BLOCK stands in a read, 0 for nowhere."""
    words = read.args
    end = words.index("STREAMS", 4)
    return words.index("BLOCK", 4) if "BLOCK" in words[4:end] else 0
