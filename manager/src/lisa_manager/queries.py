"""Reading calls that the flows of operators share, and how to read their replies. Nothing here writes."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from lisa_common.errors import OF_THE_SERVER, LisaError, UnknownTopic
from lisa_common.model.delivery import Entry, entry_of
from lisa_common.model.keys import ShardKeys, text_of, topics_key
from lisa_common.model.sharding import Layout
from lisa_common.protocol.call import Call, Flow, IndependentCalls, command, error_in
from lisa_common.protocol.registry import parse_topic, read_registry
from lisa_common.protocol.replies import pairs
from lisa_common.validation import check_name

__all__ = [
    "PAGE",
    "chunks",
    "entries",
    "first_error",
    "layouts_of",
    "list_layouts",
    "read_all",
    "require_stored_topic",
    "require_topic",
    "scored",
]

T = TypeVar("T")

PAGE = 1_000
"""Most items read by one call."""


def entries(keys: ShardKeys, first: str = "-", last: str = "+", *, count: int = PAGE) -> Call[list[Entry]]:
    """Entries of the ready stream, oldest first."""
    return command("XRANGE", keys.of("ready"), first, last, "COUNT", count, decode=_entries)


def _entries(reply: list[Any]) -> list[Entry]:
    return [entry_of(entry, values) for entry, values in reply]


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
    error = error_in(results)
    if isinstance(error, OF_THE_SERVER) and not partial:
        raise error
    return error


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
