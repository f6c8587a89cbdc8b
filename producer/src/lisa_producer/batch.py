"""Sending many messages, without I/O: flows for both clients."""

import time
from collections import deque
from collections.abc import Iterator, Sequence

from lisa_common.errors import InvalidInput, LisaError, NotConfirmed, Resharded
from lisa_common.model.keys import ShardKeys
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout, by_shard
from lisa_common.observing.tracing import Tracing
from lisa_common.protocol import producing
from lisa_common.protocol.call import Flow
from lisa_common.protocol.producing import Outgoing
from lisa_common.protocol.registry import Topics
from lisa_producer.layout_requests import refresh_after_reshard
from lisa_producer.message import Confirm, Message, SendOutcome, SendResult, check_message
from lisa_producer.observed import BatchObserver
from lisa_producer.settings import ProducerSettings
from lisa_producer.shard_send import Missing, find_in_former, is_repeatable, result_of, store

__all__ = ["Batch", "open_batch"]

_Batch = Sequence[tuple[int, Outgoing]]
"""Messages with their positions."""


class Batch:
    """Collects messages up to the settings' limits; invalid ones become results at once, the others when flushed.

    The limits fill a call to each shard, if the ids spread evenly.
    """

    def __init__(
        self,
        topics: Topics,
        layout: Layout,
        settings: ProducerSettings,
        confirm: Confirm | None,
        tracing: Tracing | None,
    ) -> None:
        self._topics = topics
        self._layout = layout
        self._settings = settings
        self._confirm = confirm
        self._observer = BatchObserver(tracing, layout.topic)
        self._position = 0
        self._bytes = 0
        self._outgoing: list[tuple[int, Outgoing]] = []
        self._invalid: list[SendResult] = []
        self._ids: deque[str] = deque()
        self.broken: LisaError | None = None
        """The error that ends the whole send: the server is unreachable, refuses, or did not confirm."""

    def add(self, message: Message) -> bool:
        """Adds a message; a value that is not a Message counts as invalid. Returns whether to flush now."""
        if not self._ids:
            self._ids.extend(producing.new_ids(self._settings.batch_messages))
        size = 0
        try:
            content = check_message(message)
            outgoing = content.outgoing(self._layout.policy, self._ids.popleft(), self._observer.context())
        except InvalidInput as error:
            failed = SendResult(self._position, getattr(message, "id", None), SendOutcome.FAILED, error=error)
            self._invalid.append(failed)
        else:
            self._outgoing.append((self._position, outgoing))
            size = len(outgoing.content)
            self._bytes += size
        self._position += 1
        count = len(self._outgoing) + len(self._invalid)
        limit = self._settings.batch_messages * len(self._layout.shards)
        # The next message is likely as large as this one, and would exceed the bytes of a call.
        return count >= limit or self._bytes + size > self._settings.batch_bytes

    def flush(self) -> Flow[list[SendResult]]:
        """Sends the collected messages. Result: one for each, in order; sets `broken`."""
        began = time.monotonic()
        batch, results = self._outgoing, self._invalid
        self._outgoing, self._invalid, self._bytes = [], [], 0
        try:
            self._layout = yield from self._topics.resolve(self._layout.topic)
            if batch:
                sent = yield from _send(self._topics, self._layout.topic, batch, self._settings, self._confirm)
                self.broken = next((result.error for result in sent if result.error), None)
                results += sent
        except LisaError as error:
            self.broken = error
            results += [SendResult(at, m.id, SendOutcome.FAILED, error=error) for at, m in batch]
        self._observer.end(results, time.monotonic() - began, self.broken)
        return sorted(results, key=lambda result: result.position)


def open_batch(
    topics: Topics, topic: str, settings: ProducerSettings, confirm: Confirm | None, tracing: Tracing | None = None
) -> Flow[Batch]:
    """An empty batch for a topic."""
    layout = yield from topics.resolve(topic)
    return Batch(topics, layout, settings, confirm, tracing)


def _send(
    topics: Topics, topic: str, batch: _Batch, settings: ProducerSettings, confirm: Confirm | None
) -> Flow[list[SendResult]]:
    """Sends each message to its shard. Result: one for each; an error of one shard ends the whole send."""
    results: list[SendResult] = []
    layout = yield from topics.declare(topic)
    parts = _parts(layout, batch, settings)
    rerouted = False
    while parts:
        keys, part = parts.popleft()
        try:
            if layout.former:
                known = yield from find_in_former(layout, [m for _, m in part], confirm, generated_too=rerouted)
                _check_confirmed(topic, known)
                results += [result_of(at, m, 0) for at, m in part if m.id in known]
                part = [(at, m) for at, m in part if m.id not in known]
            sent = (yield from _send_to(keys, layout.policy, part, settings, confirm)) if part else []
            if sent is None:
                layout = yield from refresh_after_reshard(topics, layout)
                # The first try of a repeated send may have come before the reshard.
                rerouted = True
                parts = _parts(layout, [*part, *(message for _, rest in parts for message in rest)], settings)
            else:
                results += sent
        except LisaError as error:
            left = [*part, *(message for _, rest in parts for message in rest)]
            return results + [SendResult(at, m.id, SendOutcome.FAILED, error=error) for at, m in left]
    return results


def _parts(layout: Layout, batch: _Batch, settings: ProducerSettings) -> deque[tuple[ShardKeys, _Batch]]:
    """Cuts the messages of each shard into calls within the settings' limits, as all ids may belong to one shard."""
    if len(layout.shards) == 1:
        return deque((layout.shards[0], part) for part in _cut(batch, settings))
    batches = by_shard(batch, lambda message: layout.home(message[1].id))
    return deque((keys, part) for keys, messages in batches.items() for part in _cut(messages, settings))


def _cut(batch: _Batch, settings: ProducerSettings) -> Iterator[_Batch]:
    """Cuts a batch so that no call blocks the server for long; a message beyond the limit of bytes goes alone."""
    begin = size = 0
    for at, (_, message) in enumerate(batch):
        size += len(message.content)
        if at > begin and (size > settings.batch_bytes or at - begin == settings.batch_messages):
            yield batch[begin:at]
            begin, size = at, len(message.content)
    if begin < len(batch):
        yield batch[begin:]


def _check_confirmed(topic: str, known: dict[str, Missing | None]) -> None:
    for missing in filter(None, known.values()):
        raise NotConfirmed(topic, [id for id, lacking in known.items() if lacking], *missing)


def _send_to(
    keys: ShardKeys, policy: Policy, batch: _Batch, settings: ProducerSettings, confirm: Confirm | None
) -> Flow[list[SendResult] | None]:
    """Sends to one shard. Result: one for each message; None if the shard is closed."""
    messages = [outgoing for _, outgoing in batch]
    repeatable = is_repeatable(messages, policy, settings)
    try:
        dues, missing = yield from store(keys, messages, confirm, repeatable=repeatable)
    except Resharded:
        return None
    if missing:
        raise NotConfirmed(keys.topic, [m.id for m in messages], *missing)
    return [result_of(position, outgoing, due_ms) for (position, outgoing), due_ms in zip(batch, dues, strict=True)]
