"""A first day with the commands: what help says holds, and each mistake gets one clear line."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from lisa_common.client.connection import Connection
from lisa_common.errors import InvalidInput, InvalidSettings
from lisa_common.settings import Settings
from lisa_consumer import ConsumerSettings
from lisa_gateway import GatewaySettings
from lisa_gateway.push.settings import PushSettings
from lisa_manager import Admin, ManagerSettings
from lisa_producer import Producer, ProducerSettings, State
from support import Server, keys_left, wait_until
from support.commands import Commands
from support.queue import Queue
from support.roles import is_old

BIN = Path(sys.executable).parent
WIDE = {"COLUMNS": "300", "TERMINAL_WIDTH": "300"}


def _words(text: str) -> str:
    return " ".join(re.sub("[│╭╮╰╯─]", " ", text).split())


# Durations


def test_help_of_durations_names_no_milliseconds(commands: Commands) -> None:
    """Bounds and defaults have the form that `--ttl` reads."""
    text = _words(commands.manager("topic", "set", "--help", **WIDE).out)
    assert "in ms" not in text
    assert "Time to live after the due time, or none, 1ms to 3660d; default none" in text
    assert "Lease on a delivery, 100ms to 1d; default 30s" in text
    assert "default 7d" in text
    commands.manager("topic", "create", "orders", "--ttl", "90s")
    assert "ttl 1m30s" in commands.manager("topic", "list").out


@pytest.mark.parametrize("text", ["1h23m20s", "30s", "1d", "250ms", "1m0.5s", "7d1s", "1d2h3m4.567s"])
def test_durations_are_listed_as_they_are(commands: Commands, text: str) -> None:
    """Nothing is left out, and what is listed can be set again."""
    out = commands.manager("topic", "create", "orders", "--ttl", text).out
    assert f"ttl {text};" in out
    assert f"ttl {text}\n" in commands.manager("topic", "list").out


# lisa-manager acl


@pytest.mark.parametrize("kind", ["redis-server", "valkey"])
def test_acl_prints_what_the_server_knows(
    commands: Commands, own_server: Callable[..., Server], tmp_path: Path, kind: str
) -> None:
    """The server is asked for its version: each line is a command that it accepts, as documented."""
    if kind == "valkey":
        server = own_server()
    elif (path := shutil.which("redis-server")) is None:
        pytest.skip("no redis-server on this machine")
    else:
        server = Server(Path(path), tmp_path / "redis").start()
    try:
        with server.client() as admin:
            version = tuple(map(int, admin.info("server")["redis_version"].split(".")[:2]))
            ran = commands.manager("acl", LISA_REDIS_URL=server.url)
            assert (ran.code, ran.err) == (0, "")
            assert ("waitaof" in ran.out) == (version >= (7, 2))
            for line in ran.out.splitlines():
                assert admin.execute_command(*line.split()) in (True, "OK", b"OK")
        with Admin(server.url) as operator:
            assert operator.server_version() == version
    finally:
        server.close()


def test_acl_without_a_server_prints_for_the_current_one(commands: Commands) -> None:
    """And says so; a flag decides without asking."""
    away = {"LISA_REDIS_URL": "redis://localhost:1"}
    ran = commands.manager("acl", **away)
    assert (ran.code, "waitaof" in ran.out) == (0, True)
    assert ran.err.startswith("warning: printed for Redis 7.2 and later, as the server did not say its version: ")
    for flag, is_since in (("--before-7-2", False), ("--since-7-2", True)):
        ran = commands.manager("acl", flag, **away)
        assert (ran.code, ran.err, "waitaof" in ran.out) == (0, "", is_since)


def test_acl_refuses_an_empty_topic(commands: Commands) -> None:
    """As of a shell variable that is not set: the user would have rights on no topic."""
    ran = commands.manager("acl", "producer", "--before-7-2", "--topic", "")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("lisa-manager: topic must be 1 to 128 letters, digits or _ . : -, and may end in *")


# Settings


def test_a_misspelt_variable_is_refused(commands: Commands, client: redis.Redis, prefix: str) -> None:
    """By commands and by libraries; nothing connects to the default server instead."""
    expected = "name of an environment variable must be that of a setting, such as LISA_REDIS_URL; got 'LISA_REDIS_ULR'"
    for run, words in ((commands.manager, ["status"]), (commands.producer, ["send", "orders", "x"])):
        ran = run(*words, LISA_REDIS_ULR="redis://h")
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.endswith(f"{expected}\n")
    assert keys_left(client, prefix) == []


def test_variables_of_others_are_accepted(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs share an environment; Kubernetes adds variables for a service that is named after Lisa."""
    foreign = {"LISA_SERVICE_HOST": "10.0.0.1", "LISA_PORT_6379_TCP_ADDR": "x", "LISA_REDIS_SERVICE_PORT": "1"}
    others = {"LISA_POLL_S": "1", "LISA_CONCURRENCY": "3", "LISA_BATCH_MESSAGES": "7"}
    for run, words in ((commands.manager, ["status"]), (commands.producer, ["send", "orders", "x"])):
        assert run(*words, **foreign, **others).code == 0
    monkeypatch.setenv("LISA_REDIS_ULR", "redis://h")
    with pytest.raises(InvalidSettings, match="LISA_REDIS_URL"):
        Producer()


def test_the_settings_of_all_programs_are_known() -> None:
    """Each program accepts the variables of the others."""
    programs = (ConsumerSettings, GatewaySettings, ManagerSettings, ProducerSettings, PushSettings)
    names = {name for kind in programs for name in kind.model_fields}
    environment = {**os.environ, **{f"LISA_{name.upper()}": "" for name in names - set(Settings.model_fields)}}
    code = "from lisa_common.settings import Settings; Settings()"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", [ProducerSettings, ConsumerSettings, ManagerSettings])
def test_settings_made_in_code_are_refused_in_our_words(kind: type[Settings]) -> None:
    """As those of a command line, without pydantic's own text."""
    with pytest.raises(InvalidSettings, match=r"^setting must be one of redis_url, .*; got 'foo'$"):
        kind(foo=1)
    with pytest.raises(InvalidSettings, match=r"^setting prefix must be 1 to 128 letters, .*; got 'a b'$"):
        kind(prefix="a b")


def test_errors_of_a_file_name_the_file_and_the_table(commands: Commands, tmp_path: Path) -> None:
    """Where to look is said once."""
    path = tmp_path / "lisa.toml"
    path.write_text("[manager]\npol_s = 1\n")
    ran = commands.manager("status", LISA_CONFIG=str(path))
    assert ran.code == 2
    assert ran.err.startswith(f"lisa-manager: {path}: setting in [manager] must be one of redis_url, ")
    assert ran.err.endswith("; got 'pol_s'\n")
    assert commands.manager("status", "--prefix", "a b").err == (
        "lisa-manager: setting prefix must be 1 to 128 letters, digits or _ . : -; got 'a b'\n"
    )


def test_urls_that_cannot_be_are_explained(commands: Commands, own_server: Callable[..., Server]) -> None:
    """A database that the server lacks, and options that the Redis client lacks, without its class names."""
    server = own_server(databases="2")
    url = f"redis://127.0.0.1:{server.port}"
    for path, expected in (
        ("/7", "a URL with a database that the server has, by default 0 to 15"),
        ("/0?foo=1", "a URL with only options that the Redis client knows (it does not know foo)"),
    ):
        for run, words in ((commands.manager, ["status"]), (commands.producer, ["send", "orders", "x"])):
            ran = run(*words, LISA_REDIS_URL=url + path)
            assert (ran.code, ran.out) == (2, "")
            assert ran.err.endswith(f"redis_url must be {expected}; got '{url}{path}'\n")


# lisa-producer


@pytest.mark.parametrize("text", [None, ""])
def test_send_without_a_body_sends_nothing(
    commands: Commands, client: redis.Redis, prefix: str, text: str | None
) -> None:
    """An empty body has to be asked for."""
    ran = commands.producer("send", "orders", stdin=text)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        "lisa-producer: body must be an argument or piped to standard input ('' if empty); got nothing\n"
    )
    assert keys_left(client, prefix) == []
    assert commands.producer("send", "orders", "").code == 0
    assert commands.producer("send", "orders", "-", stdin="").code == 0
    assert client.hlen(f"{prefix}:{{orders}}:messages") == 2


def test_send_without_a_body_at_a_terminal_does_not_wait(redis_url: str, prefix: str) -> None:
    """Nobody would know what it waits for."""
    leader, follower = os.openpty()
    try:
        done = subprocess.run(
            [BIN / "lisa-producer", "send", "orders"],
            stdin=follower,
            env={**os.environ, "LISA_REDIS_URL": redis_url, "LISA_PREFIX": prefix},
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        os.close(leader)
        os.close(follower)
    assert (done.returncode, "got nothing" in done.stderr) == (2, True)


def test_help_of_patience_says_what_holds(commands: Commands) -> None:
    """A send by hand fails at once, a load waits, and a worker has no such limit."""
    send, load = (_words(commands.producer(name, "--help", **WIDE).out) for name in ("send", "load"))
    assert re.search(r"--patience-s .* 0 to 3,600; default 0.0 \(env", send)
    assert re.search(r"--patience-s .* 0 to 3,600; default 30.0 \(env", load)
    done = subprocess.run([BIN / "lisa-consumer", "run", "--help"], capture_output=True, text=True, timeout=60)
    assert "--drain-s" in done.stdout
    assert "--patience-s" not in done.stdout


def test_send_confirms(commands: Commands, own_server: Callable[..., Server], tmp_path: Path) -> None:
    """By replicas, by fsync (not with Redis 7.0), or both; an unconfirmed message is sent all the same, with code 1."""
    server = own_server(appendonly="yes")
    on = {"LISA_REDIS_URL": server.url}
    with Connection(server.url) as admin:
        syncs = not is_old(admin)
    ran = commands.producer("send", "orders", "x", "--confirm", "fsync", **on)
    assert (ran.code, "wanted fsync, got no answer" in ran.err) == ((0, False) if syncs else (1, True))
    ran = commands.producer("send", "orders", "x", "--id", "a", "--confirm", "1,50ms", **on)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "lisa-producer: 'a' sent to 'orders', but not confirmed: wanted 1 replicas, got 0 replicas\n"
    assert commands.manager("show", "orders", "a", **on).code == 0
    ran = commands.producer("send", "orders", "x", "--confirm", "1,50ms", "--json", **on)
    assert (ran.code, ran.document["outcome"]) == (1, "not confirmed")
    assert commands.manager("show", "orders", ran.document["id"], **on).code == 0
    ran = commands.producer("send", "orders", "x", "--confirm", "2,fsync,50ms", **on)
    got = "0 replicas and " if syncs else "no answer: the server lacks or refuses WAITAOF"
    assert f"wanted 2 replicas and fsync, got {got}" in ran.err
    path = tmp_path / "lines.jsonl"
    path.write_text('{"body": 1}\n')
    assert commands.producer("load", path, "--topic", "orders", "--confirm", "fsync", **on).code == (0 if syncs else 2)
    ran = commands.producer("load", path, "--topic", "orders", "--confirm", "1,50ms", **on)
    assert (ran.code, "not confirmed" in ran.err) == (2, True)


@pytest.mark.parametrize("text", ["", "0", "all", "fsync,fsync", "1,fsync,soon", "-1", "1,fsync,2h", "1000"])
def test_send_refuses_a_bad_confirm(commands: Commands, client: redis.Redis, prefix: str, text: str) -> None:
    """One line, and nothing is written."""
    ran = commands.producer("send", "orders", "x", f"--confirm={text}")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "must be" in ran.err
    assert keys_left(client, prefix) == []


# lisa-manager


def test_awkward_messages_are_plain(commands: Commands) -> None:
    """What to give is said, and that nothing, or too much, was given."""
    expected = "lisa-manager: messages must be named by ids or selected by --all; got "
    assert commands.manager("garbage", "replay", "orders").err == f"{expected}neither\n"
    assert commands.manager("garbage", "purge", "orders", "a", "--all", "--yes").err == f"{expected}both\n"
    assert commands.manager("topic", "set", "orders").err == (
        "lisa-manager: policy must be at least one field to set, as in --visibility 60s; got nothing\n"
    )
    expected = "lisa-manager: due time must be given by --delay or by --at; got "
    assert commands.manager("reschedule", "orders", "a").err == f"{expected}neither\n"


def test_reschedule(orders: Queue, commands: Commands) -> None:
    """Each message has its outcome; 1 unless all were rescheduled."""
    orders.send("a", due="+3600000")
    orders.send("b", due="+3600000")
    ran = commands.manager("reschedule", "orders", "a", "b", "--at", "2033-01-01T00:00Z", "--json")
    assert (ran.code, ran.document) == (0, [{"id": id, "outcome": "rescheduled"} for id in ("a", "b")])
    assert commands.manager("show", "orders", "a", "--json").document["due_ms"] == 1_988_150_400_000
    ran = commands.manager("reschedule", "orders", "b", "nobody", "--delay", "1h30m")
    assert (ran.code, ran.rows) == (1, [["id", "outcome"], ["b", "rescheduled"], ["nobody", "unknown"]])
    for words in (["--delay", "soon"], ["--at", "tomorrow"], ["--delay", "1", "--at", "2033-01-01T00:00Z"]):
        ran = commands.manager("reschedule", "orders", "a", *words)
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)


def test_messages_of_any_state_are_listed(orders: Queue, commands: Commands) -> None:
    """With bodies; those of a delivery also with its holder, those of a failure with its error."""
    orders.join("billing")
    for id in ("ready", "delivered", "retry", "garbage"):
        orders.send(id, body=json.dumps({"of": id}).encode())
        if id != "ready":
            [delivery] = [d for d in orders.read("billing") if d.id == id]
            if id != "delivered":
                orders.nack(delivery, rejected=id == "garbage", error="no money", delay_ms=3_600_000)
        else:
            orders.ack(*orders.read("billing"))
            orders.send("later", due="+3600000", body=b"text \x1b[31m")
    orders.send("ready again", body=b"\xff")
    listed = {
        state: commands.manager("list", "orders", state, "--json").document
        for state in ("waiting", "ready", "delivered", "retry", "garbage")
    }
    assert {state: [m["id"] for m in messages] for state, messages in listed.items()} == {
        "waiting": ["later"],
        "ready": ["ready again"],
        "delivered": ["delivered"],
        "retry": ["retry"],
        "garbage": ["garbage"],
    }
    assert listed["retry"][0] | {"at_ms": 0, "sent_ms": 0} == {
        "id": "retry",
        "state": "retry",
        "group": "billing",
        "at_ms": 0,
        "attempts": 1,
        "consumer": None,
        "idle_ms": None,
        "reason": "nack",
        "error": "no money",
        "unreadable": None,
        "sent_ms": 0,
        "expires_ms": None,
        "max_retries": None,
        "priority": 0,
        "headers": {},
        "body_bytes": 15,
        "body": {"json": {"of": "retry"}},
    }
    assert listed["delivered"][0]["consumer"]
    assert listed["ready"][0]["body"] == {"base64": "/w=="}
    assert commands.manager("list", "orders", "--json").document == listed["waiting"]
    table = commands.manager("list", "orders", "waiting").out
    assert r"text \x1b[31m" in table
    orders.join("mail")
    assert commands.manager("list", "orders", "garbage", "--group", "mail", "--json").document == []
    assert commands.manager("list", "orders", "garbage", "--group", "mail").out == "no messages of orders are garbage\n"
    no_group = ["garbage", "--group", "gone", "--json"]
    for words in (["done"], ["waiting", "--group", "billing"], ["waiting", "--limit", "0"], no_group):
        ran = commands.manager("list", "orders", *words)
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran


def test_a_list_ends_at_its_limit(orders: Queue, commands: Commands) -> None:
    """And says whether there is more."""
    for n in range(5):
        orders.send(f"m{n}", due=f"+{3_600_000 + n}")
    assert [m["id"] for m in commands.manager("list", "orders", "waiting", "--json").document] == [
        f"m{n}" for n in range(5)
    ]
    ran = commands.manager("list", "orders", "waiting", "--limit", "3")
    assert (len(ran.rows), ran.err) == (4, "there is more; --limit is 3\n")
    ran = commands.manager("list", "orders", "waiting", "--limit", "5")
    assert (len(ran.rows), ran.err) == (6, "")


def test_dead_letters_have_their_bodies_in_json(orders: Queue, commands: Commands, client: redis.Redis) -> None:
    """More than are read at once, each with its own; one whose record is gone has none."""
    orders.join("billing")
    for n in range(45):
        orders.send(f"m{n}", body=str(n).encode(), headers={"n": str(n)})
    for delivery in orders.read("billing", limit=100):
        orders.nack(delivery, rejected=True, error="no")
    letters = commands.manager("garbage", "list", "orders", "--json").document
    assert {letter["id"]: letter["body"] for letter in letters} == {f"m{n}": {"json": n} for n in range(45)}
    assert letters[0]["headers"] == {"n": letters[0]["id"][1:]}
    client.hdel(f"{commands.prefix}:{{orders}}:messages", "m7")
    letters = commands.manager("garbage", "list", "orders", "--json").document
    assert [letter["id"] for letter in letters if "body" not in letter] == ["m7"]


@pytest.mark.slow
@pytest.mark.parametrize("program", ["lisa-manager", "lisa-producer", "lisa-consumer"])
def test_shells_complete_commands(program: str) -> None:
    """A script for the shell, which asks the program."""
    variable = f"_{program.upper().replace('-', '_')}_COMPLETE"
    asked = {variable: "complete_bash", "COMP_WORDS": f"{program} ", "COMP_CWORD": "1"}
    answers = {"lisa-manager": "reschedule", "lisa-producer": "load", "lisa-consumer": "run"}
    done = subprocess.run([BIN / program], env={**os.environ, **asked}, capture_output=True, text=True, timeout=60)
    assert answers[program] in done.stdout.split()
    # Typer would else ask which shell is running, and that may be any.
    told = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    shown = subprocess.run(
        [BIN / program, "--show-completion", "bash"], env=told, capture_output=True, text=True, timeout=60
    )
    assert f"complete -o default -F _{program.replace('-', '_')}_completion {program}" in shown.stdout


# find


def test_what_has_expired_is_not_ready(
    orders: Queue, commands: Commands, client: redis.Redis, redis_url: str, prefix: str
) -> None:
    """Before a manager sweeps it: waiting, ready and retried messages are expired, a delivered one is delivered."""
    orders.join("billing")
    with Producer(settings=ProducerSettings(redis_url=redis_url, prefix=prefix)) as producer:

        def state(id: str) -> State | None:
            found = producer.find("orders", id)
            return found and found.state

        producer.send("orders", "x", id="lasts", ttl=60)
        assert state("lasts") is State.READY
        producer.send("orders", "x", id="ready", ttl=0.2)
        wait_until(lambda: state("ready") is State.EXPIRED)
        assert "expired" in commands.manager("show", "orders", "ready").out
        producer.send("orders", "x", id="overdue", delay=0.001, ttl=0.001)
        wait_until(lambda: state("overdue") is State.EXPIRED)
        assert client.zscore(f"{prefix}:{{orders}}:waiting", "overdue") is not None


# Errors of the libraries that the commands show


def test_a_database_that_is_not_there(own_server: Callable[..., Server]) -> None:
    """At once, without the producer's patience."""
    server = own_server(databases="2")
    began = time.monotonic()
    with Producer(f"redis://127.0.0.1:{server.port}/9") as producer, pytest.raises(InvalidInput, match="a database"):
        producer.send("orders", "x")
    assert time.monotonic() - began < 20
