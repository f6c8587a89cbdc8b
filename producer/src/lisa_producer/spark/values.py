"""Values of Arrow columns as Python's. A value that Python cannot represent spoils its own row only."""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql.types import VariantVal

from lisa_common.errors import InvalidInput

__all__ = ["Invalid", "is_variant", "to_json_value", "values_of"]

_UNREADABLE = (ValueError, ArithmeticError, LookupError, TypeError, pa.ArrowException)
"""What PyArrow raises for single values: text that is not UTF-8, times outside the years 1 to 9999."""


@dataclass(frozen=True, slots=True)
class Invalid:
    """Replaces an invalid value until its row is judged: the error, and what can be shown of the value."""

    error: InvalidInput
    shown: Any


def values_of(name: str, column: pa.Array) -> list[Any]:
    """The values of a column of a frame: None for null, `Invalid` for a value that cannot be sent."""
    if (kind := _in_utc(column.type)) != column.type:
        # The session's zone, of which Python may know nothing, says nothing about the time.
        column = column.cast(kind)
    read, convert = _reader(name, column.type)
    try:
        values = read(column)
    except _UNREADABLE:
        return [_read_alone(name, column[at : at + 1], read, convert) for at in range(len(column))]
    return values if convert is None else [_convert(convert, value) for value in values]


_Read = Callable[[pa.Array], list[Any]]
_Convert = Callable[[Any], Any]


def _reader(name: str, kind: pa.DataType) -> tuple[_Read, _Convert | None]:
    """How to read a column, and then how to convert each value, None for not at all."""
    if pa.types.is_timestamp(kind) and name == "due_at":
        # As microseconds, as Spark's years exceed Python's; each row is judged later.
        return lambda column: list(column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()).to_pylist()), None
    if pa.types.is_decimal(kind) and name != "body":
        return lambda column: list(column.cast(pa.float64()).to_pylist()), None
    if is_variant(kind):
        return _pylist, _text_of_variant
    return _pylist, _plain(kind) if pa.types.is_nested(kind) else None


def _in_utc(kind: pa.DataType) -> pa.DataType:
    """A type, with the zone UTC for all times that have a zone."""
    if pa.types.is_timestamp(kind) and kind.tz:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_utc(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, kind.item_field.with_type(_in_utc(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_utc(kind.value_type)))
    return kind


def _pylist(column: pa.Array) -> list[Any]:
    return list(column.to_pylist())


def is_variant(kind: pa.DataType) -> bool:
    """Whether a struct is what Spark makes of its type VARIANT."""
    return pa.types.is_struct(kind) and {field.name for field in kind} == {"value", "metadata"} and _is_marked(kind)


def _is_marked(kind: pa.DataType) -> bool:
    return (kind.field("metadata").metadata or {}).get(b"variant") == b"true"


def _read_alone(name: str, column: pa.Array, read: _Read, convert: _Convert | None) -> Any:
    try:
        [value] = read(column)
        return value if convert is None or value is None else convert(value)
    except InvalidInput as error:
        return Invalid(error, str(value))
    except _UNREADABLE as error:
        shown = _shown(column[0])
        expected = "text in UTF-8, and times of the years 1 to 9999"
        return Invalid(InvalidInput(name, shown, f"{expected} ({_first_line(error)})"), shown)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def _shown(scalar: pa.Scalar) -> Any:
    """What can be shown of any value: text that is not UTF-8 as bytes, times as numbers in their unit."""
    kind = scalar.type
    if scalar.is_valid and pa.types.is_struct(kind):
        return {field.name: _shown(scalar[at]) for at, field in enumerate(kind)}
    if scalar.is_valid and pa.types.is_nested(kind):
        # A map is a list of structs.
        return [_shown(item) for item in scalar.values]
    if scalar.is_valid and isinstance(scalar, pa.StringScalar | pa.LargeStringScalar):
        return scalar.as_buffer().to_pybytes()
    try:
        return scalar.as_py()
    except _UNREADABLE:
        return getattr(scalar, "value", None)


def _convert(convert: _Convert, value: Any) -> Any:
    try:
        return None if value is None else convert(value)
    except InvalidInput as error:
        return Invalid(error, value)
    except _UNREADABLE as error:
        return Invalid(InvalidInput("body", value, f"a JSON value ({_first_line(error)})"), value)


def _plain(kind: pa.DataType) -> _Convert:
    """A function that converts values of this type to JSON values."""
    if is_variant(kind):
        return lambda value: json.loads(_text_of_variant(value), parse_float=lambda text: _number(Decimal(text)))
    if pa.types.is_struct(kind):
        fields = {field.name: _plain(field.type) for field in kind}
        return lambda value: {name: _or_null(read, value[name]) for name, read in fields.items()}
    if pa.types.is_map(kind):
        item = _plain(kind.item_type)
        return lambda pairs: {key: _or_null(item, value) for key, value in pairs}
    if pa.types.is_nested(kind):
        element = _plain(kind.value_type)
        return lambda values: [_or_null(element, value) for value in values]
    if pa.types.is_temporal(kind):
        return lambda value: value.isoformat()
    return _number if pa.types.is_decimal(kind) else _as_is


def _text_of_variant(value: Any) -> str:
    text = str(VariantVal(value["value"], value["metadata"]).toJson())
    if "nan" in text or "inf" in text:
        # PySpark writes these numbers, which JSON has not.
        json.loads(text)
    return text


def _or_null(read: _Convert, value: Any) -> Any:
    return None if value is None else read(value)


def _as_is(value: Any) -> Any:
    return value


def _number(value: Decimal) -> int | float:
    number = int(value) if value == value.to_integral_value() else float(value)
    # JSON contains the repr.
    if Decimal(repr(number)) != value:
        raise InvalidInput("body", value, "a decimal of at most 15 digits; cast longer ones to string")
    return number


def to_json_value(value: Any) -> Any:
    """For `json.dumps(default=…)`: bytes as text or in base64, durations in seconds, times as ISO 8601."""
    if isinstance(value, Invalid):
        return value.shown
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.isoformat() if isinstance(value, date) else str(value)
