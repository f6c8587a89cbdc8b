"""What a producer does, without I/O: flows that `client` and `aio` drive."""

from collections.abc import Sequence
from typing import Any

from redis.exceptions import RedisError

from lisa_common.call import Call, Flow, command
from lisa_common.errors import InvalidInput, LisaError, NotConfirmed
from lisa_common.keys import TopicKeys
from lisa_common.policy import Policy
from lisa_common.protocol import producing
from lisa_common.protocol.producing import CancelOutcome, Found, Outgoing, RescheduleOutcome
from lisa_common.topics import Topics
from lisa_common.values import check_id, duration_ms
from lisa_producer.message import Confirm, Message, SendOutcome, SendResult
from lisa_producer.settings import ProducerSettings

__all__ = ["Batch", "cancel", "find", "open_batch", "reschedule", "send"]

_SAFE_TO_REPEAT_MS = 300_000
"""A generated id is forgotten at ack. Repeating its send is safe only while it cannot have been acked: for longer than
any producer may be patient with one send, and its server with one reply."""


def send(
    topics: Topics, topic: str, message: Message, settings: ProducerSettings, confirm: Confirm | None
) -> Flow[SendResult]:
    """Sends one message; raises InvalidInput before anything is written."""
    keys, policy = yield from topics.resolve(topic)
    outgoing = message.outgoing(policy, producing.new_ids(1)[0])
    yield from topics.declare(topic)
    results = yield from _send(keys, [(0, outgoing)], settings, confirm)
    return results[0]


def _send(
    keys: TopicKeys, batch: Sequence[tuple[int, Outgoing]], settings: ProducerSettings, confirm: Confirm | None
) -> Flow[list[SendResult]]:
    messages = [outgoing for _, outgoing in batch]
    repeatable = settings.at_least_once or all(map(_is_far_off, {m.due for m in messages if m.generated}))
    stored = producing.send(keys, messages, repeatable=repeatable)
    if confirm is None:
        dues: list[int] = yield stored
    else:
        # On one connection, as WAIT asks about what this connection wrote.
        dues, missing = yield (stored, _confirmation(confirm))
        if missing:
            raise NotConfirmed(keys.topic, [m.id for m in messages], *missing)
    return [_result(position, outgoing, due_ms) for (position, outgoing), due_ms in zip(batch, dues, strict=True)]


def _result(position: int, outgoing: Outgoing, due_ms: int) -> SendResult:
    if due_ms:
        return SendResult(position, outgoing.id, SendOutcome.SENT, due_ms)
    # A generated id can only be known from an earlier try of this same send, whose reply was lost.
    outcome = SendOutcome.SENT if outgoing.generated else SendOutcome.DUPLICATE
    return SendResult(position, outgoing.id, outcome)


def _is_far_off(due: str) -> bool:
    return due.startswith("+") and int(due) >= _SAFE_TO_REPEAT_MS


def _confirmation(confirm: Confirm) -> Call[tuple[str, str] | None]:
    """Result: what was wanted and what was got, None when it was reached."""
    timeout_ms = duration_ms("timeout", confirm.timeout)
    wanted = f"{confirm.replicas} replicas" + (" and fsync" if confirm.fsync else "")

    def decode(reply: Any) -> tuple[str, str] | None:
        if isinstance(reply, RedisError):
            return wanted, str(reply)
        disks, replicas = reply if confirm.fsync else (0, reply)
        if replicas >= confirm.replicas and disks >= confirm.fsync:
            return None
        return wanted, f"{replicas} replicas" + (f" and {disks} local fsync" if confirm.fsync else "")

    name = ("WAITAOF", 1, confirm.replicas) if confirm.fsync else ("WAIT", confirm.replicas)
    return command(*name, timeout_ms, decode=decode, takes_errors=True)


class Batch:
    """Gathers messages up to the settings' limits; bad ones become results at once, the others when flushed."""

    def __init__(
        self,
        topics: Topics,
        topic: str,
        policy: Policy,
        settings: ProducerSettings,
        confirm: Confirm | None,
    ) -> None:
        self._topics = topics
        self._topic = topic
        self._policy = policy
        self._settings = settings
        self._confirm = confirm
        self._position = 0
        self._bytes = 0
        self._outgoing: list[tuple[int, Outgoing]] = []
        self._bad: list[SendResult] = []
        self._ids: list[str] = []
        self.broken: LisaError | None = None
        """The error that ends the whole send: the server is away, refuses, or did not confirm."""

    def add(self, message: Message) -> bool:
        """Takes a message; says whether it is time to flush."""
        if not self._ids:
            self._ids = producing.new_ids(self._settings.batch_messages)
        try:
            outgoing = message.outgoing(self._policy, self._ids.pop())
        except InvalidInput as error:
            failed = SendResult(self._position, message.id, SendOutcome.FAILED, error=error)
            self._bad.append(failed)
        else:
            self._outgoing.append((self._position, outgoing))
            self._bytes += len(outgoing.content)
        self._position += 1
        gathered = len(self._outgoing) + len(self._bad)
        return gathered >= self._settings.batch_messages or self._bytes >= self._settings.batch_bytes

    def flush(self) -> Flow[list[SendResult]]:
        """Sends what was gathered. Result: one for each message, in order; sets `broken`."""
        batch, results = self._outgoing, self._bad
        self._outgoing, self._bad, self._bytes = [], [], 0
        try:
            keys, self._policy = yield from self._topics.resolve(self._topic)
            if batch:
                yield from self._topics.declare(self._topic)
                results += yield from _send(keys, batch, self._settings, self._confirm)
        except LisaError as error:
            self.broken = error
            results += [SendResult(at, m.id, SendOutcome.FAILED, error=error) for at, m in batch]
        return sorted(results, key=lambda result: result.position)


def open_batch(topics: Topics, topic: str, settings: ProducerSettings, confirm: Confirm | None) -> Flow[Batch]:
    """An empty batch for a topic."""
    _, policy = yield from topics.resolve(topic)
    return Batch(topics, topic, policy, settings, confirm)


def cancel(topics: Topics, topic: str, id: str) -> Flow[CancelOutcome]:
    """Cancels one message."""
    check_id(id)
    keys, _ = yield from topics.resolve(topic)
    outcomes = yield producing.cancel(keys, [id])
    outcome: CancelOutcome = outcomes[0]
    return outcome


def reschedule(topics: Topics, topic: str, id: str, due: str) -> Flow[RescheduleOutcome]:
    """Gives one message another due time."""
    check_id(id)
    keys, _ = yield from topics.resolve(topic)
    [(outcome, _)] = yield producing.reschedule(keys, [(id, due)])
    rescheduled: RescheduleOutcome = outcome
    return rescheduled


def find(topics: Topics, topic: str, id: str) -> Flow[Found | None]:
    """Where one message stands."""
    check_id(id)
    keys, _ = yield from topics.resolve(topic)
    found: Found | None = yield producing.find(keys, id)
    return found
