"""Rows that reads yield: one for each message, with all columns or those that a reader names."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import types as t

from lisa_common.errors import InvalidInput
from lisa_common.model.delivery import Delivery
from lisa_common.model.record import Record
from lisa_common.protocol.paging import Listed
from lisa_common.protocol.producing import State
from lisa_producer.spark.receipts import receipts_of

__all__ = [
    "MESSAGE_SCHEMA",
    "UNKNOWN_REASON",
    "MessageRow",
    "batch_of_deliveries",
    "check_schema",
    "columns_of",
    "row_of_listed",
    "to_batch",
]

UNKNOWN_REASON = "unknown"
"""The reason of a dead letter without a readable failure."""


class MessageRow(NamedTuple):
    """A message as a row. Times are ms by the server's clock."""

    topic: str
    state: str
    group: str | None
    """Group of the copy; None for a waiting message, and for one that expired before any group had it."""
    id: str
    body: bytes | None = None
    headers: Mapping[str, str] | None = None
    sent_at: int | None = None
    due_at: int | None = None
    """When it is due; for a dead letter, when it was."""
    expires_at: int | None = None
    max_retries: int | None = None
    """None: the topic's."""
    priority: int | None = None
    attempts: int = 0
    """Started deliveries."""
    reason: str | None = None
    """How the last delivery ended."""
    error: str | None = None
    died_at: int | None = None
    receipt: str | None = None
    """Names the delivery of a row of a stream."""


_TIME = pa.timestamp("us", tz="UTC")
_TEXTS = pa.map_(pa.string(), pa.string())

_COLUMNS: dict[str, tuple[t.DataType, pa.DataType]] = {
    "topic": (t.StringType(), pa.string()),
    "state": (t.StringType(), pa.string()),
    "group": (t.StringType(), pa.string()),
    "id": (t.StringType(), pa.string()),
    "body": (t.BinaryType(), pa.binary()),
    "headers": (t.MapType(t.StringType(), t.StringType()), _TEXTS),
    "sent_at": (t.TimestampType(), _TIME),
    "due_at": (t.TimestampType(), _TIME),
    "expires_at": (t.TimestampType(), _TIME),
    "max_retries": (t.IntegerType(), pa.int32()),
    "priority": (t.IntegerType(), pa.int32()),
    "attempts": (t.IntegerType(), pa.int32()),
    "reason": (t.StringType(), pa.string()),
    "error": (t.StringType(), pa.string()),
    "died_at": (t.TimestampType(), _TIME),
    "receipt": (t.StringType(), pa.string()),
}

MESSAGE_SCHEMA = t.StructType([t.StructField(name, kind) for name, (kind, _) in _COLUMNS.items()])


def check_schema(schema: t.StructType) -> tuple[str, ...]:
    """Names of a reader's columns; raises InvalidInput for an unknown name or another type."""
    for field in schema.fields:
        if field.name not in _COLUMNS:
            raise InvalidInput("column", field.name, f"one of {', '.join(_COLUMNS)}")
        kind = _COLUMNS[field.name][0]
        if field.dataType != kind:
            raise InvalidInput(f"column {field.name}", field.dataType.simpleString(), kind.simpleString())
    return tuple(field.name for field in schema.fields)


def to_batch(names: tuple[str, ...], rows: Iterable[MessageRow]) -> pa.RecordBatch:
    """A batch of these columns, for Spark."""
    messages = list(rows)
    schema = pa.schema([(name, _COLUMNS[name][1]) for name in names])
    arrays = [pa.array(_values(field.name, messages), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _values(name: str, rows: list[MessageRow]) -> list[Any]:
    values = list(map(attrgetter(name), rows))
    read = _READ.get(name)
    return values if read is None else [None if value is None else read(value) for value in values]


def _microseconds(milliseconds: int) -> int:
    return milliseconds * 1000


_READ: dict[str, Callable[[Any], Any]] = {
    "headers": lambda headers: list(headers.items()),
    "sent_at": _microseconds,
    "due_at": _microseconds,
    "expires_at": _microseconds,
    "died_at": _microseconds,
}


def row_of_listed(topic: str, listed: Listed) -> MessageRow:
    """The row of a waiting, retried or dead message."""
    record, failure = listed.record, listed.failure
    dead = listed.state is State.GARBAGE
    original = record.due_ms if record else failure.due_ms if failure else None
    return MessageRow(
        topic=topic,
        state=listed.state.value,
        group=listed.group,
        id=listed.id,
        due_at=original if dead else listed.at_ms,
        attempts=failure.attempts if failure else 0,
        reason=failure.reason if failure else UNKNOWN_REASON if dead else None,
        error=listed.unreadable or (failure.error if failure else None),
        died_at=listed.at_ms if dead else None,
        **columns_of(record),
    )


def columns_of(record: Record | None) -> dict[str, Any]:
    """The columns that a record has; none without one."""
    if record is None:
        return {}
    limits = {"max_retries": record.max_retries, "priority": record.priority}
    times = {"sent_at": record.sent_ms, "expires_at": record.expires_ms}
    return {"body": record.body, "headers": record.headers} | times | limits


def batch_of_deliveries(names: tuple[str, ...], deliveries: Sequence[Delivery]) -> pa.RecordBatch:
    """A batch of these columns of messages that a group has received from one shard; at least one message."""
    schema = pa.schema([(name, _COLUMNS[name][1]) for name in names])
    arrays = [_array_of(field.name, field.type, deliveries) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array_of(name: str, kind: pa.DataType, deliveries: Sequence[Delivery]) -> pa.Array:
    read = _READ_DELIVERIES.get(name)
    if read is None:
        return pa.nulls(len(deliveries), kind)
    return pa.array(read(deliveries), kind)


_READ_DELIVERIES: dict[str, Callable[[Sequence[Delivery]], list[Any]]] = {
    "topic": lambda deliveries: [each.topic for each in deliveries],
    "state": lambda deliveries: [State.DELIVERED.value] * len(deliveries),
    "group": lambda deliveries: [each.group for each in deliveries],
    "id": lambda deliveries: [each.id for each in deliveries],
    "body": lambda deliveries: [each.body for each in deliveries],
    "headers": lambda deliveries: [list(each.headers.items()) for each in deliveries],
    "sent_at": lambda deliveries: [_microseconds(each.sent_ms) for each in deliveries],
    "due_at": lambda deliveries: [_microseconds(each.due_ms) for each in deliveries],
    "attempts": lambda deliveries: [each.attempt for each in deliveries],
    "receipt": lambda deliveries: receipts_of(
        deliveries[0].topic, deliveries[0].group, deliveries[0].shard, [each.entry for each in deliveries]
    ),
}
"""The other columns of a delivery are null."""
