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
    """Each option means what it means in `Message`."""
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
    """The second is told to be a duplicate; that is no error (promise 6)."""
    assert commands.producer("send", "orders", "one", "--id", "m", "--json").document["outcome"] == "sent"
    ran = commands.producer("send", "orders", "two", "--id", "m", "--json")
    assert (ran.code, ran.document) == (0, {"topic": "orders", "id": "m", "outcome": "duplicate", "due_ms": None})
    assert commands.producer("send", "orders", "two", "--id", "m").out.startswith("duplicate: m is known")
    assert _bodies(commands, client) == {b"one"}


@pytest.mark.parametrize("words", [[], ["-"]])
def test_send_takes_the_body_from_standard_input(commands: Commands, client: redis.Redis, words: list[str]) -> None:
    """Byte for byte."""
    assert commands.producer("send", "orders", *words, stdin="line\nline\n").code == 0
    assert _bodies(commands, client) == {b"line\nline\n"}


def test_send_at_a_moment(commands: Commands) -> None:
    """In ISO 8601 with its zone."""
    document = commands.producer("send", "orders", "x", "--at", "2030-01-01T01:00:00+01:00", "--json").document
    assert document["due_ms"] == 1_893_456_000_000


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--delay=-5"], "delay '-5' is not allowed: seconds, or numbers with units"),
        (["--delay", "nan"], "delay 'nan' is not allowed"),
        (["--delay", "4000d"], "delay 345600000.0 is not allowed"),
        (["--delay", "1", "--at", "2030-01-01T00:00Z"], "only one of delay and at is"),
        (["--at", "2030-01-01T00:00"], "at '2030-01-01T00:00' is not allowed: a time in ISO 8601 with its zone"),
        (["--at", "tomorrow"], "at 'tomorrow' is not allowed"),
        (["--ttl", "0"], "ttl 0.0 is not allowed"),
        (["--id", "x" * 201], "id 'xxxx"),
        (["--id", "a\nb"], r"id 'a\nb' is not allowed"),
        (["--id", "a~"], "id 'a~' is not allowed"),
        (["--max-retries", "1001"], "max_retries 1001 is not allowed: whole numbers from 0 to 1000 are"),
        (["--max-retries", "x"], "Invalid value for '--max-retries'"),
        (["--priority", "256"], "priority 256 is not allowed"),
        (["--header", "novalue"], "header 'novalue' is not allowed: KEY=VALUE is"),
        (["--timeout-s", "0"], "setting timeout_s '0' is not allowed"),
        (["--nonsense"], "No such option"),
    ],
)
def test_send_refuses_bad_input(
    commands: Commands, client: redis.Redis, prefix: str, words: list[str], told: str
) -> None:
    """One line on stderr, exit code 2, nothing written (promise 13)."""
    ran = commands.producer("send", "orders", "body", *words)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran.err
    assert told in ran.err
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
        2, "lisa-producer: body 'of 11 bytes' is not allowed: at most 10 bytes are\n"
    )  # fmt: skip
    assert orders.contents().records == {}


# load


def _file(tmp_path: Path, *lines: Any) -> Path:
    path = tmp_path / "messages.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_load_sends_every_line(commands: Commands, client: redis.Redis, tmp_path: Path) -> None:
    """Lines may name their topic, their time and all else; text, JSON and null are bodies."""
    path = _file(
        tmp_path,
        {"body": "text", "delay": "15m", "id": "a"},
        "",
        {"body": {"order": 7}, "at": "2030-01-01T00:00:00Z", "id": "b", "headers": {"k": "v"}, "priority": 3},
        {"body": None, "topic": "other", "delay": 1.5, "ttl": "1h", "max_retries": 0, "id": "c"},
    )
    ran = commands.producer("load", path, "--topic", "orders")
    assert (ran.code, ran.out, ran.err) == (0, "sent 3, duplicates 0, failed 0\n", "")
    assert _bodies(commands, client) == {b"text", b'{"order":7}'}
    assert _bodies(commands, client, "other") == {b"null"}
    found = _find(commands, "c", "other")
    assert found is not None
    assert found.record is not None
    assert (found.record.due_ms - found.record.sent_ms, found.record.ttl_ms) == (1500, 3_600_000)


BAD_LINES = [
    ("not json", "line 'not json' is not allowed: a JSON object is"),
    ("[1]", "line [1] is not allowed: a JSON object is"),
    ("[" * 100_000, "a JSON object is"),
    ('{"delay": 1}', "one with a body is"),
    ('{"body": 1, "dealy": 1}', "field 'dealy' is not allowed: topic, body, delay, at,"),
    ('{"body": 1, "delay": -1}', "delay -1 is not allowed"),
    ('{"body": 1, "delay": NaN}', "delay nan is not allowed"),
    ('{"body": 1, "delay": Infinity}', "delay inf is not allowed"),
    ('{"body": 1, "delay": true}', "delay True is not allowed"),
    ('{"body": 1, "delay": "soon"}', "delay 'soon' is not allowed"),
    ('{"body": 1, "at": "2030-01-01"}', "with its zone"),
    ('{"body": 1, "at": 7}', "at 7 is not allowed"),
    ('{"body": 1, "at": "2030-01-01T00:00Z", "delay": 1}', "only one of delay and at is"),
    ('{"body": 1, "ttl": 0}', "ttl 0 is not allowed"),
    ('{"body": 1, "id": 7}', "id 7 is not allowed"),
    ('{"body": 1, "id": ""}', "id '' is not allowed"),
    ('{"body": 1, "max_retries": 1.5}', "max_retries 1.5 is not allowed"),
    ('{"body": 1, "headers": {"a": 1}}', "headers {'a': 1} is not allowed"),
    ('{"body": 1, "topic": "a b"}', "topic 'a b' is not allowed"),
    ('{"body": NaN}', "body nan is not allowed"),
    ('{"body": "\\ud800"}', "body '\\ud800' is not allowed"),
    ('{"body": "' + "x" * 1_048_577 + '"}', "body 'of 1048577 bytes' is not allowed"),
]


@pytest.mark.parametrize(("bad", "told"), BAD_LINES, ids=[told for _, told in BAD_LINES])
def test_a_bad_line_does_not_keep_the_others(
    commands: Commands, client: redis.Redis, tmp_path: Path, bad: str, told: str
) -> None:
    """Which line, what is wrong, on one line; the rest is sent and counted; exit code 1."""
    path = _file(tmp_path, {"body": "first"}, bad, {"body": "last"})
    ran = commands.producer("load", path, "--topic", "orders", "--json")
    assert (ran.code, ran.document) == (1, {"sent": 2, "duplicates": 0, "failed": 1, "stopped": None})
    assert ran.err.startswith("line 2: ")
    assert ran.err.count("\n") == 1
    assert told in ran.err
    assert _bodies(commands, client) == {b"first", b"last"}


def test_load_refuses_bytes_that_are_no_text(commands: Commands, tmp_path: Path) -> None:
    """One line of them does not keep the others."""
    path = tmp_path / "messages.jsonl"
    path.write_bytes(b'{"body": "\xff"}\n{"body": 1}')
    ran = commands.producer("load", path, "--topic", "orders")
    assert (ran.code, ran.out) == (1, "sent 1, duplicates 0, failed 1\n")


def test_load_is_resumable(commands: Commands, client: redis.Redis, tmp_path: Path) -> None:
    """What was sent with an id is not sent again (promise 6)."""
    path = _file(tmp_path, *({"body": number, "id": f"m{number}", "delay": 60} for number in range(1_200)))
    assert commands.producer("load", path, "--topic", "orders").out == "sent 1200, duplicates 0, failed 0\n"
    with path.open("a") as file:
        file.write('{"body": "new", "id": "new"}\n')
    assert commands.producer("load", path, "--topic", "orders").out == "sent 1, duplicates 1200, failed 0\n"
    assert client.zcard(f"{commands.prefix}:{{orders}}:waiting") == 1_200


def test_load_sends_in_batches(
    commands: Commands, client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is never in memory as a whole: after so many lines what was gathered is sent."""
    monkeypatch.setattr("lisa_producer.loading._MESSAGES", 10)
    path = _file(tmp_path, *({"body": number, "topic": f"t{number % 2}"} for number in range(95)))
    assert commands.producer("load", path).out == "sent 95, duplicates 0, failed 0\n"
    assert client.xlen(f"{commands.prefix}:{{t0}}:ready") == 48


def test_load_passes_over_endless_lines(
    commands: Commands, client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line longer than any message is never in memory as a whole."""
    monkeypatch.setattr("lisa_producer.lines.MAX_LINE_BYTES", 100)
    path = _file(tmp_path, {"body": "a"}, "x" * 1_000, {"body": "b"})
    ran = commands.producer("load", path, "--topic", "orders")
    assert (ran.code, ran.out) == (1, "sent 2, duplicates 0, failed 1\n")
    assert ran.err.startswith("line 2: line 'of 1001 bytes' is not allowed")
    assert _bodies(commands, client) == {b"a", b"b"}


def test_load_from_standard_input(commands: Commands, client: redis.Redis) -> None:
    """The end of the input is the end of the last line."""
    assert commands.producer("load", "-", "--topic", "orders", stdin='{"body": "a"}\n{"body": "b"}').code == 0
    assert _bodies(commands, client) == {b"a", b"b"}


@pytest.mark.parametrize(
    ("words", "told"),
    [(["nowhere.jsonl"], "No such file"), (["."], "Is a directory"), (["-", "--topic", "a b"], "topic 'a b'")],
)
def test_load_refuses_bad_input(
    commands: Commands, client: redis.Redis, prefix: str, words: list[str], told: str
) -> None:
    """One line, exit code 2, nothing written."""
    ran = commands.producer("load", *words, stdin="")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert told in ran.err
    assert keys_left(client, prefix) == []


def test_load_stops_when_the_server_is_away(commands: Commands, tmp_path: Path) -> None:
    """After its patience; what was sent is told, and why it stopped."""
    path = _file(tmp_path, {"body": 1}, "bad")
    ran = commands.producer(
        "load", path, "--topic", "orders", "--patience-s", "0.1", LISA_REDIS_URL="redis://localhost:1"
    )
    assert (ran.code, ran.out) == (2, "sent 0, duplicates 0, failed 1\n")
    assert ran.err.splitlines()[-1].startswith("lisa-producer: stopped before the end: cannot reach Redis at")
