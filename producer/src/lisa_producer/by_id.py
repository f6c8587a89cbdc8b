"""Cancelling, rescheduling and finding one message, without I/O: what `client` and `aio` drive, and may share."""

import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

from lisa_common.errors import OutcomeUnknown, Refused, Unreachable
from lisa_common.model.keys import ShardKeys
from lisa_common.protocol import producing
from lisa_common.protocol.call import Call, Each, Flow, command
from lisa_common.protocol.producing import CancelOutcome, Found, RescheduleOutcome, State
from lisa_common.protocol.registry import Topics
from lisa_common.protocol.scripts import Arg
from lisa_common.validation import check_id
from lisa_producer.core import resolving, resolving_anew
from lisa_producer.lanes import SharedFlow, Step

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

    return (yield from _where_it_is(topics, topic, id, ask)) or CancelOutcome.UNKNOWN


def reschedule(topics: Topics, topic: str, id: str, due: str, patience_s: float) -> SharedFlow[RescheduleOutcome]:
    """Gives one message another due time."""

    def call(keys: ShardKeys, sent_ms: Arg) -> Call[Any]:
        return producing.reschedule(keys, [(id, due)], sent_ms=sent_ms)

    change = _Change("reschedule", check_id(id), patience_s, call)

    def ask(keys: ShardKeys) -> SharedFlow[RescheduleOutcome | None]:
        [(outcome, _)] = yield from change.ask(keys)
        return None if outcome is RescheduleOutcome.UNKNOWN else outcome

    return (yield from _where_it_is(topics, topic, id, ask)) or RescheduleOutcome.UNKNOWN


def find(topics: Topics, topic: str, id: str) -> SharedFlow[Found | None]:
    """Where one message stands."""
    check_id(id)

    def ask(keys: ShardKeys) -> SharedFlow[Found | None]:
        found: Found | None = yield _asking("find", keys, producing.find(keys, id))
        return found

    return (yield from _where_it_is(topics, topic, id, ask))


def _asking(kind: str, keys: ShardKeys, call: Call[Any]) -> Step:
    """A call for one message, which goes out beside those of others, in one round trip."""
    return Step((kind, keys), call, _each, keys.topic, 0, call.repeatable)


def _each(calls: list[Call[Any]]) -> Flow[list[Any]]:
    results: list[Any] = yield Each(calls)
    return results


class _Change:
    """A change of the message that has an id, which must not befall a later message of the same id.

    Where the reply is lost, the change may have been made, and the id may be another message's by now. Then it is made
    again only if the message that has the id was certainly sent before the first try began, and only of that message.
    """

    def __init__(self, kind: str, id: str, patience_s: float, call: Callable[[ShardKeys, Arg], Call[Any]]) -> None:
        self._kind = kind
        self._id = id
        self._call = call
        self._patience_s = patience_s
        self._began = time.monotonic()

    def ask(self, keys: ShardKeys) -> Generator[Step, Any, Any]:
        """Makes the change in one shard; raises OutcomeUnknown where it is not known to have been made."""
        sent_ms: Arg = ""
        lost: OutcomeUnknown | None = None
        while True:
            try:
                return (yield _asking(self._kind, keys, self._call(keys, sent_ms)))
            except OutcomeUnknown as error:
                lost = lost or error
            except (Refused, Unreachable) as error:
                if lost is None:
                    raise
                raise lost from error
            if time.monotonic() - self._began >= self._patience_s:
                raise lost
            try:
                sent_ms = yield from self._look(keys, lost)
            except (Refused, Unreachable) as error:
                # That the last try did nothing says nothing of the first.
                raise lost from error

    def _look(self, keys: ShardKeys, lost: OutcomeUnknown) -> Generator[Step, Any, int]:
        """When the message was sent that has the id, 0 where none has it; raises the error of a later one's."""
        found, now_ms = yield Step(("look", keys), self._id, lambda ids: _look(keys, ids), keys.topic)
        if found is None or found.state is State.CANCELLED:
            return 0
        tried_ms = (time.monotonic() - self._began) * 1000
        # Of what is finished some group has acked its copy, and the lost try may have taken those of others. A message
        # that is there must be older by a whole millisecond, as the server's times are cut to milliseconds.
        if found.record is None or now_ms - found.record.sent_ms - 1 < tried_ms:
            raise lost
        sent_ms: int = found.record.sent_ms
        return sent_ms


class _Look(NamedTuple):
    """A message and the server's time when it was looked at, in ms."""

    found: Found | None
    now_ms: int


def _look(keys: ShardKeys, ids: list[str]) -> Flow[list[Any]]:
    # What has no key is asked where the call before it is.
    results = yield Each(call for id in ids for call in (producing.find(keys, id), _TIME))
    pairs = zip(results[::2], results[1::2], strict=True)
    return [next((error for error in pair if isinstance(error, Exception)), _Look(*pair)) for pair in pairs]


def _where_it_is(topics: Topics, topic: str, id: str, ask: _Ask[T]) -> SharedFlow[T | None]:
    """What the shard says that knows the message; None when none does."""
    layout = topics.known(topic) or (yield resolving(topics, topic))
    asked: set[ShardKeys] = set()
    for look_again in (True, False):
        for keys in layout.homes(id):
            if keys not in asked:
                asked.add(keys)
                if (answer := (yield from ask(keys))) is not None:
                    return answer
        if look_again:
            # Another program may know by now of shards that this one does not.
            layout = yield resolving_anew(topics, topic)
    return None
