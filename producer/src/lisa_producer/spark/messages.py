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
    """One row: its number in the partition, from 0, and its values by column, without nulls."""

    number: int
    values: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Number and id of the row, for errors."""
        return f"row {self.number}" + (f", id {self.values['id']!r}" if "id" in self.values else "")


def rows_of(columns: Columns, batch: pa.RecordBatch, first: int) -> Iterator[Row]:
    """The rows of a batch; the first has the number `first`."""
    read = [_values(name, column) for name, column in zip(columns.names, batch.columns, strict=True)]
    for number, values in enumerate(zip(*read, strict=True), first):
        yield Row(number, {name: value for name, value in zip(columns.names, values, strict=True) if value is not None})


def _values(name: str, column: pa.Array) -> list[Any]:
    kind = column.type
    if pa.types.is_timestamp(kind) and name == "due_at":
        # As microseconds, as Spark's years exceed Python's; `message_of` checks each row.
        return list(column.cast(pa.int64()).to_pylist())
    if pa.types.is_decimal(kind):
        column = column.cast(pa.float64())
    values = column.to_pylist()
    if pa.types.is_nested(kind):
        convert = _plain(kind)
        return [_convert(convert, value) for value in values]
    return list(values)


class _Invalid(NamedTuple):
    """Replaces an invalid value until `message_of` raises its error."""

    error: InvalidInput


def _convert(convert: Callable[[Any], Any], value: Any) -> Any:
    try:
        return None if value is None else convert(value)
    except InvalidInput as error:
        return _Invalid(error)


def message_of(row: Row, topic: str | None) -> tuple[str, Message]:
    """Topic and message of a row. Raises InvalidInput; the producer checks the values."""
    fields = dict(row.values)
    for value in fields.values():
        if isinstance(value, _Invalid):
            raise value.error
    if "body" not in fields:
        raise InvalidInput("body", None, "a value")
    named = fields.pop("topic", topic)
    if named is None:
        raise InvalidInput("topic", None, "a name, as the option topic is not given")
    due = fields.pop("due_at", None)
    return check_name("topic", named), Message(at=None if due is None else _moment(due), **fields)


def _moment(microseconds: int) -> datetime:
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        raise InvalidInput("due_at", microseconds, "microseconds since 1970 up to the year 9999") from None


def _plain(kind: pa.DataType) -> Callable[[Any], Any]:
    """A function that converts values of this type to JSON values."""
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
    # JSON contains the repr.
    if Decimal(repr(number)) != value:
        raise InvalidInput("body", value, "a decimal of at most 15 digits; cast longer ones to string")
    return number
