"""Sending one message, without I/O: a flow for both clients, whose calls several callers share."""

import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial

from lisa_common.errors import LisaError, NotConfirmed, QueueFull, Resharded
from lisa_common.model.keys import ShardKeys
from lisa_common.model.message import Outgoing
from lisa_common.model.policy import DEFAULT_POLICY
from lisa_common.model.sharding import Layout
from lisa_common.observing.tracing import Tracing
from lisa_common.protocol.call import Flow
from lisa_common.protocol.ids import new_ids
from lisa_common.protocol.producing import repeated
from lisa_common.protocol.registry import Topics
from lisa_producer import layout_requests
from lisa_producer.message import Confirm, Message
from lisa_producer.metrics import METRICS
from lisa_producer.observed import observed_send
from lisa_producer.results import SendResult, Stored, result_of
from lisa_producer.settings import ProducerSettings
from lisa_producer.shard_send import find_in_former, is_repeatable, store, store_apart
from lisa_producer.shared_flow import Request, SharedFlow

__all__ = ["send"]

_Results = list[SendResult | LisaError | None]
"""One for each message; None where its shard is closed."""

_Key = tuple[int, Confirm | None, bool, bool, type[Outgoing]]
"""What messages of one call have in common: shard, confirmation, whether repeatable, whether repeated, and whether they
replace others."""

_ANY_SIZE = DEFAULT_POLICY.model_copy(update={"max_body_bytes": sys.maxsize})

_OVERHEAD = 200
"""Bytes that a queued message takes beside its content; its id takes at most as many."""


def send(
    topics: Topics,
    topic: str,
    message: Message,
    settings: ProducerSettings,
    *,
    confirm: Confirm | None,
    tracing: Tracing | None,
) -> SharedFlow[SendResult]:
    """Sends one message; raises InvalidInput before anything is written."""
    if tracing is None and not METRICS.on:
        return _send(topics, topic, message, settings, confirm=confirm, context=None)
    return observed_send(
        *(tracing, topic, message),
        lambda context: _send(topics, topic, message, settings, confirm=confirm, context=context),
    )


def _send(
    topics: Topics,
    topic: str,
    message: Message,
    settings: ProducerSettings,
    *,
    confirm: Confirm | None,
    context: Mapping[str, str] | None,
) -> SharedFlow[SendResult]:
    layout = declared = topics.known(topic, guarded=True)
    if layout is None:
        # What needs no policy is refused even while no server answers.
        message.outgoing(_ANY_SIZE, "")
        layout = topics.known(topic) or (yield layout_requests.resolve(topics, topic))
    outgoing = message.outgoing(layout.policy, new_ids(1)[0] if message.id is None else "", context)
    if declared is None:
        layout = yield layout_requests.declare(topics, topic)
    began = time.monotonic()
    while True:
        result: SendResult | None = yield _request(layout, outgoing, settings, confirm)
        if result is not None:
            return result
        layout = yield layout_requests.resolve_after_reshard(topics, layout)
        # The first try may have come before the reshard.
        outgoing = repeated(outgoing, began)


def _request(layout: Layout, outgoing: Outgoing, settings: ProducerSettings, confirm: Confirm | None) -> Request:
    """Requests a send. Returns a `SendResult`, None where the shard is closed."""
    keys = layout.home(outgoing.id)
    # Messages that may not be sent twice get calls of their own, so that the others can be retried.
    repeatable = is_repeatable((outgoing,), layout.policy, settings)
    # By identity, which costs less than a hash of the keys: they live as long as the queue. The script looks for
    # repeated messages only where the first one is.
    key = (id(keys), confirm, repeatable, outgoing.is_repeated, type(outgoing))
    if layout.former:
        make = partial(_send_unless_known, layout, keys, key)
    else:
        make = partial(_send_part, keys, confirm, repeatable)
    return Request(key, outgoing, make, len(outgoing.content) + _OVERHEAD, repeatable, repeated)


def _send_unless_known(layout: Layout, keys: ShardKeys, key: _Key, batch: Sequence[Outgoing]) -> Flow[_Results]:
    """As `_send_part`, without messages that former shards know or have replaced."""
    _, confirm, repeatable, _, _ = key
    found = yield from find_in_former(layout, batch, confirm, repeatable=repeatable)
    new = [m for m, stored in zip(batch, found, strict=True) if stored is None]
    sent = iter((yield from _send_part(keys, confirm, repeatable, new)) if new else ())
    return [next(sent) if stored is None else _result(m, stored) for m, stored in zip(batch, found, strict=True)]


def _send_part(
    keys: ShardKeys,
    confirm: Confirm | None,
    repeatable: bool,  # noqa: FBT001 - bound, by `_request`
    messages: Sequence[Outgoing],
) -> Flow[_Results]:
    """Sends to one shard, in as many calls as it takes. Returns errors, too: what was done before stays told."""
    results: _Results = []
    while len(results) < len(messages):
        results += yield from _send_first(keys, confirm, repeatable, messages[len(results) :])
    return results


def _send_first(
    keys: ShardKeys,
    confirm: Confirm | None,
    repeatable: bool,  # noqa: FBT001 - as above
    messages: Sequence[Outgoing],
) -> Flow[_Results]:
    """Sends as many of the messages, from the first on, as one call does."""
    stored: Sequence[Stored | None]
    try:
        stored, *confirmed = yield store(keys, messages, confirm, repeatable=repeatable)
    except QueueFull:
        # Nothing was stored. The messages are of several callers: there may be room for some.
        stored = yield from store_apart([(keys, m) for m in messages], confirm, repeatable=repeatable)
    except LisaError as error:
        stored = [None if isinstance(error, Resharded) else error] * len(messages)
    else:
        if confirmed and confirmed[0]:
            stored = [NotConfirmed(keys.topic, [m.id], *confirmed[0]) for m, _ in zip(messages, stored, strict=False)]
    return [_result(m, each) for m, each in zip(messages, stored, strict=False)]


def _result(message: Outgoing, stored: Stored | None) -> SendResult | LisaError | None:
    return result_of(0, message.id, stored) if isinstance(stored, int) else stored
