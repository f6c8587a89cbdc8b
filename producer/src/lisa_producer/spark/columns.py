"""The columns of a frame that is written: checked once, on the driver, by their types."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import types as t

from lisa_common.errors import InvalidInput

__all__ = ["Columns", "check_columns"]

_SECONDS = (t.NumericType, t.DayTimeIntervalType)
_TEXTS = t.MapType(t.StringType(), t.StringType())

_ALLOWED: dict[str, tuple[tuple[type[t.DataType], ...], str]] = {
    "body": ((t.StringType, t.BinaryType, t.StructType, t.MapType, t.ArrayType), "string, binary, or a struct"),
    "topic": ((t.StringType,), "string"),
    "id": ((t.StringType,), "string"),
    "due_at": ((t.TimestampType,), "timestamp"),
    "delay": (_SECONDS, "a number of seconds, or a day-time interval"),
    "ttl": (_SECONDS, "a number of seconds, or a day-time interval"),
    "max_retries": ((t.IntegralType,), "a whole number"),
    "priority": ((t.IntegralType,), "a whole number"),
    "headers": ((t.MapType,), "map<string,string>"),
}
_IN_JSON = (t.StringType, t.BooleanType, t.NumericType, t.DateType, t.TimestampType, t.TimestampNTZType, t.NullType)


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns a frame has, in its order, and the topic of rows that name none."""

    names: tuple[str, ...]
    topic: str | None


def check_columns(schema: t.StructType, topic: str | None) -> Columns:
    """Raises InvalidInput for the first column that cannot be written, or that is missing."""
    names = tuple(_check(field) for field in schema.fields)
    for name in names:
        if names.count(name) > 1:
            raise InvalidInput("columns", list(names), f"one column {name} is")
    if "body" not in names:
        raise InvalidInput("columns", list(names), "with others, one named body is")
    if "topic" not in names and topic is None:
        raise InvalidInput("columns", list(names), "without the option topic, one named topic is")
    return Columns(names, topic)


def _check(field: t.StructField) -> str:
    # As Spark itself, without regard to case.
    name = field.name.lower()
    if name not in _ALLOWED:
        raise InvalidInput("column", field.name, f"{', '.join(_ALLOWED)} are")
    kinds, limit = _ALLOWED[name]
    shown = field.dataType.simpleString()
    if not isinstance(field.dataType, kinds):
        raise InvalidInput(f"column {name}", shown, f"{limit} is")
    if name == "headers" and field.dataType.simpleString() != _TEXTS.simpleString():
        raise InvalidInput("column headers", shown, f"{limit} is")
    if name == "body" and not isinstance(field.dataType, t.BinaryType):
        _check_json((name,), field.dataType)
    return name


def _check_json(path: Sequence[str], kind: t.DataType) -> None:
    if isinstance(kind, t.StructType):
        for field in kind.fields:
            _check_json((*path, field.name), field.dataType)
    elif isinstance(kind, t.ArrayType):
        _check_json((*path, "element"), kind.elementType)
    elif isinstance(kind, t.MapType):
        if not isinstance(kind.keyType, t.StringType):
            limit = "in JSON, a map with string keys is"
            raise InvalidInput(f"column {'.'.join(path)}", kind.simpleString(), limit)
        _check_json((*path, "value"), kind.valueType)
    elif not isinstance(kind, _IN_JSON):
        limit = "what JSON holds is: strings, numbers, booleans, dates, timestamps, structs, maps and arrays of them"
        raise InvalidInput(f"column {'.'.join(path)}", kind.simpleString(), limit)
