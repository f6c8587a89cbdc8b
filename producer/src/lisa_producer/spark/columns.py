"""The columns of a written frame: checked once, on the driver, by their types."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import types as t

from lisa_common.errors import InvalidInput

__all__ = ["Columns", "check_columns"]

_SECONDS = (t.NumericType, t.DayTimeIntervalType)
_TEXTS = t.MapType(t.StringType(), t.StringType())

_ALLOWED: dict[str, tuple[tuple[type[t.DataType], ...], str]] = {
    "body": (
        (t.StringType, t.BinaryType, t.StructType, t.MapType, t.ArrayType),
        "string, binary, or a struct, map or array",
    ),
    "topic": ((t.StringType,), "string"),
    "id": ((t.StringType,), "string"),
    "due_at": ((t.TimestampType,), "timestamp"),
    "delay": (_SECONDS, "a number of seconds or a day-time interval"),
    "ttl": (_SECONDS, "a number of seconds or a day-time interval"),
    "max_retries": ((t.IntegralType,), "an integer type"),
    "priority": ((t.IntegralType,), "an integer type"),
    "headers": ((t.MapType,), "map<string,string>"),
}
_IN_JSON = (t.StringType, t.BooleanType, t.NumericType, t.DateType, t.TimestampType, t.TimestampNTZType, t.NullType)


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of a frame's columns, in its order, and the default topic."""

    names: tuple[str, ...]
    topic: str | None


def check_columns(schema: t.StructType, topic: str | None) -> Columns:
    """Reads the columns of a frame; raises InvalidInput for the first unknown, unsuitable or missing one."""
    names = tuple(_check(field) for field in schema.fields)
    for name in names:
        if names.count(name) > 1:
            raise InvalidInput("columns", list(names), "distinct names, as case is ignored")
    if "body" not in names:
        raise InvalidInput("columns", list(names), "names that include body")
    if "topic" not in names and topic is None:
        raise InvalidInput("columns", list(names), "names that include topic, as the option topic is not given")
    return Columns(names, topic)


def _check(field: t.StructField) -> str:
    # Spark ignores the case of column names, too.
    name = field.name.lower()
    if name not in _ALLOWED:
        raise InvalidInput("column", field.name, f"one of {', '.join(_ALLOWED)}")
    kinds, expected = _ALLOWED[name]
    shown = field.dataType.simpleString()
    if not isinstance(field.dataType, kinds):
        raise InvalidInput(f"column {name}", shown, expected)
    if name == "headers" and field.dataType.simpleString() != _TEXTS.simpleString():
        raise InvalidInput("column headers", shown, expected)
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
            raise InvalidInput(f"column {'.'.join(path)}", kind.simpleString(), "a map with string keys, as in JSON")
        _check_json((*path, "value"), kind.valueType)
    elif not isinstance(kind, _IN_JSON):
        expected = "a JSON type: string, number, boolean, date, timestamp, or a struct, map or array of them"
        raise InvalidInput(f"column {'.'.join(path)}", kind.simpleString(), expected)
