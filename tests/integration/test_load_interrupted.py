"""Commands for many messages that end early: by Ctrl-C, or because the server does not take more."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from lisa_producer import Message, Producer, ProducerSettings
from support import Server, wait_until
from support.commands import Commands
from support.processes import Programs

_MANY = 80_000
"""A load of this number of lines takes seconds, so an interrupt comes before its end."""


@pytest.fixture
def programs(redis_url: str, prefix: str, tmp_path: Path) -> Iterator[Programs]:
    """Programs on the test's server."""
    programs = Programs(redis_url, prefix, tmp_path)
    yield programs
    programs.close()


def _file(tmp_path: Path, *lines: Any) -> Path:
    path = tmp_path / "messages.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def _numbers(client: redis.Redis, prefix: str, *topics: str) -> list[int]:
    """The bodies that are stored, which are numbers of lines."""
    records = [record for topic in topics for record in client.hvals(f"{prefix}:{{{topic}}}:messages")]
    return sorted(int(record.rpartition(b"line ")[2]) for record in records)


def _lines(count: int, topics: int = 1) -> list[dict[str, Any]]:
    return [{"topic": f"t{n % topics}", "body": f"line {n}", "delay": 3_600} for n in range(1, count + 1)]


@pytest.mark.parametrize("topics", [1, 3])
def test_an_interrupted_load_says_where_it_stopped(
    commands: Commands, programs: Programs, client: redis.Redis, tmp_path: Path, topics: int
) -> None:
    """All lines before that one are stored, and no line after it; the rest can be loaded without sending any twice."""
    path = _file(tmp_path, *_lines(_MANY, topics))
    names = [f"t{n}" for n in range(topics)]
    load = programs.start("lisa-producer", "load", str(path), "--json")
    wait_until(lambda: client.zcard(f"{commands.prefix}:{{t0}}:waiting") > 1_000, 60, what="some lines to be stored")
    load.send(signal.SIGINT)
    wait_until(lambda: not load.runs, 20, what="the load to end")
    told, *rest = load.log.splitlines()
    report = json.loads(told) if told.startswith("{") else json.loads(rest[0])
    stored = _numbers(client, commands.prefix, *names)
    assert load.code == 130
    assert (report["stopped"], report["failed"], report["duplicates"]) == ("interrupted", 0, 0)
    assert stored == list(range(1, report["sent"] + 1))
    assert (report["resume"], report["perhaps_sent_to"]) == (report["sent"] + 1, None)
    assert 0 < report["sent"] < _MANY
    assert f"lisa-producer: interrupted; --resume {report['resume']} loads the rest\n" in load.log
    ran = commands.producer("load", path, "--resume", report["resume"])
    assert (ran.code, ran.out) == (0, f"sent {_MANY - report['sent']}, duplicates 0, failed 0\n")
    assert _numbers(client, commands.prefix, *names) == list(range(1, _MANY + 1))


def test_an_interrupt_while_lines_are_awaited(redis_url: str, prefix: str, client: redis.Redis) -> None:
    """Of standard input; what was read, and not yet sent, is the rest."""
    environment = os.environ | {"LISA_REDIS_URL": redis_url, "LISA_PREFIX": prefix}
    command = [Path(sys.executable).parent / "lisa-producer", "load", "-"]
    load = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert load.stdin is not None
    load.stdin.write("".join(json.dumps(line) + "\n" for line in _lines(20_500)))
    load.stdin.flush()
    wait_until(lambda: client.zcard(f"{prefix}:{{t0}}:waiting") == 20_000, 60, what="the first batch to be stored")
    load.send_signal(signal.SIGINT)
    out, err = load.communicate(timeout=30)
    assert (load.returncode, out) == (130, "sent 20000, duplicates 0, failed 0\n")
    assert err == "lisa-producer: interrupted; --resume 20001 loads the rest\n"


def test_a_second_interrupt_ends_a_load_at_once(
    own_server: Callable[..., Server], prefix: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Though the server is silent; it says which lines may be stored."""
    server = own_server()
    programs = Programs(server.url, prefix, tmp_path)
    request.addfinalizer(programs.close)
    path = _file(tmp_path, *_lines(100))
    with server.client() as client:
        client.execute_command("CLIENT", "PAUSE", 600_000, "WRITE")
        load = programs.start("lisa-producer", "load", str(path))
        wait_until(lambda: _has_blocked_client(client), 60, what="the load to send")
        load.send(signal.SIGINT)
        wait_until(lambda: _pending(load.pid) == 0, 60, what="the first signal to be taken")
        assert load.runs
        load.send(signal.SIGINT)
        wait_until(lambda: not load.runs, 30, what="the load to end")
        client.execute_command("CLIENT", "UNPAUSE")
    assert load.code == 130
    assert "sent 0, duplicates 0, failed 0\n" in load.log
    assert (
        "lisa-producer: interrupted; --resume 1 loads the rest; of lines 1 to 100, those without an id may be sent "
        "twice\n"
    ) in load.log


def _has_blocked_client(client: redis.Redis) -> bool:
    return bool(client.info("clients")["blocked_clients"])


def _pending(pid: int) -> int:
    """The signals that a process has not yet taken."""
    fields = dict(
        line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text("utf-8").splitlines() if ":\t" in line
    )
    return int(fields["SigPnd"], 16) | int(fields["ShdPnd"], 16)


def test_a_load_that_the_server_stops_says_where(
    own_server: Callable[..., Server], commands: Commands, tmp_path: Path
) -> None:
    """A refusal stores nothing, so nothing is sent twice."""
    server = own_server()
    path = _file(tmp_path, {"topic": "t", "body": "bad", "delay": -1}, *_lines(10))
    environment = {"LISA_REDIS_URL": server.url, "LISA_PATIENCE_S": "0.1"}
    with server.client() as client:
        assert commands.producer("send", "t0", "x", **environment).code == 0
        client.config_set("maxmemory", 1)
        ran = commands.producer("load", path, "--json", **environment)
        assert (ran.code, ran.document["sent"], ran.document["failed"]) == (2, 0, 1)
        assert (ran.document["resume"], ran.document["perhaps_sent_to"]) == (2, None)
        assert ran.err.splitlines()[-1].endswith("; --resume 2 loads the rest")
        client.config_set("maxmemory", 0)
    ran = commands.producer("load", path, "--resume", "2", **environment)
    assert (ran.code, ran.out) == (0, "sent 10, duplicates 0, failed 0\n")


def test_a_load_that_was_not_confirmed_is_not_counted(commands: Commands, tmp_path: Path) -> None:
    """Its lines are stored: whoever loads them again may send them twice, unless they have ids."""
    path = _file(tmp_path, *_lines(10))
    ran = commands.producer("load", path, "--confirm", "1,250ms", "--json")
    assert (ran.code, ran.document["sent"], ran.document["failed"]) == (2, 0, 0)
    assert (ran.document["resume"], ran.document["perhaps_sent_to"]) == (1, 10)
    assert "of lines 1 to 10, those without an id may be sent twice" in ran.err


def test_stable_ids(commands: Commands, client: redis.Redis, prefix: str, tmp_path: Path) -> None:
    """The same line of the same file is one message; equal lines, edited ones, and those of another file are others."""
    lines: list[Any] = [{"body": "a"}, {"body": "a"}, {"body": "b", "id": "chosen"}]
    path = _file(tmp_path, *lines)
    words = ("--topic", "orders", "--stable-ids")
    assert commands.producer("load", path, *words).out == "sent 3, duplicates 0, failed 0\n"
    assert commands.producer("load", path, *words).out == "sent 0, duplicates 3, failed 0\n"
    _file(tmp_path, lines[0], {"body": "edited"}, lines[2], {"body": "more"})
    assert commands.producer("load", path, *words).out == "sent 2, duplicates 2, failed 0\n"
    other = tmp_path / "other"
    other.mkdir()
    assert commands.producer("load", _file(other, *lines), *words).out == "sent 2, duplicates 1, failed 0\n"
    ids = {id.decode() for id in client.hkeys(f"{prefix}:{{orders}}:messages")}
    assert len(ids) == 7
    assert "chosen" in ids


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-", "--stable-ids"], "file must be a regular file with --stable-ids; got '-'"),
        (["FILE", "--resume", "5"], "resume must be at most 4, as there are 3 lines; got 5"),
    ],
)
def test_wrong_ways_to_resume(commands: Commands, tmp_path: Path, words: list[str], message: str) -> None:
    """One line says what is wrong; nothing is sent."""
    path = _file(tmp_path, *_lines(3))
    ran = commands.producer("load", *[str(path) if word == "FILE" else word for word in words], stdin="")
    assert (ran.code, ran.err) == (2, f"lisa-producer: {message}\n")


def test_a_load_may_be_resumed_behind_its_last_line(commands: Commands, tmp_path: Path) -> None:
    """There an interrupt may have come before the end was read."""
    ran = commands.producer("load", _file(tmp_path, *_lines(3)), "--resume", "4")
    assert (ran.code, ran.out) == (0, "sent 0, duplicates 0, failed 0\n")


@pytest.mark.parametrize("command", ["cancel", "purge", "replay"])
def test_an_interrupted_bulk_command_says_what_it_has_done(
    commands: Commands, programs: Programs, client: redis.Redis, command: str
) -> None:
    """It ends after the step that it is at."""
    key = f"{commands.prefix}:{{t0}}:{'waiting' if command == 'cancel' else 'garbage'}"
    with Producer(settings=ProducerSettings(redis_url=commands.url, prefix=commands.prefix)) as producer:
        producer.send_many("t0", [Message(body=b"x", id=f"m{n}", delay=3_600) for n in range(20_000)])
    if command != "cancel":
        # Dead letters of no group, as messages that expired have them.
        client.zadd(key, {f"/m{n}": n for n in range(20_000)})
    before = client.zcard(key)
    words = ["cancel", "t0", "--all", "--yes"] if command == "cancel" else ["garbage", command, "t0", "--all"]
    words += ["--yes"] if command == "purge" else []
    bulk = programs.start("lisa-manager", *words, "--json")
    wait_until(lambda: client.zcard(key) < before, 60, what="a first step")
    bulk.send(signal.SIGINT)
    wait_until(lambda: not bulk.runs, 20, what="the command to end")
    told, said = bulk.log.splitlines()
    assert (bulk.code, said) == (130, "lisa-manager: interrupted; what was counted is done, and no more")
    [count] = json.loads(told).values()
    assert 0 < count == before - client.zcard(key) < before


def test_any_other_command_says_that_it_was_interrupted(
    commands: Commands, programs: Programs, client: redis.Redis
) -> None:
    """Here one that cancels messages by their ids: the others stay."""
    with Producer(settings=ProducerSettings(redis_url=commands.url, prefix=commands.prefix)) as producer:
        ids = [f"m{n}" for n in range(20_000)]
        producer.send_many("t0", [Message(body=b"x", id=id, delay=3_600) for id in ids])
    cancel = programs.start("lisa-manager", "cancel", "t0", *ids)
    wait_until(lambda: client.zcard(f"{commands.prefix}:{{t0}}:waiting") < 20_000, 60, what="a first step")
    cancel.send(signal.SIGINT)
    wait_until(lambda: not cancel.runs, 20, what="the command to end")
    assert (cancel.code, cancel.log) == (130, "lisa-manager: interrupted; what was done by then stays\n")
    assert 0 < client.zcard(f"{commands.prefix}:{{t0}}:waiting") < 20_000
