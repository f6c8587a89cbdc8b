"""What is refused on the driver, before Spark starts any task (promise 13)."""

from typing import Any

import pytest
from pyspark.sql import types as t
from pyspark.sql.datasource import CaseInsensitiveDict

from lisa_common.errors import InvalidInput, InvalidSettings
from lisa_producer.spark import LisaDataSource
from lisa_producer.spark.rows import MESSAGE_SCHEMA
from lisa_producer.spark.snapshot import SnapshotReader
from lisa_producer.spark.stream import GroupReader

STRING, INT = t.StringType(), t.IntegerType()


def _source(**options: Any) -> LisaDataSource:
    ours = {"topic": "orders"} | options
    given = {name: str(value) for name, value in ours.items() if value is not None}
    return LisaDataSource(CaseInsensitiveDict(given))  # type: ignore[arg-type]


def _schema(**columns: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in columns.items()])


BAD_OPTIONS = {
    "unknown": ({"batchMesages": 5}, "option 'batchmesages' is not allowed: url, prefix, timeout, patience, batchM"),
    "out of bounds": ({"batchMessages": 5000}, "option batchMessages '5000' is not allowed: .* 1000"),
    "not a number": ({"patience": "long"}, "option patience 'long' is not allowed: .* number"),
    "no topic": ({"topic": None}, "without the option topic, one named topic is"),
    "bad topic": ({"topic": "a/b"}, "topic 'a/b' is not allowed: 1 to 128 letters"),
    "bad prefix": ({"prefix": "{a}"}, "prefix '{a}' is not allowed"),
    "bad url": ({"url": "http://u:hunter2@x"}, r"redis_url 'http://u:\*\*\*@x' is not allowed: redis"),
    "bad place": ({"badRows": "a b"}, "badRows 'a b' is not allowed: 1 to 128 letters"),
    "bad confirm": ({"confirmReplicas": -1}, "option confirmReplicas '-1' is not allowed: .* 0"),
}


@pytest.mark.parametrize(("options", "error"), BAD_OPTIONS.values(), ids=BAD_OPTIONS.keys())
def test_options_of_writes(options: dict[str, Any], error: str) -> None:
    """The option, its value and what is allowed are named; a password is not."""
    with pytest.raises((InvalidInput, InvalidSettings), match=error) as caught:
        _source(**options).writer(_schema(body=STRING), overwrite=False)
    assert "hunter2" not in str(caught.value)


BAD_COLUMNS: dict[str, tuple[dict[str, t.DataType], str]] = {
    "unknown": ({"when": INT}, "column 'when' is not allowed: body, topic, id, due_at, delay, ttl"),
    "text as delay": ({"delay": STRING}, "column delay 'string' is not allowed: a number of seconds"),
    "no zone": ({"due_at": t.TimestampNTZType()}, "column due_at 'timestamp_ntz' is not allowed: timestamp is"),
    "number as id": ({"id": INT}, "column id 'int' is not allowed: string is"),
    "fraction": ({"priority": t.DoubleType()}, "column priority 'double' is not allowed: a whole number is"),
    "headers": ({"headers": t.MapType(STRING, INT)}, "column headers 'map<string,int>' is not allowed: map<string,str"),
    "twice": ({"delay": INT, "DELAY": INT}, "one column delay is"),
    "years": ({"ttl": t.YearMonthIntervalType()}, "column ttl 'interval year to month' is not allowed"),
}


@pytest.mark.parametrize(("columns", "error"), BAD_COLUMNS.values(), ids=BAD_COLUMNS.keys())
def test_columns_of_writes(columns: dict[str, t.DataType], error: str) -> None:
    """The column, its type and what is allowed are named."""
    with pytest.raises(InvalidInput, match=error):
        _source().writer(_schema(body=STRING, **columns), overwrite=False)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (INT, "column body 'int' is not allowed: string, binary, or a struct is"),
        (_schema(inner=_schema(raw=t.BinaryType())), r"column body\.inner\.raw 'binary' is not allowed: what JSON hol"),
        (t.ArrayType(t.MapType(INT, INT)), r"column body\.element 'map<int,int>' is not allowed: in JSON"),
        (None, "one named body is"),
    ],
)
def test_bodies_of_writes(body: t.DataType | None, error: str) -> None:
    """A body is text, bytes, or what JSON holds, and must be there."""
    columns = {"id": STRING} if body is None else {"body": body}
    with pytest.raises(InvalidInput, match=error):
        _source().streamWriter(_schema(**columns), overwrite=False)


def test_only_appends() -> None:
    """There is nothing to overwrite in a queue."""
    with pytest.raises(InvalidInput, match="mode 'overwrite' is not allowed: append is"):
        _source().writer(_schema(body=STRING), overwrite=True)
    with pytest.raises(InvalidInput, match="outputMode 'complete' is not allowed: append or update is"):
        _source().streamWriter(_schema(body=STRING), overwrite=True)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"state": "ready"}, "option state 'ready' is not allowed: waiting, retry, garbage, with commas"),
        ({"state": "late"}, "option state 'late' is not allowed"),
        ({"partitionRows": 0}, "option partitionRows '0' is not allowed: .* 1"),
        ({"group": "g"}, "option 'group' is not allowed: url, prefix, timeout, patience, topic, state, partitionRows"),
        ({"topic": None}, "option topic None is not allowed: a value is"),
    ],
)
def test_options_of_tables(options: dict[str, Any], error: str) -> None:
    """A read of a topic as it stands names what it takes."""
    with pytest.raises(InvalidInput, match=error):
        _source(**options).reader(MESSAGE_SCHEMA)
    assert isinstance(_source(state="waiting, garbage").reader(MESSAGE_SCHEMA), SnapshotReader)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, "option group None is not allowed: a value is"),
        ({"group": "a/b"}, "group 'a/b' is not allowed: 1 to 128 letters"),
        ({"group": "g", "maxRows": 0}, "option maxRows '0' is not allowed: .* 1"),
        ({"group": "g", "state": "garbage"}, "option 'state' is not allowed: .* group, maxRows"),
    ],
)
def test_options_of_streams(options: dict[str, Any], error: str) -> None:
    """A read as a group names what it takes."""
    with pytest.raises(InvalidInput, match=error):
        _source(**options).streamReader(MESSAGE_SCHEMA)
    assert isinstance(_source(group="g").streamReader(MESSAGE_SCHEMA), GroupReader)


def test_columns_of_reads() -> None:
    """A reader may name some of the columns, as they are."""
    _source().reader(_schema(id=STRING, died_at=t.TimestampType()))
    with pytest.raises(InvalidInput, match="column 'when' is not allowed: topic, state, group, id, body"):
        _source().reader(_schema(when=STRING))
    with pytest.raises(InvalidInput, match="column body 'string' is not allowed: binary is"):
        _source().reader(_schema(body=STRING))


def test_settings_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What no option says comes from the environment, as for every producer."""
    monkeypatch.setenv("LISA_REDIS_URL", "redis://elsewhere:7000")
    monkeypatch.setenv("LISA_PREFIX", "mine")
    settings = _source(prefix="theirs").writer(_schema(body=STRING), overwrite=False)._sink.options.settings
    assert settings.redis_url.get_secret_value() == "redis://elsewhere:7000"
    assert settings.prefix == "theirs"
