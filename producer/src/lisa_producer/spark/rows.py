"""What reads yield: one row for each message, in columns of which a reader may name some."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import pyarrow as pa
from pyspark.sql import types as t

from lisa_common.errors import InvalidInput
from lisa_common.model.delivery import Delivery
from lisa_common.protocol.paging import Listed
from lisa_common.protocol.producing import State

__all__ = ["MESSAGE_SCHEMA", "MessageRow", "check_schema", "row_of_delivery", "row_of_listed", "to_batch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRow:
    """A message as a row. Times are ms of the server's clock."""

    topic: str
    state: str
    group: str | None
    """Whose copy it is; none while it waits, and for what expired before any group had it."""
    id: str
    body: bytes | None = None
    headers: Mapping[str, str] | None = None
    sent_at: int | None = None
    due_at: int | None = None
    """When it is due; of a dead letter, when it was."""
    expires_at: int | None = None
    max_retries: int | None = None
    """None: as the topic's policy says."""
    priority: int | None = None
    attempts: int = 0
    """Deliveries that have begun."""
    reason: str | None = None
    """How the last of them ended."""
    error: str | None = None
    died_at: int | None = None


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
}

MESSAGE_SCHEMA = t.StructType([t.StructField(name, kind) for name, (kind, _) in _COLUMNS.items()])


def check_schema(schema: t.StructType) -> tuple[str, ...]:
    """The columns that a reader names, with their types as they are; raises InvalidInput for any other."""
    for field in schema.fields:
        if field.name not in _COLUMNS:
            raise InvalidInput("column", field.name, f"{', '.join(_COLUMNS)} are")
        kind = _COLUMNS[field.name][0]
        if field.dataType != kind:
            raise InvalidInput(f"column {field.name}", field.dataType.simpleString(), f"{kind.simpleString()} is")
    return tuple(field.name for field in schema.fields)


def to_batch(names: tuple[str, ...], rows: Iterable[MessageRow]) -> pa.RecordBatch:
    """Rows as Spark takes them, with these columns."""
    gathered = list(rows)
    schema = pa.schema([(name, _COLUMNS[name][1]) for name in names])
    arrays = [pa.array(_values(field.name, gathered), field.type) for field in schema]
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


def row_of_listed(topic: str, found: Listed) -> MessageRow:
    """The row of a message that waits, is to be retried, or is dead."""
    record, failure = found.record, found.failure
    dead = found.state is State.GARBAGE
    original = record.due_ms if record else failure.due_ms if failure else None
    return MessageRow(
        topic=topic,
        state=found.state.value,
        group=found.group,
        id=found.id,
        body=record.body if record else None,
        headers=record.headers if record else None,
        sent_at=record.sent_ms if record else None,
        due_at=original if dead else found.at_ms,
        expires_at=record.expires_ms if record else None,
        max_retries=record.max_retries if record else None,
        priority=record.priority if record else None,
        attempts=failure.attempts if failure else 0,
        reason=failure.reason if failure else "unknown" if dead else None,
        error=found.unreadable or (failure.error if failure else None),
        died_at=found.at_ms if dead else None,
    )


def row_of_delivery(delivery: Delivery) -> MessageRow:
    """The row of a message that a group reads."""
    return MessageRow(
        topic=delivery.topic,
        state=State.DELIVERED.value,
        group=delivery.group,
        id=delivery.id,
        body=delivery.body,
        headers=delivery.headers,
        sent_at=delivery.sent_ms,
        due_at=delivery.due_ms,
        attempts=delivery.attempt,
    )
