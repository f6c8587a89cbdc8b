"""Reading calls that the flows of operators share, and how to read their replies. Nothing here writes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar

from lisa_common.errors import OF_A_NODE, OF_THE_SERVER, LisaError, NoGroup, UnknownTopic
from lisa_common.model.delivery import Entry, entries_of
from lisa_common.model.keys import ShardKeys, bytes_of, text_of, topics_key
from lisa_common.model.sharding import Layout
from lisa_common.protocol.call import Call, Flow, IndependentCalls, command
from lisa_common.protocol.registry import parse_topic, read_registry
from lisa_common.protocol.replies import fields_of, pairs
from lisa_common.validation import check_name

__all__ = [
    "PAGE",
    "GroupInfo",
    "chunks",
    "consumers",
    "entries",
    "first_error",
    "group_names",
    "groups",
    "layouts_of",
    "list_layouts",
    "pending",
    "read_all",
    "require_stored_topic",
    "require_topic",
    "scored",
    "stream_fields",
]

T = TypeVar("T")

PAGE = 1_000
"""Most items read by one call."""


def entries(keys: ShardKeys, first: str = "-", last: str = "+", *, count: int = PAGE) -> Call[list[Entry]]:
    """Entries of the ready stream, oldest first."""
    return command("XRANGE", keys.of("ready"), first, last, "COUNT", count, decode=entries_of)


def pending(keys: ShardKeys, group: str, start: str, *, count: int = PAGE) -> Call[list[Any]]:
    """Entries of the ready stream that a group has read and not settled, from `start` on; none where it was dropped."""
    args = ("XPENDING", keys.of("ready"), bytes_of(group), start, "+", count)
    return command(*args, decode=lambda reply: [] if isinstance(reply, LisaError) else reply, takes_errors=True)


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A consumer group as the server has it."""

    name: str
    consumers: int
    pending: int
    last: str
    """The entry delivered last."""
    lag: int | None
    """Entries not delivered yet; None where the server does not know, as some have been deleted."""


def groups(keys: ShardKeys) -> Call[list[GroupInfo]]:
    """The groups of a shard, by name; none where the stream does not exist."""
    return _info("GROUPS", keys, decode=lambda infos: sorted(map(_group, infos), key=attrgetter("name")))


def _group(info: list[Any]) -> GroupInfo:
    fields = fields_of(info)
    return GroupInfo(
        name=text_of(fields["name"]),
        consumers=fields["consumers"],
        pending=fields["pending"],
        last=fields["last-delivered-id"].decode(),
        lag=fields.get("lag"),
    )


def group_names(shards: Sequence[ShardKeys]) -> Flow[set[str]]:
    """The names of all groups in any of the shards."""
    by_shard: list[list[GroupInfo]] = yield [groups(keys) for keys in shards]
    return {group.name for of_shard in by_shard for group in of_shard}


def consumers(keys: ShardKeys, group: str) -> Call[list[dict[str, Any]]]:
    """The fields of each consumer of a group; none where the group does not exist."""
    return _info("CONSUMERS", keys, bytes_of(group), decode=lambda infos: [fields_of(info) for info in infos])


def stream_fields(keys: ShardKeys, *options: str | int) -> Call[dict[str, Any]]:
    """The fields of XINFO STREAM for the ready stream; empty where the stream does not exist."""
    return _info("STREAM", keys, *options, decode=fields_of)


def _info(kind: str, keys: ShardKeys, *options: str | bytes | int, decode: Callable[[Any], T]) -> Call[T]:
    def decode_existing(reply: Any) -> T:
        if not isinstance(reply, LisaError):
            return decode(reply)
        # Any other error is a problem of the shard or the server.
        if isinstance(reply, NoGroup) or "no such key" in str(reply):
            return decode([])
        raise reply

    return command("XINFO", kind, keys.of("ready"), *options, decode=decode_existing, takes_errors=True)


def require_topic(prefix: str, topic: str) -> Flow[Layout]:
    """Returns the layout of a topic; raises UnknownTopic."""
    layout, _ = yield from require_stored_topic(prefix, topic)
    return layout


def require_stored_topic(prefix: str, topic: str) -> Flow[tuple[Layout, bytes]]:
    """Returns the layout of a topic, and its stored policy; raises UnknownTopic."""
    check_name("topic", topic)
    stored: bytes | None = yield command("HGET", topics_key(prefix), topic)
    if stored is None:
        raise UnknownTopic(topic)
    return Layout(prefix, topic, parse_topic(topic, stored).policy), stored


def list_layouts(prefix: str) -> Flow[list[Layout]]:
    """The layouts of all topics, by name."""
    registry = yield from read_registry(prefix)
    return [Layout(prefix, name, registry[name].policy) for name in sorted(registry)]


def layouts_of(prefix: str, topic: str | Sequence[str] | None) -> Flow[list[Layout]]:
    """The layouts of one topic, of several, or of all with None, by name.

    Raises UnknownTopic for one unknown topic; of several, leaves it out.
    """
    if topic is None:
        return (yield from list_layouts(prefix))
    if isinstance(topic, str) or not isinstance(topic, Iterable):
        return [(yield from require_topic(prefix, topic))]
    names = sorted({check_name("topic", name) for name in topic})
    if not names:
        return []
    stored: list[bytes | None] = yield command("HMGET", topics_key(prefix), *names)
    known = [(name, value) for name, value in zip(names, stored, strict=True) if value is not None]
    return [Layout(prefix, name, parse_topic(name, value).policy) for name, value in known]


def scored(flat: Any) -> list[tuple[str, float]]:
    """Members of a sorted set with their scores, in the order of the reply."""
    return [(text_of(member), float(score)) for member, score in pairs(flat)]


def first_error(results: Iterable[Any], *, partial: bool = False) -> LisaError | None:
    """Returns the first error among results of calls. Unless `partial`, raises one that every call to the server meets.

    `partial` is for readers of a Cluster that do without the shards of a node that is away.
    """
    errors = [result for result in results if isinstance(result, LisaError)]
    for error in errors:
        if isinstance(error, OF_THE_SERVER) and not (partial and isinstance(error, OF_A_NODE)):
            raise error
    return errors[0] if errors else None


def read_all(calls: Sequence[Call[Any]]) -> Flow[list[Any]]:
    """Makes any number of calls, `PAGE` in a round trip. Returns their results; raises their first error."""
    results: list[Any] = []
    for some in chunks(calls, PAGE):
        results += yield IndependentCalls(some)
    if error := first_error(results):
        raise error
    return results


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The items in order, at most `size` at a time."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
