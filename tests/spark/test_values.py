"""Every kind of value of Arrow's types: each row is sent as it is, or is bad by itself, and named."""

import json
import struct
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from pyspark.sql.types import VariantVal

from lisa_common.errors import InvalidInput
from lisa_common.model.policy import Policy
from lisa_common.validation import body_bytes
from lisa_producer.spark.columns import Columns
from lisa_producer.spark.row_messages import message_of, rows_of
from lisa_producer.spark.values import Invalid, to_json_value, values_of

_UTC = pa.timestamp("us", tz="UTC")


def _text(data: list[bytes | None], kind: pa.DataType = pa.string()) -> pa.Array:  # noqa: B008 - immutable
    """Text of any bytes, as Spark passes it on unchecked."""
    return pa.array(data, pa.large_binary() if kind == pa.large_string() else pa.binary()).view(kind)


def _judged(names: tuple[str, ...], *columns: pa.Array) -> list[Any]:
    """For each row its message, or its error."""
    batch = pa.RecordBatch.from_arrays(list(columns), names=list(names))
    results: list[Any] = []
    for row in rows_of(Columns(names, "orders"), batch, 0):
        try:
            results.append(message_of(row, Columns(names, "orders"))[1])
        except InvalidInput as error:
            results.append((row.key, str(error)))
    return results


BAD_TEXT = [b"good", b"\xff\xfe", None, b"also-good"]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
@pytest.mark.parametrize("column", ["body", "topic", "id"])
def test_text_that_is_not_utf_8(column: str, kind: pa.DataType) -> None:
    """Only its row is bad; the error names the row and the column, and the value as bytes."""
    others = pa.array(["x"] * 4)
    names = (column, "body") if column != "body" else ("body",)
    first, bad, _, last = _judged(names, _text(BAD_TEXT, kind), *([others] * (len(names) - 1)))
    assert not isinstance(first, tuple)
    assert not isinstance(last, tuple)
    key, error = bad
    assert key.startswith("row 1")
    assert error.startswith(f"{column} must be text in UTF-8")
    assert r"got b'\xff\xfe'" in error


def test_headers_that_are_not_utf_8() -> None:
    """Keys and values of maps are judged, too."""
    headers = pa.MapArray.from_arrays([0, 1, 2, 3], _text([b"k", b"k", b"\xff"]), _text([b"v", b"\xff", b"v"]))
    good, *bad = _judged(("body", "headers"), pa.array(["x"] * 3), headers)
    assert good.headers == [("k", "v")] or dict(good.headers) == {"k": "v"}
    assert all(error.startswith("headers must be text in UTF-8") for _, error in bad)


def test_times_beyond_the_years() -> None:
    """In a column of its own, and within a struct."""
    times = pa.array([1_000_000, 2**62, -(2**62)], pa.int64()).view(_UTC)
    good, *bad = _judged(("body", "due_at"), pa.array(["x"] * 3), times)
    assert good.at == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert all(error.startswith("due_at must be microseconds since 1970") for _, error in bad)
    good, *bad = _judged(("body",), pa.StructArray.from_arrays([times], names=["at"]))
    assert good.body == {"at": "1970-01-01T00:00:01+00:00"}
    assert all(error.startswith("body must be text in UTF-8, and times of the years 1 to 9999") for _, error in bad)
    assert "{'at': 4611686018427387904}" in bad[0][1]
    [(_, error)] = _judged(("body", "due_at"), pa.array(["x"]), pa.array([2**52], pa.int64()).view(_UTC))
    assert error.startswith("due_at must be a time from 1970 to ")


def test_days_beyond_the_years() -> None:
    """Dates within arrays."""
    days = pa.array([[0], [2**30]], pa.list_(pa.int32())).cast(pa.list_(pa.date32()))
    good, (_, error) = _judged(("body",), days)
    assert good.body == ["1970-01-01"]
    assert "got [1073741824]" in error


_LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.string(), st.none() | st.binary(max_size=4)),
    (pa.int64(), st.none() | st.integers(-(2**63), 2**63 - 1)),
    (pa.int8(), st.none() | st.integers(-128, 127)),
    (pa.float64(), st.none() | st.floats()),
    (pa.bool_(), st.none() | st.booleans()),
    (_UTC, st.none() | st.integers(-(2**63), 2**63 - 1)),
    (pa.timestamp("us"), st.none() | st.integers(-(2**63), 2**63 - 1)),
    (pa.date32(), st.none() | st.integers(-(2**31), 2**31 - 1)),
    (pa.decimal128(38, 9), st.none() | st.decimals(-(10**20), 10**20, places=9)),
    (pa.null(), st.none()),
]


def _leaf(kind: pa.DataType, values: list[Any]) -> pa.Array:
    if pa.types.is_string(kind):
        return _text(values)
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).view(kind)
    if pa.types.is_date(kind):
        return pa.array(values, pa.int32()).view(kind)
    return pa.array(values, kind)


@st.composite
def _bodies(draw: st.DrawFn) -> pa.Array:
    """Two rows of a body: a struct of leaves, plain, in an array and in a map."""
    kinds = draw(st.lists(st.sampled_from(_LEAVES), min_size=1, max_size=4))
    leaves = [_leaf(kind, draw(st.lists(values, min_size=2, max_size=2))) for kind, values in kinds]
    columns = [*leaves, pa.ListArray.from_arrays([0, 1, 2], leaves[0])]
    columns.append(pa.MapArray.from_arrays([0, 1, 2], pa.array(["k", "l"]), leaves[-1]))
    return pa.StructArray.from_arrays(columns, names=[f"f{at}" for at in range(len(columns))])


@given(body=_bodies())
@settings(max_examples=300)
def test_any_body(body: pa.Array) -> None:
    """A body becomes JSON, or an error of its row that can be stored; no other exception comes out."""
    batch = pa.RecordBatch.from_arrays([body], names=["body"])
    for row in rows_of(Columns(("body",), "orders"), batch, 0):
        error = ""
        try:
            _, message = message_of(row, Columns(("body",), "orders"))
            json.loads(body_bytes(message.body, 1_000_000))
        except InvalidInput as refused:
            error = str(refused)
            json.dumps(dict(row.values), default=to_json_value).encode("utf-8", "backslashreplace")
        assert not error or error.startswith("body must be ")


_ANY: list[tuple[str, pa.DataType, st.SearchStrategy[Any]]] = [
    ("id", pa.string(), st.none() | st.binary(max_size=4)),
    ("topic", pa.string(), st.none() | st.binary(max_size=4)),
    ("due_at", _UTC, st.none() | st.integers(-(2**63), 2**63 - 1)),
    ("delay", pa.decimal128(38, 9), st.none() | st.decimals(-(10**20), 10**20, places=9)),
    ("ttl", pa.duration("us"), st.none() | st.integers(-(2**63) + 1, 2**63 - 1)),
    ("priority", pa.int64(), st.none() | st.integers(-(2**63), 2**63 - 1)),
    ("max_retries", pa.int8(), st.none() | st.integers(-128, 127)),
]


@given(data=st.data())
@settings(max_examples=300)
def test_any_column(data: st.DataObject) -> None:
    """Any value of any column is taken, or refused by the error of its row."""
    chosen = data.draw(st.lists(st.sampled_from(_ANY), min_size=1, max_size=4, unique_by=lambda each: each[0]))
    columns = [pa.array(["x", "y"])]
    for _, kind, values in chosen:
        drawn = data.draw(st.lists(values, min_size=2, max_size=2))
        columns.append(pa.array(drawn, pa.int64()).view(kind) if pa.types.is_duration(kind) else _leaf(kind, drawn))
    for judged in _judged(("body", *(name for name, _, _ in chosen)), *columns):
        assert isinstance(judged, tuple) or judged.body in ("x", "y")


def test_invalid_values_can_be_shown() -> None:
    """An invalid value is stored with what can be shown of it."""
    value = Invalid(InvalidInput("id", b"\xff", "text"), {"inner": b"\xff"})
    assert json.loads(json.dumps(value, default=to_json_value)) == {"inner": {"base64": "/w=="}}


def test_a_key_is_a_header() -> None:
    """It names the key of the message, which a send takes; a column of that name is not one."""
    headers = pa.MapArray.from_arrays([0, 1, 2], pa.array(["lisa-key", "kind"]), pa.array(["k", "v"]))
    keyed, other = _judged(("body", "headers"), pa.array(["x"] * 2), headers)
    assert (keyed.key, other.key) == ("k", None)
    assert b'{"lisa-key":"k"}' in keyed.outgoing(Policy(), "id~").content


ZONES = ("UTC", "Z", "PST", "GMT+8", "UTC-03:30", "+01", "+01:00", "Asia/Kathmandu", "America/New_York")


@pytest.mark.parametrize("zone", ZONES)
def test_times_are_in_utc_whatever_zone_the_session_has(zone: str) -> None:
    """Spark accepts zones of which Python knows nothing; a time is the same in each."""
    kind, micros = pa.timestamp("us", tz=zone), 1_800_000_000_000_000
    value = {"at": micros, "list": [micros, None], "map": [("k", micros)]}
    struct = pa.struct([("at", kind), ("list", pa.list_(kind)), ("map", pa.map_(pa.string(), kind))])
    [message] = _judged(("body", "due_at"), pa.array([value], struct), pa.array([micros], kind))
    at = "2027-01-15T08:00:00+00:00"
    assert json.loads(body_bytes(message.body, 1_000)) == {"at": at, "list": [at, None], "map": {"k": at}}
    assert message.at == datetime(2027, 1, 15, 8, tzinfo=UTC)
    [died] = values_of("died_at", pa.array([micros], kind))
    assert died == message.at


def test_times_of_day_and_null_literals() -> None:
    """TIME is ISO 8601 in JSON; a column of type NULL is as if it were missing."""
    struct = pa.struct([("at", pa.time64("ns")), ("none", pa.null())])
    body = pa.array([{"at": 30_600_000_000_000, "none": None}], struct)
    [message] = _judged(("body", "delay", "id"), body, pa.nulls(1), pa.nulls(1))
    assert json.loads(body_bytes(message.body, 1_000)) == {"at": "08:30:00", "none": None}
    assert (message.delay, message.id) == (None, None)


def test_a_variant_that_is_no_json() -> None:
    """Not a number, and infinity, make their row bad; words that look like them do not."""
    fields = [pa.field("value", pa.binary()), pa.field("metadata", pa.binary(), metadata={"variant": "true"})]
    nan = b"\x1c" + struct.pack("<d", float("nan"))
    good = VariantVal.parseJson('{"banana": "inf"}')
    values = [{"value": nan, "metadata": b"\x01\0\0"}, {"value": good.value, "metadata": good.metadata}]
    bad, sent = _judged(("body",), pa.array(values, pa.struct(fields)))
    assert bad[1].startswith("body must be a JSON value (")
    assert sent.body == '{"banana":"inf"}'


@pytest.mark.parametrize(
    ("text", "sent"),
    [('{"n": [1, 0.5, null], "t": "x"}', {"n": [1, 0.5, None], "t": "x"}), ("null", None), ("12", 12)],
)
def test_variants_in_structs(text: str, sent: Any) -> None:
    """They are JSON values within the body."""
    variant = VariantVal.parseJson(text)
    fields = [pa.field("value", pa.binary()), pa.field("metadata", pa.binary(), metadata={"variant": "true"})]
    kind = pa.struct([("v", pa.struct(fields)), ("list", pa.list_(pa.struct(fields)))])
    value = {"value": variant.value, "metadata": variant.metadata}
    [message] = _judged(("body",), pa.array([{"v": value, "list": [value]}], kind))
    assert json.loads(body_bytes(message.body, 1_000)) == {"v": sent, "list": [sent]}
