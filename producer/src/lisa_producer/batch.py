"""Sending many messages, without I/O: flows for both clients."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from lisa_common.errors import InvalidInput, LisaError, NotConfirmed, Resharded
from lisa_common.model.keys import ShardKeys
from lisa_common.model.sharding import Layout, by_home
from lisa_common.observing.tracing import Tracing
from lisa_common.protocol import producing
from lisa_common.protocol.call import Each, Flow
from lisa_common.protocol.producing import Outgoing
from lisa_common.protocol.registry import Topics
from lisa_producer.layout_requests import refresh_after_reshard
from lisa_producer.message import Confirm, Message, SendOutcome, SendResult, check_message
from lisa_producer.observed import BatchObserver
from lisa_producer.pace import Pace
from lisa_producer.settings import ProducerSettings
from lisa_producer.shard_send import Missing, find_in_former, is_repeatable, result_of, store

__all__ = ["Batch", "Sender", "open_batch"]

_Batch = Sequence[tuple[int, Outgoing]]
"""Messages with their positions."""

_position_of = attrgetter("position")

_HARDLY_S = 0.001

_MOST_CALLS, _MOST_PARTS = 16, 8
"""So many calls of most messages, and of most bytes, may be collected, as messages of many shards go out together.

With more, the server would be idle while messages are prepared, and this program while the server stores them.
"""


class Batch:
    """Collects messages up to the settings' limits; invalid ones become results at once, the others when flushed.

    The limits fill a call to each of a few shards, if the ids spread evenly and messages are small.
    """

    def __init__(self, sender: "Sender", layout: Layout, tracing: Tracing | None) -> None:
        self._sender = sender
        self._settings = sender.settings
        self._use(layout)
        self._observer = BatchObserver(tracing, layout.topic)
        self._position = 0
        self._bytes = 0
        self._outgoing: list[tuple[int, Outgoing]] = []
        self._invalid: list[SendResult] = []
        self._ids: deque[str] = deque()
        self.is_full = False
        """Whether to flush before the next message."""
        self.filling_s = 0.0
        """Seconds that passed during flushes while messages were added."""
        self.broken: LisaError | None = None
        """The error that ends the whole send: the server is unreachable, refuses, or did not confirm."""

    @property
    def size(self) -> int:
        """Messages added since the latest flush."""
        return len(self._outgoing) + len(self._invalid)

    def add(self, message: Message) -> bool:
        """Adds a message; a value that is not a Message counts as invalid. Returns whether to flush now."""
        if not self._ids:
            self._ids.extend(producing.new_ids(self._settings.batch_messages))
        size = 0
        try:
            checked = message if type(message) is Message else check_message(message)
            outgoing = checked.outgoing(self._layout.policy, self._ids.popleft(), self._observer.context())
        except InvalidInput as error:
            failed = SendResult(self._position, getattr(message, "id", None), SendOutcome.FAILED, error=error)
            self._invalid.append(failed)
        else:
            self._outgoing.append((self._position, outgoing))
            size = len(outgoing.content)
            self._bytes += size
        self._position += 1
        # The next message is likely as large as this one, and would exceed the bytes.
        count = len(self._outgoing) + len(self._invalid)
        self.is_full = count >= self._most_messages or self._bytes + size > self._most_bytes
        return self.is_full

    def _use(self, layout: Layout) -> None:
        self._layout = layout
        shards = len(layout.shards)
        self._most_messages = self._settings.batch_messages * min(shards, _MOST_CALLS)
        self._most_bytes = self._settings.batch_bytes * min(shards, _MOST_PARTS)

    def flush(self) -> Flow[list[SendResult]]:
        """Sends the collected messages. Result: one for each, in order; sets `broken`."""
        began, span = self._clock(), self._observer.take_span()
        batch, results = self._outgoing, self._invalid
        self._outgoing, self._invalid, self._bytes, self.is_full = [], [], 0, False
        try:
            self._use((yield from self._sender.topics.resolve(self._layout.topic)))
            if batch:
                sent = yield from self._sender.send(self._layout.topic, batch, self._clock)
                self.broken = next((result.error for result in sent if result.error), None)
                results += sent
        except LisaError as error:
            self.broken = error
            results += [SendResult(at, m.id, SendOutcome.FAILED, error=error) for at, m in batch]
        self._observer.end(span, results, self._clock() - began, self.broken)
        return sorted(results, key=_position_of)

    def _clock(self) -> float:
        """Seconds, of which none pass while messages are added during a flush."""
        return time.monotonic() - self.filling_s


def open_batch(sender: "Sender", topic: str, tracing: Tracing | None = None) -> Flow[Batch]:
    """An empty batch for a topic."""
    layout = yield from sender.topics.resolve(topic)
    return Batch(sender, layout, tracing)


@dataclass(frozen=True, slots=True)
class Sender:
    """Sends a batch to all its shards at once."""

    topics: Topics
    settings: ProducerSettings
    confirm: Confirm | None
    pace: Pace

    def send(self, topic: str, batch: _Batch, clock: Callable[[], float]) -> Flow[list[SendResult]]:
        """Sends each message to its shard. Result: one for each; an error of one shard ends the whole send.

        `clock` tells seconds, without those in which this program does other work.
        """
        results: list[SendResult] = []
        layout, rerouted = (yield from self.topics.declare(topic)), False
        while batch:
            try:
                if layout.former:
                    known = yield from find_in_former(
                        layout, [m for _, m in batch], self.confirm, generated_too=rerouted
                    )
                    _check_confirmed(topic, known)
                    results += [result_of(at, m, 0) for at, m in batch if m.id in known]
                    batch = [(at, m) for at, m in batch if m.id not in known]
                sent, batch = yield from self._send_to_all(layout, batch, clock)
                results += sent
                if batch:
                    layout = yield from refresh_after_reshard(self.topics, layout)
                    # The first try of a repeated send may have come before the reshard.
                    rerouted = True
            except LisaError as error:
                return results + [SendResult(at, m.id, SendOutcome.FAILED, error=error) for at, m in batch]
        return results

    def _send_to_all(
        self, layout: Layout, batch: _Batch, clock: Callable[[], float]
    ) -> Flow[tuple[list[SendResult], _Batch]]:
        """Sends to all shards in one round trip. Result: one for each message, but those of closed shards."""
        parts = list(self._parts(layout, batch))
        stored = [
            store(
                *(keys, [m for _, m in part], self.confirm),
                repeatable=is_repeatable([m for _, m in part], layout.policy, self.settings),
            )
            for keys, part in parts
        ]
        began, began_waiting = time.monotonic(), clock()
        replies = iter((yield Each(call for calls in stored for call in calls)))
        waited_s = clock() - began_waiting
        if waited_s > _HARDLY_S or time.monotonic() - began - waited_s < _HARDLY_S:
            # Else the reply had come before this program waited for it, at a time unknown.
            self.pace.note(waited_s, len(parts))
        results: list[SendResult] = []
        rerouted: list[tuple[int, Outgoing]] = []
        for (_, part), calls in zip(parts, stored, strict=True):
            sent = _results(layout.topic, part, [next(replies) for _ in calls])
            results += sent or ()
            rerouted += part if sent is None else ()
        return results, rerouted

    def _parts(self, layout: Layout, batch: _Batch) -> Iterator[tuple[ShardKeys, _Batch]]:
        """Cuts the messages of each shard into calls within the limits, as all ids may belong to one shard."""
        batches = by_home(layout.shards, batch, lambda message: message[1].id)
        return ((keys, part) for keys, messages in batches.items() for part in self._cut(messages))

    def _cut(self, batch: _Batch) -> Iterator[_Batch]:
        """Cuts a batch so that no call blocks the server for long; a message beyond the limit of bytes goes alone."""
        begin = size = 0
        most, most_bytes = self.pace.messages, self.settings.batch_bytes
        for at, (_, message) in enumerate(batch):
            size += len(message.content)
            if at > begin and (size > most_bytes or at - begin == most):
                yield batch[begin:at]
                begin, size = at, len(message.content)
        if begin < len(batch):
            yield batch[begin:]


def _check_confirmed(topic: str, known: dict[str, Missing | None]) -> None:
    for missing in filter(None, known.values()):
        raise NotConfirmed(topic, [id for id, lacking in known.items() if lacking], *missing)


def _results(topic: str, batch: _Batch, replies: list[Any]) -> list[SendResult] | None:
    """One result for each message of a call; None if the shard is closed."""
    dues, missing = replies if len(replies) > 1 else (*replies, None)
    error = next((reply for reply in (dues, missing) if isinstance(reply, LisaError)), None)
    if isinstance(error, Resharded):
        return None
    if error is None and missing:
        error = NotConfirmed(topic, [outgoing.id for _, outgoing in batch], *missing)
    if error is not None:
        return [SendResult(at, m.id, SendOutcome.FAILED, error=error) for at, m in batch]
    return [result_of(position, outgoing, due_ms) for (position, outgoing), due_ms in zip(batch, dues, strict=True)]
