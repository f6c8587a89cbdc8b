"""Requests about a topic's layout, without I/O. Callers of one topic share them."""

from collections.abc import Sequence
from typing import TypeVar

from lisa_common.errors import OutcomeUnknown, Refused, Unreachable
from lisa_common.model.sharding import Layout
from lisa_common.protocol.call import Flow
from lisa_common.protocol.registry import Topics
from lisa_producer.shared_flow import Request

__all__ = ["declare", "refresh_after_reshard", "resolve", "resolve_after_reshard", "resolve_again"]

T = TypeVar("T")


def resolve(topics: Topics, topic: str) -> Request:
    """Requests the layout, as `Topics.resolve`."""
    return Request(("resolve", topic), None, lambda items: _for_all(topics.resolve(topic), items))


def resolve_again(topics: Topics, topic: str) -> Request:
    """Requests the layout, as `Topics.resolve_again`."""
    return Request(("resolve again", topic), None, lambda items: _for_all(topics.resolve_again(topic), items))


def resolve_after_reshard(topics: Topics, before: Layout) -> Request:
    """Requests the layout after a reshard, as `refresh_after_reshard`."""
    return Request(("resharded", before), None, lambda items: _for_all(refresh_after_reshard(topics, before), items))


def declare(topics: Topics, topic: str) -> Request:
    """Declares a resolved topic."""
    return Request(("declare", topic), None, lambda items: _for_all(topics.declare(topic), items))


def _for_all(flow: Flow[T], items: Sequence[object]) -> Flow[list[T]]:
    result = yield from flow
    return [result] * len(items)


def refresh_after_reshard(topics: Topics, before: Layout) -> Flow[Layout]:
    """The layout after a reshard, which a closed shard has reported. Raises OutcomeUnknown or Refused without one."""
    try:
        layout = yield from topics.resolve_again(before.topic)
    except (Unreachable, Refused) as error:
        # An earlier try of the send may have been carried out.
        raise OutcomeUnknown(f"{before.topic} was resharded, and the registry does not answer: {error}") from error
    if layout is before:
        raise Refused(f"{before.topic} was resharded, and the registry does not say where new messages go")
    return layout
