"""Rows of a frame as messages."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa

from lisa_common.errors import CannotCombine, InvalidInput
from lisa_common.model.key import KEY_HEADER
from lisa_common.validation import check_name, moment_ms
from lisa_producer.message import Message
from lisa_producer.spark.columns import Columns
from lisa_producer.spark.values import Invalid, values_of

__all__ = ["Row", "message_of", "moment_of", "rows_of", "topic_of"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Row(NamedTuple):
    """One row: its number in the partition, from 0, and its values by column, without nulls."""

    number: int
    values: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Number and id of the row, for errors."""
        if "id" not in self.values:
            return f"row {self.number}"
        id = self.values["id"]
        return f"row {self.number}, id {id.shown if isinstance(id, Invalid) else id!r}"


def rows_of(columns: Columns, batch: pa.RecordBatch, first: int) -> Iterator[Row]:
    """The rows of a batch; the first has the number `first`."""
    used = [(name, column) for name, column in zip(columns.names, batch.columns, strict=True) if name]
    names = [name for name, _ in used]
    for number, values in enumerate(zip(*(values_of(name, column) for name, column in used), strict=True), first):
        present = {name: value for name, value in zip(names, values, strict=True) if value is not None}
        yield tuple.__new__(Row, (number, present))


def topic_of(row: Row, columns: Columns) -> str:
    """The topic of a row all of whose values are valid; raises InvalidInput."""
    if Invalid in map(type, row.values.values()):
        raise next(value.error for value in row.values.values() if isinstance(value, Invalid))
    named = row.values.get("topic", columns.topic)
    if named is None:
        raise InvalidInput("topic", None, "a name, as the option topic is not given")
    return _check_topic(named)


@lru_cache(maxsize=1_000)
def _check_topic(named: str) -> str:
    return check_name("topic", named)


def message_of(row: Row, columns: Columns) -> tuple[str, Message]:
    """Topic and message of a row. Raises InvalidInput; the producer checks the values."""
    topic, fields = topic_of(row, columns), dict(row.values)
    for name in columns.must_be_null.intersection(fields):
        raise InvalidInput(
            name, fields[name], "null, as a send cannot set it; or set the option extraColumns to ignore"
        )
    if "body" not in fields:
        raise InvalidInput("body", None, "a value")
    fields.pop("topic", None)
    due = fields.pop("due_at", None)
    if due is not None and "delay" in fields:
        raise CannotCombine("delay", fields["delay"], "due_at")
    headers = fields.get("headers")
    # A frame may have a column `key` of its own, as those of Kafka have.
    key = headers.get(KEY_HEADER) if isinstance(headers, Mapping) else None
    return topic, Message(at=None if due is None else moment_of(due), key=key, **fields)


def moment_of(microseconds: int) -> datetime:
    """The time of a value of `due_at`; raises InvalidInput."""
    try:
        moment = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        raise InvalidInput("due_at", microseconds, "microseconds since 1970 up to the year 9999") from None
    moment_ms("due_at", moment)
    return moment
