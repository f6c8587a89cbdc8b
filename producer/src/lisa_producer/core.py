"""What a producer does, without I/O: flows that `client` and `aio` drive."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from redis.exceptions import RedisError

from lisa_common.call import Call, Flow, command
from lisa_common.errors import InvalidInput, LisaError, NotConfirmed, OutcomeUnknown, Refused, Resharded, Unreachable
from lisa_common.keys import TopicKeys
from lisa_common.layout import Layout, by_shard, home
from lisa_common.policy import Policy
from lisa_common.protocol import producing
from lisa_common.protocol.producing import CancelOutcome, Found, Outgoing, RescheduleOutcome
from lisa_common.topics import Topics
from lisa_common.values import check_id, duration_ms
from lisa_producer.message import Confirm, Message, SendOutcome, SendResult
from lisa_producer.settings import ProducerSettings

__all__ = ["Batch", "cancel", "find", "open_batch", "reschedule", "send"]

T = TypeVar("T")

_SAFE_TO_REPEAT_MS = 300_000
"""A generated id is forgotten at ack. Repeating its send is safe only while it cannot have been acked: of a message due
in so long, or in longer than this producer tries, if that is more."""


_Batch = Sequence[tuple[int, Outgoing]]
"""Messages with their positions."""


def send(
    topics: Topics, topic: str, message: Message, settings: ProducerSettings, confirm: Confirm | None
) -> Flow[SendResult]:
    """Sends one message; raises InvalidInput before anything is written."""
    layout = yield from topics.resolve(topic)
    outgoing = message.outgoing(layout.policy, producing.new_ids(1)[0])
    [result] = yield from _send(topics, topic, [(0, outgoing)], settings, confirm)
    if result.error:
        raise result.error
    return result


def _send(
    topics: Topics, topic: str, batch: _Batch, settings: ProducerSettings, confirm: Confirm | None
) -> Flow[list[SendResult]]:
    """Sends to each shard what belongs there. Result: one for each; what a shard fails with ends the whole."""
    results: list[SendResult] = []
    layout = yield from topics.declare(topic)
    parts = _parts(layout, batch, settings)
    rerouted = False
    while parts:
        keys, part = parts.popleft()
        try:
            if layout.former:
                known = yield from _known_before(layout, part, confirm, generated_too=rerouted)
                results += [_result(at, m, 0) for at, m in part if m.id in known]
                part = [(at, m) for at, m in part if m.id not in known]
            sent = (yield from _send_part(keys, layout.policy, part, settings, confirm)) if part else []
            if sent is None:
                layout = yield from _layout_since(topics, layout)
                # Of a send that is repeated, the first try may have come before the reshard.
                rerouted = True
                parts = _parts(layout, [*part, *(one for _, rest in parts for one in rest)], settings)
            else:
                results += sent
        except LisaError as error:
            left = [*part, *(one for _, rest in parts for one in rest)]
            return results + [SendResult(at, m.id, SendOutcome.FAILED, error=error) for at, m in left]
    return results


def _layout_since(topics: Topics, before: Layout) -> Flow[Layout]:
    """The layout since a reshard, of which a closed shard has told."""
    try:
        layout = yield from topics.resolve_anew(before.topic)
    except (Unreachable, Refused) as error:
        # The send may have been tried before, and carried out.
        raise OutcomeUnknown(f"{before.topic} was resharded, and the registry does not answer: {error}") from error
    if layout is before:
        raise Refused(
            f"{before.topic} takes no new messages where they belong, and the registry does not say where else"
        )
    return layout


def _parts(layout: Layout, batch: _Batch, settings: ProducerSettings) -> deque[tuple[TopicKeys, _Batch]]:
    """What goes to each shard, cut into calls within the settings' limits: ids may belong to one shard, all of them."""
    if len(layout.shards) == 1:
        return deque((layout.shards[0], part) for part in _cut(batch, settings))
    of_each = by_shard(batch, lambda one: layout.home(one[1].id))
    return deque((keys, part) for keys, some in of_each.items() for part in _cut(some, settings))


def _cut(batch: _Batch, settings: ProducerSettings) -> Iterator[_Batch]:
    """Cuts a batch so that no call keeps the server for long; a message beyond the limit of bytes goes alone."""
    begin = size = 0
    for at, (_, message) in enumerate(batch):
        size += len(message.content)
        if at > begin and (size > settings.batch_bytes or at - begin == settings.batch_messages):
            yield batch[begin:at]
            begin, size = at, len(message.content)
    if begin < len(batch):
        yield batch[begin:]


def _known_before(layout: Layout, batch: _Batch, confirm: Confirm | None, *, generated_too: bool) -> Flow[set[str]]:
    """Which of these ids the shards of before a reshard know. They take no new ones from then on."""
    ids = [m.id for _, m in batch if generated_too or not m.generated]
    found: set[str] = set()
    for shards in layout.former.values():
        for keys, some in by_shard(ids, partial(home, shards)).items():
            asked = producing.close(keys, some)
            known, missing = ((yield asked), None) if confirm is None else (yield (asked, _confirmation(confirm)))
            there = [id for id, is_known in zip(some, known, strict=True) if is_known]
            if there and missing:
                raise NotConfirmed(keys.topic, there, *missing)
            found.update(there)
    return found


def _send_part(
    keys: TopicKeys, policy: Policy, batch: _Batch, settings: ProducerSettings, confirm: Confirm | None
) -> Flow[list[SendResult] | None]:
    """Sends to one shard. Result: one for each message, or None: the shard is closed."""
    messages = [outgoing for _, outgoing in batch]
    stored = producing.send(keys, messages, repeatable=_is_repeatable(messages, policy, settings))
    missing: tuple[str, str] | None = None
    try:
        if confirm is None:
            dues: list[int] = yield stored
        else:
            # On one connection, as WAIT asks about what this connection wrote.
            dues, missing = yield (stored, _confirmation(confirm))
    except Resharded:
        return None
    if missing:
        raise NotConfirmed(keys.topic, [m.id for m in messages], *missing)
    return [_result(position, outgoing, due_ms) for (position, outgoing), due_ms in zip(batch, dues, strict=True)]


def _result(position: int, outgoing: Outgoing, due_ms: int) -> SendResult:
    if due_ms:
        return SendResult(position, outgoing.id, SendOutcome.SENT, due_ms)
    # A generated id can only be known from an earlier try of this same send, whose reply was lost.
    outcome = SendOutcome.SENT if outgoing.generated else SendOutcome.DUPLICATE
    return SendResult(position, outgoing.id, outcome)


def _is_repeatable(messages: Sequence[Outgoing], policy: Policy, settings: ProducerSettings) -> bool:
    """Whether all of them are known to the server for as long as their send may be tried, or that does not matter."""
    if settings.at_least_once:
        return True
    # The last try begins within the patience; it connects, and waits for its reply.
    tried_ms = (settings.patience_s + 2 * settings.timeout_s) * 1000
    remembers = policy.dedup_window_ms >= tried_ms
    far_off_ms = max(_SAFE_TO_REPEAT_MS, tried_ms)
    exposed = {m.due for m in messages if m.generated or not remembers}
    return all(due.startswith("+") and int(due) >= far_off_ms for due in exposed)


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
    """Gathers messages up to the settings' limits; bad ones become results at once, the others when flushed.

    What is gathered is enough for a full call to each shard, where their ids spread it evenly.
    """

    def __init__(
        self,
        topics: Topics,
        layout: Layout,
        settings: ProducerSettings,
        confirm: Confirm | None,
    ) -> None:
        self._topics = topics
        self._layout = layout
        self._settings = settings
        self._confirm = confirm
        self._position = 0
        self._bytes = 0
        self._outgoing: list[tuple[int, Outgoing]] = []
        self._bad: list[SendResult] = []
        self._ids: deque[str] = deque()
        self.broken: LisaError | None = None
        """The error that ends the whole send: the server is away, refuses, or did not confirm."""

    def add(self, message: Message) -> bool:
        """Takes a message; says whether it is time to flush."""
        if not self._ids:
            self._ids.extend(producing.new_ids(self._settings.batch_messages))
        size = 0
        try:
            outgoing = message.outgoing(self._layout.policy, self._ids.popleft())
        except InvalidInput as error:
            failed = SendResult(self._position, message.id, SendOutcome.FAILED, error=error)
            self._bad.append(failed)
        else:
            self._outgoing.append((self._position, outgoing))
            size = len(outgoing.content)
            self._bytes += size
        self._position += 1
        gathered = len(self._outgoing) + len(self._bad)
        most = self._settings.batch_messages * len(self._layout.shards)
        # The next is likely to be as large as this one, and should not have to wait for a call of its own.
        return gathered >= most or self._bytes + size > self._settings.batch_bytes

    def flush(self) -> Flow[list[SendResult]]:
        """Sends what was gathered. Result: one for each message, in order; sets `broken`."""
        batch, results = self._outgoing, self._bad
        self._outgoing, self._bad, self._bytes = [], [], 0
        try:
            self._layout = yield from self._topics.resolve(self._layout.topic)
            if batch:
                sent = yield from _send(self._topics, self._layout.topic, batch, self._settings, self._confirm)
                self.broken = next((result.error for result in sent if result.error), None)
                results += sent
        except LisaError as error:
            self.broken = error
            results += [SendResult(at, m.id, SendOutcome.FAILED, error=error) for at, m in batch]
        return sorted(results, key=lambda result: result.position)


def open_batch(topics: Topics, topic: str, settings: ProducerSettings, confirm: Confirm | None) -> Flow[Batch]:
    """An empty batch for a topic."""
    layout = yield from topics.resolve(topic)
    return Batch(topics, layout, settings, confirm)


def cancel(topics: Topics, topic: str, id: str) -> Flow[CancelOutcome]:
    """Cancels one message."""
    check_id(id)

    def ask(keys: TopicKeys) -> Flow[CancelOutcome | None]:
        [outcome] = yield producing.cancel(keys, [id])
        return None if outcome is CancelOutcome.UNKNOWN else outcome

    return (yield from _where_it_is(topics, topic, id, ask)) or CancelOutcome.UNKNOWN


def reschedule(topics: Topics, topic: str, id: str, due: str) -> Flow[RescheduleOutcome]:
    """Gives one message another due time."""
    check_id(id)

    def ask(keys: TopicKeys) -> Flow[RescheduleOutcome | None]:
        [(outcome, _)] = yield producing.reschedule(keys, [(id, due)])
        return None if outcome is RescheduleOutcome.UNKNOWN else outcome

    return (yield from _where_it_is(topics, topic, id, ask)) or RescheduleOutcome.UNKNOWN


def find(topics: Topics, topic: str, id: str) -> Flow[Found | None]:
    """Where one message stands."""
    check_id(id)

    def ask(keys: TopicKeys) -> Flow[Found | None]:
        found: Found | None = yield producing.find(keys, id)
        return found

    return (yield from _where_it_is(topics, topic, id, ask))


def _where_it_is(topics: Topics, topic: str, id: str, ask: Callable[[TopicKeys], Flow[T | None]]) -> Flow[T | None]:
    """What the shard says that knows the message; None when none does."""
    layout = yield from topics.resolve(topic)
    asked: set[TopicKeys] = set()
    for look_again in (True, False):
        for keys in layout.homes(id):
            if keys not in asked:
                asked.add(keys)
                if (answer := (yield from ask(keys))) is not None:
                    return answer
        if look_again:
            # Another program may know by now of shards that this one does not.
            layout = yield from topics.resolve_anew(topic)
    return None
