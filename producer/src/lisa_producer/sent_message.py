"""Cancelling, rescheduling and finding one sent message, without I/O: flows for both clients, with shared calls."""

import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

from lisa_common.errors import NOTHING_DONE, OutcomeUnknown
from lisa_common.model.keys import ShardKeys
from lisa_common.protocol import producing
from lisa_common.protocol.call import Call, Flow, IndependentCalls, command
from lisa_common.protocol.producing import CancelOutcome, Found, RescheduleOutcome, State
from lisa_common.protocol.registry import Topics
from lisa_common.protocol.scripts import Arg
from lisa_common.validation import check_id
from lisa_producer import layout_requests
from lisa_producer.shared_flow import Request, SharedFlow

__all__ = ["cancel", "find", "reschedule"]

T = TypeVar("T")

_Ask = Callable[[ShardKeys], SharedFlow[T | None]]
"""Asks one shard; None: it does not know the message."""

_TIME: Call[int] = command("TIME", decode=lambda reply: int(reply[0]) * 1000 + int(reply[1]) // 1000)


def cancel(topics: Topics, topic: str, id: str, patience_s: float) -> SharedFlow[CancelOutcome]:
    """Cancels one message."""

    def call(keys: ShardKeys, sent_ms: Arg) -> Call[Any]:
        return producing.cancel(keys, [id], sent_ms=sent_ms)

    change = _Change("cancel", check_id(id), patience_s, call)

    def ask(keys: ShardKeys) -> SharedFlow[CancelOutcome | None]:
        [outcome] = yield from change.ask(keys)
        return None if outcome is CancelOutcome.UNKNOWN else outcome

    return (yield from _ask_shards(topics, topic, id, ask)) or CancelOutcome.UNKNOWN


def reschedule(topics: Topics, topic: str, id: str, due: str, patience_s: float) -> SharedFlow[RescheduleOutcome]:
    """Gives one message another due time."""

    def call(keys: ShardKeys, sent_ms: Arg) -> Call[Any]:
        return producing.reschedule(keys, [(id, due)], sent_ms=sent_ms)

    change = _Change("reschedule", check_id(id), patience_s, call)

    def ask(keys: ShardKeys) -> SharedFlow[RescheduleOutcome | None]:
        [(outcome, _)] = yield from change.ask(keys)
        return None if outcome is RescheduleOutcome.UNKNOWN else outcome

    return (yield from _ask_shards(topics, topic, id, ask)) or RescheduleOutcome.UNKNOWN


def find(topics: Topics, topic: str, id: str) -> SharedFlow[Found | None]:
    """Finds one message."""
    check_id(id)

    def ask(keys: ShardKeys) -> SharedFlow[Found | None]:
        message: Found | None = yield _request("find", keys, producing.find(keys, id))
        return message

    return (yield from _ask_shards(topics, topic, id, ask))


def _request(kind: str, keys: ShardKeys, call: Call[Any]) -> Request:
    """A call for one message; those of several callers go out in one round trip."""
    return Request((kind, keys), call, _make_each, 0, call.repeatable)


def _make_each(calls: list[Call[Any]]) -> Flow[list[Any]]:
    results: list[Any] = yield IndependentCalls(calls)
    return results


class _Change:
    """A change of a message, which must not affect a later message of the same id.

    After a lost reply, the change may have been made, and the id may belong to another message. Then it is repeated
    only if the message with the id was certainly sent before the first try began, and only for that message.
    """

    def __init__(self, kind: str, id: str, patience_s: float, call: Callable[[ShardKeys, Arg], Call[Any]]) -> None:
        self._kind = kind
        self._id = id
        self._call = call
        self._patience_s = patience_s
        self._began = time.monotonic()

    def ask(self, keys: ShardKeys) -> Generator[Request, Any, Any]:
        """Makes the change in one shard; raises OutcomeUnknown if it may have been made or not."""
        sent_ms: Arg = ""
        lost: OutcomeUnknown | None = None
        while True:
            try:
                return (yield _request(self._kind, keys, self._call(keys, sent_ms)))
            except OutcomeUnknown as error:
                lost = lost or error
            except NOTHING_DONE as error:
                if lost is None:
                    raise
                raise lost from error
            if time.monotonic() - self._began >= self._patience_s:
                raise lost
            try:
                sent_ms = yield from self._read_sent_ms(keys, lost)
            except NOTHING_DONE as error:
                # The last try did nothing, but the first one may have.
                raise lost from error

    def _read_sent_ms(self, keys: ShardKeys, lost: OutcomeUnknown) -> Generator[Request, Any, int]:
        """When the message of the id was sent, 0 for a cancelled one; raises `lost` if it may be another or is gone."""
        message, now_ms = yield Request(("look", keys), self._id, lambda ids: _look_up(keys, ids))
        if message is not None and message.state is State.CANCELLED:
            return 0
        tried_ms = (time.monotonic() - self._began) * 1000
        # Without a record: some group has acked its copy, and the lost try may have removed those of others. Without a
        # message: the lost try may have cancelled it, or made it due at once. A message must be older by a whole
        # millisecond, as the server's times are cut to milliseconds.
        if message is None or message.record is None or now_ms - message.record.sent_ms - 1 < tried_ms:
            raise lost
        sent_ms: int = message.record.sent_ms
        return sent_ms


class _Snapshot(NamedTuple):
    """A message, and the server's time in ms when it was read."""

    message: Found | None
    now_ms: int


def _look_up(keys: ShardKeys, ids: list[str]) -> Flow[list[Any]]:
    # A call without a key goes where the call before it goes.
    results = yield IndependentCalls(call for id in ids for call in (producing.find(keys, id), _TIME))
    pairs = zip(results[::2], results[1::2], strict=True)
    return [next((error for error in pair if isinstance(error, Exception)), _Snapshot(*pair)) for pair in pairs]


def _ask_shards(topics: Topics, topic: str, id: str, ask: _Ask[T]) -> SharedFlow[T | None]:
    """The answer of the shard that knows the message; None when none does."""
    layout = topics.known(topic) or (yield layout_requests.resolve(topics, topic))
    asked: set[ShardKeys] = set()
    for is_cached in (True, False):
        for keys in layout.homes(id):
            if keys not in asked:
                asked.add(keys)
                if (answer := (yield from ask(keys))) is not None:
                    return answer
        if is_cached:
            # Another program may have added shards.
            layout = yield layout_requests.resolve_again(topics, topic)
    return None
