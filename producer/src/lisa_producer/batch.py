"""Sending many messages, without I/O: flows for both clients."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

from lisa_common.errors import InvalidInput, LisaError, NotConfirmed, Resharded
from lisa_common.model.keys import ShardKeys
from lisa_common.model.message import Outgoing, Replacement
from lisa_common.model.sharding import Layout, by_home
from lisa_common.observing.tracing import Tracing
from lisa_common.protocol.call import Flow, IndependentCalls, cut, error_in
from lisa_common.protocol.ids import new_ids
from lisa_common.protocol.producing import repeated
from lisa_common.protocol.registry import Topics
from lisa_producer.layout_requests import refresh_after_reshard
from lisa_producer.message import Confirm, Message, check_message
from lisa_producer.observed import BatchObserver
from lisa_producer.pace import Pace
from lisa_producer.results import BatchResults, Stored
from lisa_producer.settings import ProducerSettings
from lisa_producer.shard_send import find_in_former, is_repeatable, store

__all__ = ["Batch", "Sender", "open_batch"]

_Places = Sequence[int]
"""Places of messages in their batch."""

_Part = tuple[ShardKeys, _Places]
"""Messages for one shard."""

_HARDLY_S = 0.001

_IDS_AT_ONCE = 64
"""One by one they would take three times as long."""

_MOST_CALLS, _MOST_PARTS = 16, 8
"""At most so many calls' worth of messages, and of bytes, are collected: messages of many shards go out together.

With more, the server would be idle while messages are prepared, and this program while the server stores them.
"""


class _Invalid(NamedTuple):
    """A message that was refused before it was sent."""

    id: str | None
    error: LisaError


class Batch:
    """Collects messages up to the settings' limits; invalid ones become results at once, the others when flushed.

    The limits fill a call to each of a few shards, if the ids spread evenly and messages are small.
    """

    def __init__(self, sender: "Sender", layout: Layout, tracing: Tracing | None) -> None:
        self.sender = sender
        self._settings = sender.settings
        self._use(layout)
        self._observer = BatchObserver(tracing, layout.topic)
        self._first = 0
        """The position of its first message in the whole send."""
        self._bytes = 0
        self._taken: list[Outgoing | _Invalid] = []
        self._has_invalid = False
        self._ids: deque[str] = deque()
        self.is_full = False
        """Whether to flush before the next message."""
        self.broken: LisaError | None = None
        """The error that ends the whole send: the server is unreachable, refuses, or did not confirm."""

    @property
    def size(self) -> int:
        """Messages added since the latest flush."""
        return len(self._taken)

    def add(self, message: Message) -> bool:
        """Adds a message; a value that is not a Message counts as invalid. Returns whether to flush now."""
        if not self._ids:
            self._ids.extend(new_ids(_IDS_AT_ONCE))
        try:
            checked = message if type(message) is Message else check_message(message)
            outgoing = checked.outgoing(self._layout.policy, self._ids.popleft(), self._observer.context())
        except InvalidInput as error:
            self._taken.append(_Invalid(getattr(message, "id", None), error))
            self._has_invalid = True
            size = 0
        else:
            self._taken.append(outgoing)
            size = len(outgoing.content)
            self._bytes += size
        # The next message is likely as large as this one, and would exceed the bytes.
        self.is_full = len(self._taken) >= self._most_messages or self._bytes + size > self._most_bytes
        return self.is_full

    def _use(self, layout: Layout) -> None:
        self._layout = layout
        shards = len(layout.shards)
        self._most_messages = self._settings.batch_messages * min(shards, _MOST_CALLS)
        self._most_bytes = self._settings.batch_bytes * min(shards, _MOST_PARTS)

    def flush(self) -> Flow[BatchResults]:
        """Sends the collected messages; sets `broken`."""
        sender = self.sender
        began, span = sender.clock(), self._observer.take_span()
        taken, has_invalid = self._taken, self._has_invalid
        batch: list[Any] = [each for each in taken if isinstance(each, Outgoing)] if has_invalid else taken
        self._taken, self._has_invalid, self._bytes, self.is_full = [], False, 0, False
        # Ids hold the time, by which messages of the same due time are ordered.
        self._ids.clear()
        stored: list[Stored] = []
        try:
            self._use((yield from sender.topics.resolve(self._layout.topic)))
            if batch:
                stored = yield from sender.send(self._layout.topic, batch)
                self.broken = error_in(stored)
        except LisaError as error:
            self.broken = error
            stored = [error] * len(batch)
        except BaseException as error:
            # The caller was cancelled, or interrupted.
            self._observer.abandon(span, error)
            raise
        if has_invalid:
            valid = iter(stored)
            stored = [message.error if isinstance(message, _Invalid) else next(valid) for message in taken]
        results = BatchResults(self._first, [message.id for message in taken], stored)
        self._first += len(taken)
        self._observer.end(span, results, sender.clock() - began, self.broken)
        return results

    def close(self) -> None:
        """Ends the whole send. Messages added since the latest flush are not sent."""
        self._observer.abandon(self._observer.take_span(), self.broken)


def open_batch(sender: "Sender", topic: str, tracing: Tracing | None = None) -> Flow[Batch]:
    """An empty batch for a topic."""
    layout = yield from sender.topics.resolve(topic)
    return Batch(sender, layout, tracing)


@dataclass(slots=True)
class Sender:
    """Sends the batches of one send, each to all its shards at once."""

    topics: Topics
    settings: ProducerSettings
    confirm: Confirm | None
    pace: Pace
    filling_s: float = 0.0
    """Seconds that passed during flushes while messages were added."""

    def clock(self) -> float:
        """Seconds, of which none pass while messages are added during a flush."""
        return time.monotonic() - self.filling_s

    def send(self, topic: str, batch: Sequence[Outgoing]) -> Flow[list[Stored]]:
        """Sends each message to its shard. Returns one for each; an error of one shard ends the whole send."""
        stored: list[Stored] = [0] * len(batch)
        left: _Places = range(len(batch))
        layout = yield from self.topics.declare(topic)
        began = time.monotonic()
        while left:
            if layout.former:
                left = yield from self._look_in_former(layout, batch, left, stored)
            left = yield from self._send_to_all(layout, batch, left, stored)
            if left:
                try:
                    layout = yield from refresh_after_reshard(self.topics, layout)
                except LisaError as error:
                    _put(stored, left, [error] * len(left))
                    break
                # The first try may have come before the reshard.
                batch = [repeated(message, began) for message in batch]
        return stored

    def _look_in_former(
        self, layout: Layout, batch: Sequence[Outgoing], left: _Places, stored: list[Stored]
    ) -> Flow[_Places]:
        """Puts into `stored` what became of messages in former shards. Returns the places of the others."""
        asked = _pick(batch, left)
        replacing = [message for message in asked if type(message) is Replacement]
        is_safe = is_repeatable(replacing, layout.policy, self.settings)
        found = yield from find_in_former(layout, asked, self.confirm, repeatable=is_safe)
        new: list[int] = []
        for at, result in zip(left, found, strict=True):
            if result is None:
                new.append(at)
            else:
                stored[at] = result
        return new

    def _send_to_all(
        self, layout: Layout, batch: Sequence[Outgoing], left: _Places, stored: list[Stored]
    ) -> Flow[_Places]:
        """Sends what is left to all shards, and puts into `stored` what became of it.

        Calls of one round trip may be carried out in any order, as one may be refused and tried again. So replacements
        follow the others, and a shard gets one call of them at a time, which may do only the first ones. Returns
        the places of messages whose shards are closed.
        """
        others: list[_Part] = []
        replacing: dict[ShardKeys, list[_Part]] = {}
        for keys, part in self._parts(layout, batch, left):
            is_replacing = type(batch[part[0]]) is Replacement
            (replacing.setdefault(keys, []) if is_replacing else others).append((keys, part))
        rerouted: list[int] = []
        for parts in (others, *zip_longest(*replacing.values())):
            present = [part for part in parts if part]
            while present:
                closed, present = yield from self._send_at_once(layout, batch, present, stored)
                rerouted += closed
        return rerouted

    def _send_at_once(
        self, layout: Layout, batch: Sequence[Outgoing], places: Sequence[_Part], stored: list[Stored]
    ) -> Flow[tuple[list[int], list[_Part]]]:
        """Sends these parts in one round trip, as above. Returns also the parts that are left."""
        parts = [(keys, part, _pick(batch, part)) for keys, part in places]
        calls = [
            store(keys, messages, self.confirm, repeatable=is_repeatable(messages, layout.policy, self.settings))
            for keys, _, messages in parts
        ]
        began, began_waiting = time.monotonic(), self.clock()
        replies = iter((yield IndependentCalls(call for of_part in calls for call in of_part)))
        waited_s = self.clock() - began_waiting
        if waited_s > _HARDLY_S or time.monotonic() - began - waited_s < _HARDLY_S:
            # Else the reply had come before this program waited for it, at a time unknown.
            self.pace.note(waited_s, len(parts))
        rerouted: list[int] = []
        undone: list[_Part] = []
        for (keys, part, messages), of_part in zip(parts, calls, strict=True):
            results = _results(layout.topic, messages, [next(replies) for _ in of_part])
            if results is None:
                rerouted += part
            else:
                _put(stored, part[: len(results)], results)
                if rest := part[len(results) :]:
                    undone.append((keys, rest))
        return rerouted, undone

    def _parts(self, layout: Layout, batch: Sequence[Outgoing], left: _Places) -> Iterator[_Part]:
        """Cuts the messages of each shard into calls within the limits, as all ids may belong to one shard."""
        shards = by_home(layout.shards, left, lambda at: batch[at].id)
        return (
            (keys, part)
            for keys, places in shards.items()
            for alike in _alike(batch, places)
            for part in self._cut(batch, alike)
        )

    def _cut(self, batch: Sequence[Outgoing], places: _Places) -> Iterator[_Places]:
        sizes = [len(message.content) for message in _pick(batch, places)]
        return (places[part] for part in cut(sizes, self.pace.messages, self.settings.batch_bytes))


def _pick(batch: Sequence[Outgoing], places: _Places) -> Sequence[Outgoing]:
    """The messages at places."""
    if isinstance(places, range):
        return batch[places.start : places.stop]
    return [batch[at] for at in places]


def _alike(batch: Sequence[Outgoing], places: _Places) -> Sequence[_Places]:
    """Parts the messages that replace others from the rest: no call has both."""
    if Replacement not in map(type, _pick(batch, places)):
        return (places,)
    plain = [at for at in places if type(batch[at]) is not Replacement]
    replacing = [at for at in places if type(batch[at]) is Replacement]
    return (plain, replacing) if plain else (replacing,)


def _put(stored: list[Stored], places: _Places, results: Sequence[Stored]) -> None:
    """Stores results at their places."""
    for at, result in zip(places, results, strict=True):
        stored[at] = result


def _results(topic: str, messages: Sequence[Outgoing], replies: list[Any]) -> Sequence[Stored] | None:
    """One result for each message that a call has done, or that its error concerns; None if the shard is closed."""
    dues, missing = replies if len(replies) > 1 else (*replies, None)
    error = error_in((dues, missing))
    if isinstance(error, Resharded):
        return None
    if error is None and missing:
        messages = messages[: len(dues)]
        error = NotConfirmed(topic, [message.id for message in messages], *missing)
    result: Sequence[Stored] = dues if error is None else [error] * len(messages)
    return result
