"""Changes of messages that exist, by the rows of one task: cancel, reschedule, upsert, replay, purge, nack, reject."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from lisa_common.client.connection import Connection
from lisa_common.errors import InvalidInput, LisaError
from lisa_common.model.delivery import Entry
from lisa_common.model.keys import ShardKeys, copy_of
from lisa_common.model.message import Outgoing
from lisa_common.model.sharding import by_shard
from lisa_common.protocol import consuming, managing, producing
from lisa_common.protocol.call import Call, Flow
from lisa_common.protocol.producing import UpdateOutcome
from lisa_common.protocol.registry import Topics
from lisa_common.validation import check_id, check_name
from lisa_producer.client import Producer
from lisa_producer.message import Message, due_argument, new_due
from lisa_producer.results import PartialSend, SendOutcome, SendResult
from lisa_producer.spark.columns import Columns
from lisa_producer.spark.options import WriteOptions
from lisa_producer.spark.receipts import read_receipt
from lisa_producer.spark.row_messages import Row, message_of, moment_of, topic_of
from lisa_producer.spark.row_targets import Counts, Hooks, Outcome

__all__ = ["Changes"]

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_ROWS = 1_000
"""Rows of one round trip."""
_UNKNOWN = "unknown"
_EFFECT = {
    "upsert": ("updated", "sent"),
    "cancel": ("cancelled", "delivered"),
    "reschedule": ("rescheduled",),
    "replay": ("replayed",),
    "purge": ("purged",),
    "nack": ("retry", "garbage", "dropped"),
    "reject": ("garbage", "dropped"),
}
"""The outcomes of each operation that mean an effect."""


class _Item(NamedTuple):
    """One row of a change, checked."""

    row: Row
    id: str
    group: str = ""
    due: str = ""
    died_ms: int | None = None
    message: Message | None = None
    outgoing: Outgoing | None = None
    entry: Entry | None = None
    shard: str = ""
    topic: str = ""
    """That of a receipt."""


class Changes:
    """Changes messages in the shards that may hold them, a batch of rows in a few round trips."""

    def __init__(
        self, producer: Producer, connection: Connection, options: WriteOptions, columns: Columns, hooks: Hooks
    ) -> None:
        self.counts = Counts()
        self._producer = producer
        self._options = options
        self._columns = columns
        self._hooks = hooks
        self._topics = Topics(options.settings.prefix)
        self._connection = connection
        self._collected: dict[str, list[_Item]] = {}
        self._count = 0

    def add(self, row: Row, size: int) -> None:  # noqa: ARG002 - few columns are small
        """Takes a row; changes its messages once there are enough."""
        try:
            topic, item = topic_of(row, self._columns), self._item(row)
        except InvalidInput as error:
            self._refuse(row, error)
            return
        self._collected.setdefault(item.topic or topic, []).append(item)
        self._count += 1
        if self._count >= min(_ROWS, self._hooks.most_rows or _ROWS):
            self._send()

    def flush(self) -> None:
        """Changes the messages of the last rows."""
        self._send()

    def _refuse(self, row: Row, error: LisaError) -> None:
        self.counts.bad += 1
        self._hooks.on_bad(row, error)

    def _item(self, row: Row) -> _Item:
        values, operation = row.values, self._options.operation
        if operation in ("nack", "reject"):
            return self._receipt_item(row)
        id = check_id(values.get("id"))
        if operation == "reschedule":
            due = values.get("due_at")
            return _Item(row, id, due=new_due(values.get("delay"), None if due is None else moment_of(due)))
        if operation == "upsert":
            return _Item(row, id, message=message_of(row, self._columns)[1])
        died_at = values.get("died_at")
        died_ms = None if died_at is None else -((_EPOCH - died_at) // _MILLISECOND)
        return _Item(row, id, group=self._group(row), died_ms=died_ms)

    def _receipt_item(self, row: Row) -> _Item:
        topic, group, shard, entry = read_receipt(row.values.get("receipt"))
        delay = row.values.get("delay")
        due = "" if delay is None else due_argument(delay, None)[1:]
        return _Item(row, entry.id or "", group=group, due=due, entry=entry, shard=shard, topic=topic)

    def _group(self, row: Row) -> str:
        # A dead letter of a table whose group is null expired before any group had it.
        named = row.values.get("group", self._options.group or "")
        return check_name("group", named) if named else ""

    def _send(self) -> None:
        collected, self._collected, self._count = self._collected, {}, 0
        for topic, items in collected.items():
            self._hooks.before(len(items))
            self._apply(topic, items)

    def _apply(self, topic: str, items: list[_Item]) -> None:
        if self._options.operation in ("nack", "reject"):
            flow = self._settle(topic, items)
        elif self._options.operation == "upsert":
            items = self._packed(topic, items)
            flow = self._ask(topic, items, _update)
        else:
            make = {"cancel": _cancel, "reschedule": _reschedule, "replay": _replay, "purge": _purge}
            flow = self._ask(topic, items, make[self._options.operation])
        outcomes: list[tuple[str, int] | None] = list(self._run(flow))
        if self._options.operation == "upsert":
            self._send_unknown(topic, items, outcomes)
        for item, answer in zip(items, outcomes, strict=True):
            if answer is not None:
                self._take(topic, item, *answer)

    def _take(self, topic: str, item: _Item, outcome: str, due_ms: int) -> None:
        is_done = outcome in _EFFECT[self._options.operation]
        self.counts.done += is_done
        self.counts.without_effect += not is_done
        if self._hooks.on_outcome:
            self._hooks.on_outcome(Outcome(topic, item.id, outcome, due_ms or None, item.group or None))

    def _run(self, flow: Flow[T]) -> T:
        return self._connection.run(flow, patience_s=self._options.settings.patience_s)

    def _packed(self, topic: str, items: list[_Item]) -> list[_Item]:
        """The items with their packed messages, without those that the topic's policy refuses."""
        policy, packed = self._run(self._topics.resolve(topic)).policy, []
        for item in items:
            try:
                packed.append(item._replace(outgoing=item.message.outgoing(policy, "") if item.message else None))
            except InvalidInput as error:
                self._refuse(item.row, error)
        return packed

    def _ask(
        self, topic: str, items: list[_Item], make: Callable[[ShardKeys, list[_Item]], Sequence[Call[Any]]]
    ) -> Flow[list[tuple[str, int]]]:
        """Asks for each message the shards that may hold it, until one knows it."""
        # Another task may have resharded the topic.
        layout = yield from self._topics.resolve(topic)
        outcomes = [(_UNKNOWN, 0)] * len(items)
        homes = [list(layout.homes(item.id)) for item in items]
        left = list(range(len(items)))
        while left:
            shards = by_shard(left, lambda at: homes[at].pop(0))
            calls = [make(keys, [items[at] for at in ats]) for keys, ats in shards.items()]
            replies = iter((yield [call for several in calls for call in several]))
            for ats, several in zip(shards.values(), calls, strict=True):
                answers = [answer for _ in several for answer in next(replies)]
                for at, answer in zip(ats, answers, strict=True):
                    outcomes[at] = answer
            left = [at for at in left if outcomes[at][0] == _UNKNOWN and homes[at]]
        return outcomes

    def _send_unknown(self, topic: str, items: list[_Item], outcomes: list[tuple[str, int] | None]) -> None:
        """Sends what nothing is known of; updates what an earlier row, or another task, has sent meanwhile."""
        new = [at for at, answer in enumerate(outcomes) if answer and answer[0] == UpdateOutcome.UNKNOWN]

        def take(result: SendResult) -> None:
            at = new[result.position]
            outcomes[at] = result.outcome.value, result.due_ms or 0
            if isinstance(result.error, InvalidInput):
                outcomes[at] = None
                self._refuse(items[at].row, result.error)

        messages = [message for at in new if (message := items[at].message)]
        try:
            self._producer.send_many(topic, messages, on_result=take)
        except PartialSend as error:
            raise error.__cause__ or error from None
        if known := [at for at in new if outcomes[at] == (SendOutcome.DUPLICATE, 0)]:
            answers = self._run(self._ask(topic, [items[at] for at in known], _update))
            for at, answer in zip(known, answers, strict=True):
                outcomes[at] = answer

    def _settle(self, topic: str, items: list[_Item]) -> Flow[list[tuple[str, int]]]:
        """Nacks deliveries."""
        layout = yield from self._topics.resolve(topic)
        outcomes: list[tuple[str, int]] = [("", 0)] * len(items)
        is_final = self._options.operation == "reject"
        places: dict[tuple[str, str], list[int]] = {}
        for at, item in enumerate(items):
            places.setdefault((item.shard, item.group), []).append(at)
        for (shard, group), ats in places.items():
            nacks = [
                consuming.Nack(
                    entry,
                    str(items[at].row.values.get("error", "")),
                    delay_ms=int(items[at].due) if items[at].due else None,
                    rejected=is_final,
                )
                for at in ats
                if (entry := items[at].entry)
            ]
            keys = ShardKeys(self._options.settings.prefix, topic, shard)
            answers = yield consuming.nack(keys, group, nacks, layout.policy)
            for at, (outcome, due_ms) in zip(ats, answers, strict=True):
                outcomes[at] = outcome.value, due_ms or 0
        return outcomes


def _mapped(call: Call[Any], convert: Callable[[Any], list[tuple[str, int]]]) -> Call[Any]:
    """A call whose results are outcomes and due times."""

    def decode(reply: Any) -> Any:
        result = call.decode(reply)
        if hasattr(result, "rest"):
            return result._replace(done=convert(result.done), rest=_mapped(result.rest, convert))
        return convert(result)

    return call._replace(decode=decode)


def _update(keys: ShardKeys, items: list[_Item]) -> Sequence[Call[Any]]:
    call = producing.update(keys, [item.outgoing for item in items if item.outgoing])
    return [_mapped(call, lambda answers: [(outcome.value, due_ms) for outcome, due_ms in answers])]


def _cancel(keys: ShardKeys, items: list[_Item]) -> Sequence[Call[Any]]:
    call = producing.cancel(keys, [item.id for item in items])
    return [_mapped(call, lambda outcomes: [(outcome.value, 0) for outcome in outcomes])]


def _reschedule(keys: ShardKeys, items: list[_Item]) -> Sequence[Call[Any]]:
    call = producing.reschedule(keys, [(item.id, item.due) for item in items])
    return [_mapped(call, lambda answers: [(outcome.value, due_ms) for outcome, due_ms in answers])]


def _replay(keys: ShardKeys, items: list[_Item]) -> Sequence[Call[Any]]:
    call = managing.replay(keys, [copy_of(item.group, item.id) for item in items])
    return [_mapped(call, lambda outcomes: [(outcome, 0) for outcome in outcomes])]


def _purge(keys: ShardKeys, items: list[_Item]) -> Sequence[Call[Any]]:
    # One call each, as a call counts what it purged, and does not say which.
    return [
        _mapped(
            managing.purge(keys, [copy_of(item.group, item.id)], () if item.died_ms is None else (item.died_ms,)),
            lambda count: [("purged" if count else _UNKNOWN, 0)],
        )
        for item in items
    ]
