"""The columns of a written frame: checked once, on the driver, by their types."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import types as t

from lisa_common.errors import InvalidInput
from lisa_producer.spark.rows import MESSAGE_SCHEMA

__all__ = ["COLUMNS_OF", "Columns", "Operation", "check_columns"]

Operation = str
"""`send`, or what else is done with each row."""

_SECONDS = (t.NumericType, t.DayTimeIntervalType)
_TEXTS = t.MapType(t.StringType(), t.StringType())
_VARIANT: tuple[type[t.DataType], ...] = (t.VariantType,)

_ALLOWED: dict[str, tuple[tuple[type[t.DataType], ...], str]] = {
    "body": (
        (t.StringType, t.BinaryType, t.StructType, t.MapType, t.ArrayType, *_VARIANT),
        "string, binary, variant, or a struct, map or array",
    ),
    "topic": ((t.StringType,), "string"),
    "id": ((t.StringType,), "string"),
    "due_at": ((t.TimestampType,), "timestamp"),
    "delay": (_SECONDS, "a number of seconds or a day-time interval"),
    "ttl": (_SECONDS, "a number of seconds or a day-time interval"),
    "max_retries": ((t.IntegralType,), "an integer type"),
    "priority": ((t.IntegralType,), "an integer type"),
    "headers": ((t.MapType,), "map<string,string>"),
    "group": ((t.StringType,), "string"),
    "died_at": ((t.TimestampType,), "timestamp"),
    "receipt": ((t.StringType,), "string"),
    "error": ((t.StringType,), "string"),
}
_OF_MESSAGES = ("body", "topic", "id", "due_at", "delay", "ttl", "max_retries", "priority", "headers")

COLUMNS_OF: dict[Operation, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "send": (("body",), _OF_MESSAGES),
    "upsert": (("id", "body"), _OF_MESSAGES),
    "cancel": (("id",), ("topic", "id")),
    "reschedule": (("id",), ("topic", "id", "due_at", "delay")),
    "replay": (("id",), ("topic", "id", "group")),
    "purge": (("id",), ("topic", "id", "group", "died_at")),
    "nack": (("receipt",), ("topic", "id", "group", "receipt", "delay", "error")),
    "reject": (("receipt",), ("topic", "id", "group", "receipt", "error")),
}
"""For each operation the columns that it needs, and those that it uses."""

_IN_JSON: tuple[Any, ...] = (
    *(t.StringType, t.BooleanType, t.NumericType, t.DateType, t.TimestampType, t.TimestampNTZType, t.TimeType),
    *(t.NullType, *_VARIANT),
)


@dataclass(frozen=True, slots=True)
class Columns:
    """What a frame's columns are read as, in its order, empty for those that are ignored; and the default topic."""

    names: tuple[str, ...]
    topic: str | None
    must_be_null: frozenset[str] = field(default_factory=frozenset)
    """Columns of a table that a send cannot set."""


def check_columns(
    schema: t.StructType,
    topic: str | None,
    operation: Operation = "send",
    *,
    renamed: Mapping[str, str] | None = None,
    ignore_others: bool = False,
) -> Columns:
    """Reads the columns of a frame; raises InvalidInput for the first unknown, unsuitable or missing one.

    `renamed` maps names of a frame's columns, in lower case, to what they are read as.
    """
    needed, used = COLUMNS_OF[operation]
    names = tuple(map(_reader(used, renamed or {}, ignore_others=ignore_others), schema.fields))
    known = [name for name in names if name]
    for name in known:
        if known.count(name) > 1:
            raise InvalidInput("columns", known, "distinct names, as case is ignored")
    for name in needed:
        if name not in known:
            raise InvalidInput("columns", known, f"names that include {name}")
    if "topic" not in known and topic is None:
        needed_topic = "names that include topic, as the option topic is not given"
        raise InvalidInput("columns", known, f"{needed_topic} (toTable and CREATE TABLE AS SELECT do not pass it on)")
    unused = [name for name in (renamed or {}).values() if name not in known]
    if unused:
        raise InvalidInput("columns", schema.fieldNames(), f"names that include the one that is read as {unused[0]}")
    return Columns(names, topic, frozenset(known) - frozenset(used))


def _reader(
    used: tuple[str, ...], renamed: Mapping[str, str], *, ignore_others: bool
) -> Callable[[t.StructField], str]:
    """Returns a function that tells what a column is read as; "" for one that is ignored."""

    def read(column: t.StructField) -> str:
        # Spark ignores the case of column names, too.
        lower = column.name.lower()
        name = renamed.get(lower, "" if lower in renamed.values() else lower)
        if name in used:
            return _check(name, column.dataType)
        if ignore_others:
            return ""
        if name in MESSAGE_SCHEMA.names:
            # A table's columns: for INSERT, whose rows have them all, and for operations on rows of tables.
            return name if used == _OF_MESSAGES else ""
        taken = {name: lower for lower, name in renamed.items()}
        raise InvalidInput("column", column.name, f"one of {', '.join(taken.get(name, name) for name in used)}")

    return read


def _check(name: str, kind: t.DataType) -> str:
    kinds, expected = _ALLOWED[name]
    shown = kind.simpleString()
    if isinstance(kind, t.NullType) and name != "body":
        return name
    if not isinstance(kind, kinds):
        raise InvalidInput(f"column {name}", shown, expected)
    if name == "headers" and shown != _TEXTS.simpleString():
        raise InvalidInput("column headers", shown, expected)
    if name == "body" and not isinstance(kind, (t.BinaryType, *_VARIANT)):
        _check_json((name,), kind)
    return name


def _check_json(path: Sequence[str], kind: t.DataType) -> None:
    if isinstance(kind, t.StructType):
        for each in kind.fields:
            _check_json((*path, each.name), each.dataType)
    elif isinstance(kind, t.ArrayType):
        _check_json((*path, "element"), kind.elementType)
    elif isinstance(kind, t.MapType):
        if not isinstance(kind.keyType, t.StringType):
            raise InvalidInput(f"column {'.'.join(path)}", kind.simpleString(), "a map with string keys, as in JSON")
        _check_json((*path, "value"), kind.valueType)
    elif not isinstance(kind, _IN_JSON):
        expected = (
            "a JSON type: string, number, boolean, date, time, timestamp, variant, or a struct, map or array of them"
        )
        raise InvalidInput(f"column {'.'.join(path)}", kind.simpleString(), expected)
