"""Sending one message, without I/O: what `client` and `aio` drive, and may share among callers."""

from collections.abc import Sequence
from functools import partial
from typing import TypeVar

from lisa_common.errors import LisaError, NotConfirmed, Resharded
from lisa_common.model.keys import ShardKeys
from lisa_common.model.sharding import Layout
from lisa_common.protocol.call import Flow
from lisa_common.protocol.producing import Outgoing, new_ids
from lisa_common.protocol.registry import Topics
from lisa_producer.lanes import SharedFlow, Step
from lisa_producer.message import Confirm, Message, SendResult
from lisa_producer.settings import ProducerSettings
from lisa_producer.storing import Missing, is_repeatable, known_before, layout_since, result_of, store

__all__ = ["resolving", "resolving_anew", "send"]

T = TypeVar("T")

_Results = list[SendResult | LisaError | None]
"""For each message its own; None where its shard is closed."""

_Lane = tuple[int, Confirm | None, bool, bool]
"""A shard, and the promises that messages have in common: whether they are repeatable, and were refused elsewhere."""

_OVERHEAD = 200
"""Bytes that a message takes beside its content while it waits for its call, and that its id takes at most."""


def send(
    topics: Topics, topic: str, message: Message, settings: ProducerSettings, confirm: Confirm | None
) -> SharedFlow[SendResult]:
    """Sends one message; raises InvalidInput before anything is written."""
    layout = declared = topics.known(topic, declared=True)
    if layout is None:
        layout = topics.known(topic) or (yield resolving(topics, topic))
    outgoing = message.outgoing(layout.policy, new_ids(1)[0])
    if declared is None:
        layout = yield _declaring(topics, topic)
    rerouted = False
    while True:
        result: SendResult | None = yield _sending(layout, outgoing, settings, confirm, rerouted=rerouted)
        if result is not None:
            return result
        layout = yield _resolving_since(topics, layout)
        # Of a send that is repeated, the first try may have come before the reshard.
        rerouted = True


def resolving(topics: Topics, topic: str) -> Step:
    """Asks for the layout of a topic, as `Topics.resolve`."""
    return Step(("resolve", topic), None, lambda items: _shared(topics.resolve(topic), items), topic)


def resolving_anew(topics: Topics, topic: str) -> Step:
    """Asks for the layout of a topic, as `Topics.resolve_anew`."""
    return Step(("resolve anew", topic), None, lambda items: _shared(topics.resolve_anew(topic), items), topic)


def _resolving_since(topics: Topics, before: Layout) -> Step:
    """Asks for the layout since a reshard."""
    return Step(("resharded", before), None, lambda items: _shared(layout_since(topics, before), items), before.topic)


def _declaring(topics: Topics, topic: str) -> Step:
    """Declares a topic that was resolved."""
    return Step(("declare", topic), None, lambda items: _shared(topics.declare(topic), items), topic)


def _shared(flow: Flow[T], items: Sequence[object]) -> Flow[list[T]]:
    """The same result for all."""
    result = yield from flow
    return [result] * len(items)


def _sending(
    layout: Layout, outgoing: Outgoing, settings: ProducerSettings, confirm: Confirm | None, *, rerouted: bool
) -> Step:
    """Sends a message. Result: what became of it, None where its shard is closed."""
    keys = layout.home(outgoing.id)
    # A message must not take from its neighbours what their own would have them be: tried again.
    repeatable = is_repeatable((outgoing,), layout.policy, settings)
    # By identity, which costs less than their hash: while there is a lane, there are its keys.
    lane = (id(keys), confirm, repeatable, rerouted)
    if layout.former:
        make = partial(_send_unknown, layout, keys, lane)
    else:
        make = partial(_send_part, keys, confirm, repeatable)
    return Step(lane, outgoing, make, layout.topic, len(outgoing.content) + _OVERHEAD, repeatable)


def _send_unknown(layout: Layout, keys: ShardKeys, lane: _Lane, batch: Sequence[Outgoing]) -> Flow[_Results]:
    """As `_send_part`, but for what former shards know."""
    _, confirm, repeatable, rerouted = lane
    before = yield from known_before(layout, batch, confirm, generated_too=rerouted)
    new = [m for m in batch if m.id not in before]
    sent = iter((yield from _send_part(keys, confirm, repeatable, new)) if new else ())
    return [_known(layout.topic, m, before[m.id]) if m.id in before else next(sent) for m in batch]


def _known(topic: str, outgoing: Outgoing, missing: Missing | None) -> SendResult | LisaError:
    """What becomes of a message that a former shard knows."""
    return NotConfirmed(topic, [outgoing.id], *missing) if missing else result_of(0, outgoing, 0)


def _send_part(
    keys: ShardKeys,
    confirm: Confirm | None,
    repeatable: bool,  # noqa: FBT001 - bound, by `_sending`
    messages: Sequence[Outgoing],
) -> Flow[_Results]:
    """Sends to one shard. Result: for each message its own, None where the shard is closed."""
    try:
        dues, missing = yield from store(keys, messages, confirm, repeatable=repeatable)
    except Resharded:
        return [None] * len(messages)
    if missing:
        return [NotConfirmed(keys.topic, [m.id], *missing) for m in messages]
    return [result_of(0, m, due_ms) for m, due_ms in zip(messages, dues, strict=True)]
