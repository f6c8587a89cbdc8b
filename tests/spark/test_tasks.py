"""One task of the sink sends its rows, sets them aside, or fails."""

import asyncio
import json
import pickle
import traceback
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis

from lisa_common.client.connection import Connection
from lisa_common.errors import LisaError, Refused, Unreachable
from lisa_common.model.keys import ShardKeys, topics_key
from lisa_common.model.policy import Policy
from lisa_producer.spark.bad_rows import BadRow
from lisa_producer.spark.columns import Columns
from lisa_producer.spark.line_files import LineFile
from lisa_producer.spark.options import WriteOptions
from lisa_producer.spark.writer import BatchWriter, Sink, Written
from lisa_producer.spark.written_batches import BatchWrite, Digest, WrittenBatches
from support import Server
from support.proxy import Proxy

OwnServer = Callable[..., Server]


@pytest.fixture
def write(redis_url: str, prefix: str) -> Callable[..., Written]:
    """Runs a task on a batch of rows, given by columns."""

    def write(columns: dict[str, list[Any]], *, run: str = "one", **options: Any) -> Written:
        given = {"url": redis_url, "prefix": prefix, "topic": "orders"} | options
        sink = Sink(
            WriteOptions.of({name.lower(): str(value) for name, value in given.items()}),
            Columns(tuple(columns), "orders"),
            run=run,
        )
        batch = pa.RecordBatch.from_pydict(columns)
        # As Spark hands it to its tasks.
        writer: BatchWriter = pickle.loads(pickle.dumps(BatchWriter(sink)))  # noqa: S301 - our own bytes
        return writer.write(iter([batch]))

    return write


def _counts(written: Written) -> tuple[int, int, int, int]:
    return written.rows, written.sent, written.duplicates, written.bad


def test_counts(write: Callable[..., Written]) -> None:
    """Rows are sent once; in a repeated task, rows with ids are duplicates."""
    columns: dict[str, list[Any]] = {"id": ["a", "b", None], "body": ["x", "y", "z"]}
    assert _counts(write(columns)) == (3, 3, 0, 0)
    assert _counts(write(columns)) == (3, 1, 2, 0)
    assert _counts(write({"body": []})) == (0, 0, 0, 0)


BAD = {
    "null body": ({"body": [None]}, r"row 1, id 'b' of partition 0 cannot be sent: body must be a value; got None"),
    "negative": ({"body": ["x"], "delay": [-1.0]}, "delay must be seconds or a timedelta .*; got -1.0"),
    "not a number": ({"body": ["x"], "delay": [float("nan")]}, "delay must be seconds .*; got nan"),
    "interval": ({"body": ["x"], "delay": [timedelta(days=9999)]}, "delay must be .* 10 years; got datetime"),
    "priority": ({"body": ["x"], "priority": [256]}, "priority must be a whole number from 0 to 255; got 256"),
    "retries": ({"body": ["x"], "max_retries": [-1]}, "max_retries must be .*; got -1"),
    "topic": ({"body": ["x"], "topic": ["a/b"]}, "topic must be .*; got 'a/b'"),
    "too large": ({"body": ["x" * 1_048_577]}, "body must be at most 1048576 bytes; got 1048577 bytes"),
    "digits": (
        {"body": [{"n": Decimal("0.1234567890123456789")}]},
        "body must be a decimal of at most 15 digits; .* got Decimal",
    ),
    "in JSON": ({"body": [{"n": float("inf")}]}, "body must be bytes, text or a JSON value .*; got {'n': inf}"),
}


@pytest.mark.parametrize(("bad", "error"), BAD.values(), ids=BAD.keys())
def test_a_bad_row_fails_the_task(
    write: Callable[..., Written], tmp_path: Path, bad: dict[str, list[Any]], error: str
) -> None:
    """The error has the row's number, id and reason. With badRows the row is counted, and the others are sent."""
    good: dict[str, Any] = {"body": "x", "delay": 1.0, "priority": 1, "max_retries": 1, "topic": "orders"}
    if isinstance(bad["body"][0], dict):
        good["body"] = {"n": type(bad["body"][0]["n"])(1)}
    if isinstance(bad.get("delay", [0])[0], timedelta):
        good["delay"] = timedelta(seconds=1)
    columns = {"id": ["a", "b"], **{name: [good[name], *value] for name, value in bad.items()}}
    with pytest.raises(BadRow, match=error):
        write(columns)
    done = write(columns, badRows=f"{tmp_path}/aside")
    # The good row may have been sent before the bad one was found.
    assert (done.rows, done.sent + done.duplicates, done.bad) == (2, 1, 1)


@pytest.mark.parametrize("name", ["", "second"], ids=["sink of a query", "foreachBatch"])
def test_what_a_query_has_written_is_forgotten(client: redis.Redis, redis_url: str, prefix: str, name: str) -> None:
    """Of each batch before the last 100; and all of it expires."""
    options = WriteOptions.of({"url": redis_url, "prefix": prefix, "topic": "orders", "rememberdays": "1"})
    keys, digest = ShardKeys(prefix, "orders"), Digest()
    with Connection(redis_url) as connection:
        kept = WrittenBatches(options, connection)
        for batch in range(102):
            write = BatchWrite("q", batch, name, "application/7")
            if name:
                write = kept.claim(write, "owner")
                assert client.ttl(keys.query(write.job)) > 0
            kept.keep(write, 3, digest)
            kept.end(write, "owner", {"rows": 0})
            assert client.ttl(keys.query(write.job)) > 0
        assert kept.read(write, 3) == str(digest)
    assert len(client.keys(keys.query("*"))) == 100


def test_writes_alike_of_a_micro_batch(redis_url: str, prefix: str) -> None:
    """They are numbered in their order, in each execution; one that begins before the other's end is refused."""
    options = WriteOptions.of({"url": redis_url, "prefix": prefix, "topic": "orders", "rememberdays": "1"})
    with Connection(redis_url) as connection:
        kept = WrittenBatches(options, connection)
        for execution in ("application/7", "application/9"):
            write = BatchWrite("q", 3, "digest", execution)
            first = kept.claim(write, "first")
            assert kept.claim(write, "first") == first
            with pytest.raises(
                LisaError, match="cannot begin before the one like it has ended; give each of them a name"
            ):
                kept.claim(write, "second")
            kept.end(first, "first", {})
            second = kept.claim(write, "second")
            assert (first.number, second.number) == (0, 1)
            # It fails, and the function writes again. A task of either that is still running changes nothing.
            kept.fail("second")
            third = kept.claim(write, "third")
            assert (third.number, third.name) == (1, second.name)
            assert [kept.claim(write, owner) for owner in ("first", "second")] == [first, second]
            kept.fail("third")
            fourth = kept.claim(write, "fourth")
            kept.end(fourth, "fourth", {})
            assert (fourth.number, kept.claim(write, "fifth").number) == (1, 2)
            assert len({write.name, second.name, second._replace(digest="other").name}) == 3


def test_both_times(write: Callable[..., Written]) -> None:
    """A row is due at a time, or after a delay."""
    due = pa.array([1_800_000_000_000_000], pa.timestamp("us", tz="UTC"))
    with pytest.raises(BadRow, match="delay cannot be combined with due_at"):
        write({"body": ["x"], "due_at": due, "delay": [5]})


def test_set_aside_in_a_directory(write: Callable[..., Written], tmp_path: Path) -> None:
    """One line of JSON for each bad row, with all its values, in a file that a repeated task replaces."""
    columns: dict[str, list[Any]] = {
        "id": ["good", "bad\n", "worse"],
        "body": [b"x", b"\xff\x00", None],
        "delay": [timedelta(seconds=60)] * 3,
    }
    place = tmp_path / "some" / "where"
    done = write(columns, badRows=f"{place}/")
    assert _counts(done) == (3, 1, 0, 2)
    (file,) = place.iterdir()
    assert done.bad_file == str(file)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    first, second = sorted(lines, key=lambda line: line["row"])
    assert first["error"].endswith("; got 'bad\\n'")
    assert {name: first[name] for name in ("row", "id", "body", "delay")} == {
        "row": 1,
        "id": "bad\n",
        "body": {"base64": "/wA="},
        "delay": 60.0,
    }
    assert second["error"].startswith("body must be a value")
    assert (second["row"], "body" in second) == (2, False)
    assert write({"body": ["x"]}, badRows=str(place)).bad_file is None
    assert list(place.iterdir()) == []


def test_a_bad_row_is_json_whatever_its_numbers(write: Callable[..., Written], tmp_path: Path) -> None:
    """Not a number, and infinity, are text there."""
    done = write({"body": ["NaN", "x"], "delay": [float("nan"), float("-inf")]}, badRows=f"{tmp_path}/")
    lines = [
        json.loads(line, parse_constant=pytest.fail) for line in Path(done.bad_file or "").read_text().splitlines()
    ]
    assert [(line["body"], line["delay"]) for line in lines] == [("NaN", "NaN"), ("x", "-Infinity")]


def test_twins_write_different_files_at_the_same_time(tmp_path: Path) -> None:
    """Both have the same name; the last one stays."""
    first = LineFile(str(tmp_path), "part.jsonl")
    twin = LineFile(str(tmp_path), "part.jsonl")
    for file in (first, twin):
        file.write(b"1")
        assert len(list(tmp_path.iterdir())) == (1 if file is first else 2)
    for file in (first, twin):
        file.close()
    assert [file.read_text() for file in tmp_path.iterdir()] == ["1\n"]


def test_set_aside_in_a_topic(write: Callable[..., Written], client: redis.Redis, prefix: str) -> None:
    """One message for each bad row, which a repeated task does not send again."""
    columns: dict[str, list[Any]] = {"id": ["a~", "b"], "body": ["x", "y"]}
    assert _counts(write(columns, badRows="bad-orders")) == (2, 1, 0, 1)
    assert _counts(write(columns, badRows="bad-orders")) == (2, 0, 1, 1)
    ((_, record),) = client.hgetall(ShardKeys(prefix, "bad-orders").of("messages")).items()  # type: ignore[union-attr]
    body = json.loads(record[14:])
    assert (body["id"], body["body"]) == ("a~", "x")
    assert body["error"].endswith("; got 'a~'")


def test_rows_alike_are_set_aside_each(write: Callable[..., Written], client: redis.Redis, prefix: str) -> None:
    """Each row of each run is set aside; a repeated task with another order of rows adds none."""
    columns: dict[str, list[Any]] = {"id": ["a~", "b~", "a~", "a~"], "body": ["x"] * 4}
    again = {name: values[::-1] for name, values in columns.items()}
    for run, rows, count in (("one", columns, 4), ("one", again, 4), ("two", columns, 8)):
        assert write(rows, run=run, badRows="bad-orders").bad == 4
        assert client.xlen(ShardKeys(prefix, "bad-orders").of("ready")) == count


def test_a_row_too_large_for_the_topic_of_bad_rows(
    write: Callable[..., Written], client: redis.Redis, prefix: str
) -> None:
    """It goes there cut, and says so; a directory gets all of it."""
    done = write({"id": ["big"], "body": ["x" * 2_000_000]}, badRows="bad-orders")
    assert _counts(done) == (1, 0, 0, 1)
    ((_, record),) = client.hgetall(ShardKeys(prefix, "bad-orders").of("messages")).items()  # type: ignore[union-attr]
    body = json.loads(record[14:])
    assert body["error"] == "body must be at most 1048576 bytes; got 2000000 bytes"
    assert body["refusal"].startswith("body must be at most 1048576 bytes; got 2000")
    assert (body["id"], body["cut"], body["row"]) == ("big", True, 0)
    assert 2_000_000 < body["bytes"] < 2_000_100
    assert len(body["values"]) > 900_000


def test_a_topic_that_refuses_a_bad_row_is_named(
    write: Callable[..., Written], client: redis.Redis, prefix: str
) -> None:
    """The row fails its task: it is not dropped."""
    client.hset(topics_key(prefix), "bad-orders", Policy(max_body_bytes=20).dump())
    refusal = (
        r"row 0 of partition 0 cannot be sent: body must be a value; got None; and bad-orders refuses it: body must"
    )
    with pytest.raises(BadRow, match=refusal):
        write({"body": [None], "topic": ["orders"]}, badRows="bad-orders")


def test_a_failed_task_leaves_no_file(write: Callable[..., Written], tmp_path: Path, own_server: OwnServer) -> None:
    """The file is removed when the server stays unreachable, as Spark repeats the task."""
    server = own_server()
    server.stop()
    columns: dict[str, list[Any]] = {"id": ["a", "b"], "body": [None, "y"]}
    with pytest.raises(Unreachable):
        write(columns, badRows=f"{tmp_path}/aside", url=server.url, patience=0.1)
    assert list((tmp_path / "aside").iterdir()) == []


def test_a_full_server_fails_the_task_after_its_patience(write: Callable[..., Written], own_server: OwnServer) -> None:
    """The error is Refused, with the server's words."""
    server = own_server(maxmemory="1mb", maxmemory_policy="noeviction")
    with pytest.raises(Refused, match="used memory > 'maxmemory'"):
        write({"body": ["x" * 1000] * 5000}, url=server.url, patience=0.1)


async def test_a_lost_reply_fails_no_task(write: Callable[..., Written], redis_url: str, prefix: str) -> None:
    """Rows without ids keep their generated ids in the retry; a repeated task would send them again."""
    async with Proxy(int(redis_url.rpartition(":")[2].partition("/")[0])) as proxy:
        proxy.lose_reply_to(b"EVALSHA")
        done = await asyncio.to_thread(write, {"body": ["x", "y"]}, url=proxy.url)
        assert proxy.lost == 1
    assert _counts(done) == (2, 2, 0, 0)
    with redis.Redis.from_url(redis_url) as client:
        assert client.xlen(ShardKeys(prefix, "orders").of("ready")) == 2


def test_an_error_is_one_line(write: Callable[..., Written]) -> None:
    """Spark shows the whole traceback: it has no causes, and no frames of ours but the last."""
    with pytest.raises(BadRow) as caught:
        write({"id": [""], "body": ["x"]})
    shown = "".join(traceback.format_exception(caught.value))
    assert shown.count("Traceback") == 1
    assert shown.splitlines()[-1].endswith("id must be 1 to 200 bytes of printable text; got ''")
