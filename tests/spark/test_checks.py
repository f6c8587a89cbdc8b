"""Input that the driver refuses, before Spark starts any task (promise 13)."""

import subprocess
import sys
from typing import Any

import pytest
from pyspark.sql import types as t
from pyspark.sql.datasource import CaseInsensitiveDict

from lisa_common.errors import InvalidInput, InvalidSettings
from lisa_producer.spark import LisaDataSource
from lisa_producer.spark.options import SnapshotOptions, WriteOptions
from lisa_producer.spark.rows import MESSAGE_SCHEMA
from lisa_producer.spark.snapshot import SnapshotReader
from support.spark import READS_STREAMS

STRING, INT = t.StringType(), t.IntegerType()


def _source(**options: Any) -> LisaDataSource:
    ours = {"topic": "orders"} | options
    given = {name: str(value) for name, value in ours.items() if value is not None}
    return LisaDataSource(CaseInsensitiveDict(given))  # type: ignore[arg-type]


def _schema(**columns: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in columns.items()])


BAD_OPTIONS = {
    "unknown": (
        {"batchMesages": 5},
        "option must be one of url, prefix, timeout, patience, batchM.*; got 'batchmesages'",
    ),
    "out of bounds": ({"batchMessages": 5000}, "option batchMessages (?=.*'5000').* 1000"),
    "not a number": ({"patience": "long"}, "option patience (?=.*'long').* number"),
    "no topic": ({"topic": None}, "columns must be names that include topic, as the option topic is not given"),
    "bad topic": ({"topic": "a/b"}, "topic must be 1 to 128 letters.*; got 'a/b'"),
    "bad prefix": ({"prefix": "{a}"}, "option prefix .*'{a}'"),
    "bad url": (
        {"url": "http://u:hunter2@x"},
        r"redis_url must be a URL that begins with redis.*; got 'http://u:\*\*\*@x'",
    ),
    "bad place": ({"badRows": "a b"}, "badRows must be 1 to 128 letters.*; got 'a b'"),
    "no place": ({"outcomes": ""}, "option outcomes must be at least 1 character; got ''"),
    "one column for two": (
        {"idColumn": "x", "bodyColumn": "X"},
        "option idColumn must be a column that no other option names; got 'x'",
    ),
    "column of another name": (
        {"bodyColumn": "payload"},
        "column must be one of payload, topic, id, due_at, .*; got 'body'",
    ),
    "unconfirmed change": (
        {"operation": "cancel", "confirmReplicas": 1},
        "option confirmReplicas cannot be combined with operation=cancel",
    ),
    "batches of changes": (
        {"operation": "cancel", "batchMessages": 5},
        "option batchMessages cannot be combined with operation=cancel",
    ),
    "time to confirm nothing": (
        {"confirmTimeout": 5},
        "option confirmTimeout needs confirmReplicas or confirmFsync",
    ),
    "bad confirm": ({"confirmReplicas": -1}, "option confirmReplicas must be .* 0; got '-1'"),
}


@pytest.mark.parametrize(("options", "error"), BAD_OPTIONS.values(), ids=BAD_OPTIONS.keys())
def test_options_of_writes(options: dict[str, Any], error: str) -> None:
    """The error names the option, its value and the valid ones, without a password."""
    with pytest.raises((InvalidInput, InvalidSettings), match=error) as caught:
        _source(**options).writer(_schema(body=STRING), overwrite=False)
    assert "hunter2" not in str(caught.value)


BAD_COLUMNS: dict[str, tuple[dict[str, t.DataType], str]] = {
    "unknown": ({"when": INT}, "column must be one of body, topic, id, due_at, delay, ttl.*; got 'when'"),
    "text as delay": ({"delay": STRING}, "column delay must be a number of seconds or .*; got 'string'"),
    "no zone": ({"due_at": t.TimestampNTZType()}, "column due_at must be timestamp; got 'timestamp_ntz'"),
    "number as id": ({"id": INT}, "column id must be string; got 'int'"),
    "fraction": ({"priority": t.DoubleType()}, "column priority must be an integer type; got 'double'"),
    "headers": (
        {"headers": t.MapType(STRING, INT)},
        "column headers must be map<string,string>; got 'map<string,int>'",
    ),
    "twice": ({"delay": INT, "DELAY": INT}, "columns must be distinct names, as case is ignored"),
    "years": ({"ttl": t.YearMonthIntervalType()}, "column ttl must be .*; got 'interval year to month'"),
}


@pytest.mark.parametrize(("columns", "error"), BAD_COLUMNS.values(), ids=BAD_COLUMNS.keys())
def test_columns_of_writes(columns: dict[str, t.DataType], error: str) -> None:
    """The error names the column, its type and the valid ones."""
    with pytest.raises(InvalidInput, match=error):
        _source().writer(_schema(body=STRING, **columns), overwrite=False)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (INT, "column body must be string, binary, variant, or a struct, map or array; got 'int'"),
        (_schema(inner=_schema(raw=t.BinaryType())), r"column body\.inner\.raw must be a JSON type: .*; got 'binary'"),
        (
            t.ArrayType(t.MapType(INT, INT)),
            r"column body\.element must be a map with string keys.*; got 'map<int,int>'",
        ),
        (None, "columns must be names that include body"),
    ],
)
def test_bodies_of_writes(body: t.DataType | None, error: str) -> None:
    """A body is required, and must be text, bytes, or a JSON type."""
    columns = {"id": STRING} if body is None else {"body": body}
    with pytest.raises(InvalidInput, match=error):
        _source().streamWriter(_schema(**columns), overwrite=False)


def test_only_appends() -> None:
    """A queue cannot be overwritten."""
    with pytest.raises(InvalidInput, match="mode must be append; got 'overwrite'"):
        _source().writer(_schema(body=STRING), overwrite=True)
    with pytest.raises(InvalidInput, match="outputMode must be append; got 'complete'"):
        _source().streamWriter(_schema(body=STRING), overwrite=True)


def test_what_spark_adds() -> None:
    """Names of queries and checkpoints are options that Spark passes on; NULL literals have a type of their own."""
    added = {"queryName": "reminders", "checkpointLocation": "/checkpoint"}
    none = t.NullType()
    schema = _schema(body=STRING, id=none, due_at=none, delay=none, ttl=none, priority=none, headers=none, topic=none)
    _source(**added).streamWriter(schema, overwrite=False)
    with pytest.raises(InvalidInput, match=r"column body must be string, binary, .*; got 'void'"):
        _source().writer(_schema(body=none), overwrite=False)
    nested = _schema(at=t.TimeType(), any=t.VariantType(), none=none)
    _source().writer(_schema(body=nested), overwrite=False)


def test_only_tables_carry_options_in_their_schema() -> None:
    """A frame that is read with options, and written elsewhere, must not take them along."""
    read = _source(prefix="staging").schema()
    assert not any(field.metadata for field in read.fields)
    table = _source(prefix="staging", provider="lisa", url="redis://elsewhere:1").schema()
    assert _written(table).settings.prefix == "staging"
    assert _written(table, batchMessages=7).topic == "orders"
    for target in ({"url": "redis://elsewhere:1"}, {"prefix": "other"}, {"topic": "other"}):
        assert _written(table, **target).settings.prefix != "staging"


def _written(schema: t.StructType, **options: Any) -> WriteOptions:
    return _source(**{"topic": None} | options).writer(schema, overwrite=False)._sink.options


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (
            {"state": "expired"},
            "option state must be some of waiting, retry, garbage, ready, delivered, .*; got 'expired'",
        ),
        ({"state": "late"}, "option state must be .*; got .*'late'"),
        ({"partitionRows": 0}, "option partitionRows must be .* 1; got '0'"),
        ({"dueFrom": "soon"}, "option dueFrom must be a datetime with a time zone; got 'soon'"),
        ({"diedUntil": "2030-01-01T00:00:00"}, "option diedUntil must be a datetime with a time zone; got .*"),
        ({"ids": "a,,b"}, "id must be 1 to 200 bytes of printable text; got ''"),
        ({"group": "a b"}, "group must be .*; got 'a b'"),
        ({"limit": "0"}, "option limit must be .* 1; got '0'"),
        (
            {"maxRows": "1"},
            "option must be one of url, prefix, timeout, patience, topic, state, dueFrom, .*; got 'maxrows'",
        ),
        ({"topic": None}, "option topic must be a value; got None"),
    ],
)
def test_options_of_tables(options: dict[str, Any], error: str) -> None:
    """The error of a table read names the valid options."""
    with pytest.raises(InvalidInput, match=error):
        _source(**options).reader(MESSAGE_SCHEMA)
    assert isinstance(_source(state="waiting, garbage").reader(MESSAGE_SCHEMA), SnapshotReader)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("a, b ,a", ("a", "b")),
        ('["a,b", " c d ", "[x"]', ("a,b", " c d ", "[x")),
        ("[x", ("[x",)),
        ("[1],b", ("[1]", "b")),
    ],
)
def test_ids_of_tables(text: str, ids: tuple[str, ...]) -> None:
    """They are separated by commas, or a JSON array, as ids may have commas and blanks."""
    assert SnapshotOptions.of({"topic": "orders", "ids": text}).ids == ids


@pytest.mark.skipif(not READS_STREAMS, reason="needs PySpark 4.2")
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, "option group must be a value; got None"),
        ({"group": "a/b"}, "group must be 1 to 128 letters.*; got 'a/b'"),
        ({"group": "g", "maxRows": 0}, "option maxRows must be .* 1; got '0'"),
        ({"group": "g", "state": "garbage"}, "option must be one of .* group, startingOffsets, maxRows.*; got 'state'"),
    ],
)
def test_options_of_streams(options: dict[str, Any], error: str) -> None:
    """The error of a stream read names the valid options."""
    with pytest.raises(InvalidInput, match=error):
        _source(**options).streamReader(MESSAGE_SCHEMA)
    assert type(_source(group="g").streamReader(MESSAGE_SCHEMA)).__name__ == "GroupReader"


def test_columns_of_reads() -> None:
    """A reader may name any of the columns, with their types."""
    _source().reader(_schema(id=STRING, died_at=t.TimestampType()))
    with pytest.raises(InvalidInput, match=r"column must be one of topic, state, group, id, body.*; got 'when'"):
        _source().reader(_schema(when=STRING))
    with pytest.raises(InvalidInput, match="column body must be binary; got 'string'"):
        _source().reader(_schema(body=STRING))


def test_settings_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings without an option come from the environment, as for every producer."""
    monkeypatch.setenv("LISA_REDIS_URL", "redis://elsewhere:7000")
    monkeypatch.setenv("LISA_PREFIX", "mine")
    settings = _source(prefix="theirs").writer(_schema(body=STRING), overwrite=False)._sink.options.settings
    assert settings.redis_url.get_secret_value() == "redis://elsewhere:7000"
    assert settings.prefix == "theirs"


def test_without_what_pyspark_4_2_added() -> None:
    """All but reading streams works with PySpark 4.1, which has no limits of reads: they are imported when needed."""
    program = (
        "import sys, pyspark.sql.datasource; sys.modules['pyspark.sql.streaming.datasource'] = None\n"
        "from lisa_producer.spark import LisaDataSource\n"
        "from pyspark.sql.types import StructType\n"
        "source = LisaDataSource({'topic': 'orders', 'group': 'g'})\n"
        "source.writer(StructType().add('body', 'string'), False)\n"
        "source.streamReader(source.schema())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "LisaError: reading a stream needs PySpark 4.2 or later" in done.stderr
