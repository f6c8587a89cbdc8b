"""Rows of a frame as messages."""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa

from lisa_common.errors import InvalidInput
from lisa_common.validation import check_name
from lisa_producer.message import Message
from lisa_producer.spark.columns import Columns

__all__ = ["Row", "message_of", "rows_of"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Row(NamedTuple):
    """One row: where it stands in its partition, counted from 0, and what it holds by column; nulls are left out."""

    number: int
    values: Mapping[str, Any]

    @property
    def key(self) -> str:
        """What the row is known by."""
        return f"row {self.number}" + (f", id {self.values['id']!r}" if "id" in self.values else "")


def rows_of(columns: Columns, batch: pa.RecordBatch, first: int) -> Iterator[Row]:
    """The rows of a batch, the first of which has that number."""
    read = [_values(name, column) for name, column in zip(columns.names, batch.columns, strict=True)]
    for number, values in enumerate(zip(*read, strict=True), first):
        yield Row(number, {name: value for name, value in zip(columns.names, values, strict=True) if value is not None})


def _values(name: str, column: pa.Array) -> list[Any]:
    kind = column.type
    if pa.types.is_timestamp(kind) and name == "due_at":
        # As microseconds: Spark's years go beyond those of Python, and each row is to be judged for itself.
        return list(column.cast(pa.int64()).to_pylist())
    if pa.types.is_decimal(kind):
        column = column.cast(pa.float64())
    values = column.to_pylist()
    if pa.types.is_nested(kind):
        convert = _plain(kind)
        return [_tried(convert, value) for value in values]
    return list(values)


class _Refused(NamedTuple):
    """Stands for a value that cannot be written, until its row is looked at."""

    error: InvalidInput


def _tried(convert: Callable[[Any], Any], value: Any) -> Any:
    try:
        return None if value is None else convert(value)
    except InvalidInput as error:
        return _Refused(error)


def message_of(row: Row, topic: str | None) -> tuple[str, Message]:
    """Topic and message of a row; raises InvalidInput, which the producer may do as well."""
    fields = dict(row.values)
    for value in fields.values():
        if isinstance(value, _Refused):
            raise value.error
    if "body" not in fields:
        raise InvalidInput("body", None, "a value is")
    named = fields.pop("topic", topic)
    if named is None:
        raise InvalidInput("topic", None, "without the option topic, a name is")
    due = fields.pop("due_at", None)
    return check_name("topic", named), Message(at=None if due is None else _moment(due), **fields)


def _moment(microseconds: int) -> datetime:
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        raise InvalidInput("due_at", f"of {microseconds} µs since 1970", "a year up to 9999 is") from None


def _plain(kind: pa.DataType) -> Callable[[Any], Any]:
    """What makes a value of this type one that JSON holds."""
    if pa.types.is_struct(kind):
        fields = {field.name: _plain(field.type) for field in kind}
        return lambda value: {name: _or_null(read, value[name]) for name, read in fields.items()}
    if pa.types.is_map(kind):
        item = _plain(kind.item_type)
        return lambda pairs: {key: _or_null(item, value) for key, value in pairs}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = _plain(kind.value_type)
        return lambda values: [_or_null(element, value) for value in values]
    if pa.types.is_temporal(kind):
        return lambda value: value.isoformat()
    return _number if pa.types.is_decimal(kind) else _as_is


def _or_null(read: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else read(value)


def _as_is(value: Any) -> Any:
    return value


def _number(value: Decimal) -> int | float:
    number = int(value) if value == value.to_integral_value() else float(value)
    # repr is what JSON will hold.
    if Decimal(repr(number)) != value:
        raise InvalidInput("body", value, "a decimal of at most 15 digits, or one cast to string, is")
    return number
