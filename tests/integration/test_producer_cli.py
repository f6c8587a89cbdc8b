"""`lisa-producer send` and `load`."""

import json
from pathlib import Path
from typing import Any

import pytest
import redis

from lisa_common.client.connection import Connection
from lisa_common.model.keys import ShardKeys
from lisa_common.protocol.producing import Found, find
from support import keys_left
from support.commands import Commands
from support.queue import Queue


def _find(commands: Commands, id: str, topic: str = "orders") -> Found | None:
    with Connection(commands.url) as connection:
        return connection.call(find(ShardKeys(commands.prefix, topic), id))


def _bodies(commands: Commands, client: redis.Redis, topic: str = "orders") -> set[bytes]:
    records = client.hgetall(f"{commands.prefix}:{{{topic}}}:messages")
    found = [_find(commands, id.decode(), topic) for id in records]
    return {one.record.body for one in found if one and one.record}


# send


def test_send_with_all_options(commands: Commands) -> None:
    """Each option has its meaning in `Message`."""
    ran = commands.producer(
        *("send", "orders", "hello", "--delay", "15m", "--id", "m", "--ttl", "1h", "--max-retries", 3),
        *("--priority", 9, "--header", "trace=1", "--header", "empty="),
    )
    found = _find(commands, "m")
    assert found is not None
    record = found.record
    assert record is not None
    assert (ran.code, ran.out.startswith("sent m, due 20")) == (0, True)
    assert record.due_ms - record.sent_ms == 900_000
    assert (record.body, record.ttl_ms, record.max_retries, record.priority) == (b"hello", 3_600_000, 3, 9)
    assert record.headers == {"trace": "1", "empty": ""}


def test_send_twice_with_one_id(commands: Commands, client: redis.Redis) -> None:
    """The second send reports a duplicate, which is no error (promise 6)."""
    assert commands.producer("send", "orders", "one", "--id", "m", "--json").document["outcome"] == "sent"
    ran = commands.producer("send", "orders", "two", "--id", "m", "--json")
    assert (ran.code, ran.document) == (0, {"topic": "orders", "id": "m", "outcome": "duplicate", "due_ms": None})
    assert commands.producer("send", "orders", "two", "--id", "m").out.startswith("duplicate m; nothing was sent")
    assert _bodies(commands, client) == {b"one"}


@pytest.mark.parametrize("words", [[], ["-"]])
def test_send_takes_the_body_from_standard_input(commands: Commands, client: redis.Redis, words: list[str]) -> None:
    """Byte for byte."""
    assert commands.producer("send", "orders", *words, stdin="line\nline\n").code == 0
    assert _bodies(commands, client) == {b"line\nline\n"}


def test_send_reads_no_endless_standard_input(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body longer than any message is never in memory as a whole."""
    monkeypatch.setattr("lisa_producer.commands._MOST_BYTES", 10)
    ran = commands.producer("send", "orders", "-", stdin="x" * 11)
    assert (ran.code, ran.err) == (2, "lisa-producer: body must be less than 10 bytes; got more\n")


def test_send_at_a_moment(commands: Commands) -> None:
    """In ISO 8601 with its zone."""
    document = commands.producer("send", "orders", "x", "--at", "2030-01-01T01:00:00+01:00", "--json").document
    assert document["due_ms"] == 1_893_456_000_000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--delay=-5"], "delay must be seconds, or numbers with units"),
        (["--delay", "nan"], "delay must be seconds, or numbers with units"),
        (["--delay", "4000d"], "delay must be seconds or a timedelta from 0 s to 10 years; got 345600000.0"),
        (["--delay", "1", "--at", "2030-01-01T00:00Z"], "delay cannot be combined with at"),
        (["--at", "2030-01-01T00:00"], "at must be a time in ISO 8601 with its zone"),
        (["--at", "tomorrow"], "at must be a time in ISO 8601 with its zone"),
        (["--ttl", "0"], "ttl must be seconds or a timedelta from 0.001 s to 10 years; got 0.0"),
        (["--id", "x" * 201], "id must be 1 to 200 bytes of printable text; got 'xxxx"),
        (["--id", "a\nb"], r"id must be 1 to 200 bytes of printable text; got 'a\nb'"),
        (["--id", "a~"], "id must be text that does not end in '~', "),
        (["--max-retries", "1001"], "max_retries must be a whole number from 0 to 1000; got 1001"),
        (["--max-retries", "x"], "valid integer"),
        (["--priority", "256"], "priority must be a whole number from 0 to 255; got 256"),
        (["--header", "a=1", "--header", "a=2"], "header must be given once for each name; got 'a=2'"),
        (["--header", "novalue"], "header must be KEY=VALUE; got 'novalue'"),
        (["--timeout-s", "0"], "setting timeout_s must be at least 0.1; got '0'"),
        (["--nonsense"], "No such option"),
    ],
)
def test_send_refuses_bad_input(
    commands: Commands, client: redis.Redis, prefix: str, words: list[str], message: str
) -> None:
    """One line on stderr, exit code 2, nothing written (promise 13)."""
    ran = commands.producer("send", "orders", "body", *words)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran.err
    assert message in ran.err
    assert keys_left(client, prefix) == []


@pytest.mark.parametrize("topic", ["", "a b", "x" * 129, "ordérs"])
def test_send_refuses_bad_topics(commands: Commands, client: redis.Redis, prefix: str, topic: str) -> None:
    """Likewise."""
    ran = commands.producer("send", topic, "body")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "topic" in ran.err
    assert keys_left(client, prefix) == []


def test_send_refuses_a_large_body(orders: Queue, commands: Commands) -> None:
    """By the topic's policy."""
    commands.manager("topic", "set", "orders", "--max-body-bytes", "10")
    ran = commands.producer("send", "orders", "x" * 11)
    assert (ran.code, ran.err) == (
        2, "lisa-producer: body must be at most 10 bytes; got 11 bytes\n"
    )  # fmt: skip
    assert orders.contents().records == {}


# load


def _file(tmp_path: Path, *lines: Any) -> Path:
    path = tmp_path / "messages.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_load_sends_every_line(commands: Commands, client: redis.Redis, tmp_path: Path) -> None:
    """Lines may set their topic, due time and all other options; text, JSON and null are bodies."""
    path = _file(
        tmp_path,
        {"body": "text", "delay": "15m", "id": "a"},
        "",
        {"body": {"order": 7}, "at": "2030-01-01T00:00:00Z", "id": "b", "headers": {"k": "v"}, "priority": 3},
        {"body": None, "topic": "other", "delay": 1.5, "ttl": "1h", "max_retries": 0, "id": "c"},
        {"body": "in ms", "at": 1_900_000_000_000, "id": "d"},
    )
    ran = commands.producer("load", path, "--topic", "orders")
    assert (ran.code, ran.out, ran.err) == (0, "sent 4, duplicates 0, failed 0\n", "")
    assert _bodies(commands, client) == {b"text", b'{"order":7}', b"in ms"}
    due = _find(commands, "d")
    assert due is not None
    assert due.record is not None
    assert due.record.due_ms == 1_900_000_000_000
    assert _bodies(commands, client, "other") == {b"null"}
    found = _find(commands, "c", "other")
    assert found is not None
    assert found.record is not None
    assert (found.record.due_ms - found.record.sent_ms, found.record.ttl_ms) == (1500, 3_600_000)


BAD_LINES = [
    ("not json", "line must be a JSON object (Expecting value: line 1 column 1 (char 0)); got 'not json'"),
    ("[1]", "line must be a JSON object; got [1]"),
    ("[" * 100_000, "line must be a JSON object ("),
    ('{"delay": 1}', "line must be a JSON object with a body; got {'delay': 1}"),
    (
        '{"body": 1, "dealy": 1}',
        "ttl, max_retries, priority, headers, key, if_exists; got 'dealy'",
    ),
    ('{"body": 1, "delay": -1}', "delay must be seconds or a timedelta from 0 s to 10 years; got -1"),
    ('{"body": 1, "delay": -Infinity}', "line must be a JSON object (-Infinity is no JSON); got "),
    ('{"body": 1, "delay": 1, "delay": 2}', "line must be a JSON object ('delay' occurs twice in an object); got "),
    ('{"body": {"a": 1, "a": 2}}', "line must be a JSON object ('a' occurs twice in an object); got "),
    ('{"body": 1, "delay": true}', "delay must be seconds or a timedelta from 0 s to 10 years; got True"),
    ('{"body": 1, "delay": "soon"}', "delay must be seconds, or numbers with units"),
    ('{"body": 1, "at": "2030-01-01"}', "with its zone"),
    ('{"body": 1, "at": 1900000000}', "at must be ms since 1970, a number of 12 to 14 digits; got 1900000000"),
    ('{"body": 1, "at": true}', "at must be a time in ISO 8601 with its zone, or ms since 1970; got True"),
    ('{"body": 1, "at": "2030-01-01T00:00Z", "delay": 1}', "delay cannot be combined with at"),
    ('{"body": 1, "ttl": 0}', "ttl must be seconds or a timedelta from 0.001 s to 10 years; got 0"),
    ('{"body": 1, "id": 7}', "id must be 1 to 200 bytes of printable text; got 7"),
    ('{"body": 1, "id": ""}', "id must be 1 to 200 bytes of printable text; got ''"),
    ('{"body": 1, "max_retries": 1.5}', "max_retries must be a whole number from 0 to 1000; got 1.5"),
    ('{"body": 1, "headers": {"a": 1}}', "headers must be a mapping of text to text; got {'a': 1}"),
    ('{"body": 1, "topic": "a b"}', "topic must be 1 to 128 letters, digits or _ . : -; got 'a b'"),
    ('{"body": NaN}', "line must be a JSON object (NaN is no JSON); got "),
    ('{"body": "\\ud800"}', "body must be text that UTF-8 can encode (surrogates not allowed); got '\\ud800'"),
    ('{"body": "' + "x" * 1_048_577 + '"}', "body must be at most 1048576 bytes; got 1048577 bytes"),
]


@pytest.mark.parametrize(("bad", "message"), BAD_LINES, ids=[message for _, message in BAD_LINES])
def test_a_bad_line_does_not_stop_the_others(
    commands: Commands, client: redis.Redis, tmp_path: Path, bad: str, message: str
) -> None:
    """One line on stderr names the bad line and the reason; the others are sent and counted; exit code 1."""
    path = _file(tmp_path, {"body": "first"}, bad, {"body": "last"})
    ran = commands.producer("load", path, "--topic", "orders", "--json")
    assert (ran.code, ran.document) == (1, {"sent": 2, "duplicates": 0, "failed": 1, "stopped": None})
    assert ran.err.startswith("line 2: ")
    assert ran.err.count("\n") == 1
    assert message in ran.err
    assert _bodies(commands, client) == {b"first", b"last"}


def test_load_refuses_invalid_utf8(commands: Commands, tmp_path: Path) -> None:
    """Such a line does not stop the others."""
    path = tmp_path / "messages.jsonl"
    path.write_bytes(b'{"body": "\xff"}\n{"body": 1}')
    ran = commands.producer("load", path, "--topic", "orders")
    assert (ran.code, ran.out) == (1, "sent 1, duplicates 0, failed 1\n")


def test_load_takes_no_line_of_utf_16(commands: Commands, client: redis.Redis, prefix: str, tmp_path: Path) -> None:
    """Not those that could be read, either: half of a file would be sent."""
    path = tmp_path / "lines.jsonl"
    path.write_text('{"topic": "orders", "body": 1}\n' * 3, "utf-16")
    ran = commands.producer("load", path)
    assert (ran.code, ran.out) == (1, "sent 0, duplicates 0, failed 4\n")
    assert keys_left(client, prefix) == []


def test_load_is_resumable(commands: Commands, client: redis.Redis, tmp_path: Path) -> None:
    """Messages with ids are not sent twice (promise 6)."""
    path = _file(tmp_path, *({"body": number, "id": f"m{number}", "delay": 60} for number in range(1_200)))
    assert commands.producer("load", path, "--topic", "orders").out == "sent 1200, duplicates 0, failed 0\n"
    with path.open("a") as file:
        file.write('{"body": "new", "id": "new"}\n')
    assert commands.producer("load", path, "--topic", "orders").out == "sent 1, duplicates 1200, failed 0\n"
    assert client.zcard(f"{commands.prefix}:{{orders}}:waiting") == 1_200


def test_load_sends_in_batches(
    commands: Commands, client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is never in memory as a whole: after so many lines the collected ones are sent."""
    monkeypatch.setattr("lisa_producer.bulk_sender._MAX_MESSAGES", 10)
    path = _file(tmp_path, *({"body": number, "topic": f"t{number % 2}"} for number in range(95)))
    assert commands.producer("load", path).out == "sent 95, duplicates 0, failed 0\n"
    assert client.xlen(f"{commands.prefix}:{{t0}}:ready") == 48


def test_load_skips_endless_lines(
    commands: Commands, client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line longer than any message is never in memory as a whole."""
    monkeypatch.setattr("lisa_producer.json_lines.MAX_LINE_BYTES", 100)
    path = _file(tmp_path, {"body": "a"}, "x" * 1_000, {"body": "b"})
    ran = commands.producer("load", path, "--topic", "orders")
    assert (ran.code, ran.out) == (1, "sent 2, duplicates 0, failed 1\n")
    assert ran.err.startswith("line 2: line must be at most 100 bytes; got 1001 bytes")
    assert _bodies(commands, client) == {b"a", b"b"}


def test_load_from_standard_input(commands: Commands, client: redis.Redis) -> None:
    """The last line needs no line break."""
    assert commands.producer("load", "-", "--topic", "orders", stdin='{"body": "a"}\n{"body": "b"}').code == 0
    assert _bodies(commands, client) == {b"a", b"b"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.jsonl"], "No such file"),
        (["."], "Is a directory"),
        (["-", "--topic", "a b"], "topic must be 1 to 128 letters"),
    ],
)
def test_load_refuses_bad_input(
    commands: Commands, client: redis.Redis, prefix: str, words: list[str], message: str
) -> None:
    """One line, exit code 2, nothing written."""
    ran = commands.producer("load", *words, stdin="")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert message in ran.err
    assert keys_left(client, prefix) == []


def test_load_stops_when_the_server_is_unreachable(commands: Commands, tmp_path: Path) -> None:
    """After its patience it reports the counts and the cause."""
    path = _file(tmp_path, {"body": 1}, "bad")
    ran = commands.producer(
        "load", path, "--topic", "orders", "--patience-s", "0.1", LISA_REDIS_URL="redis://localhost:1"
    )
    assert (ran.code, ran.out) == (2, "sent 0, duplicates 0, failed 1\n")
    assert ran.err.splitlines()[-1].startswith("lisa-producer: stopped before the end: cannot reach Redis at")
