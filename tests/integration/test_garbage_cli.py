"""`lisa-manager garbage list | replay | purge`."""

from typing import Any

import pytest
import redis

from lisa_common.cli.program import confirm
from lisa_common.errors import LisaError
from lisa_common.protocol.call import Call, command
from support import keys_left
from support.commands import Commands
from support.queue import Queue, outgoing


def _bury(orders: Queue, *ids: str, group: str = "billing", error: str = "no money") -> None:
    for id in ids:
        orders.send(id)
    for delivery in orders.read(group):
        orders.nack(delivery, rejected=True, error=error)


@pytest.fixture
def dead(orders: Queue) -> Queue:
    """Three dead letters of a moment ago, a millisecond apart, the second of them expired."""
    orders.advance(-7)
    orders.join("billing")
    _bury(orders, "first")
    orders.advance(1)
    orders.send("second", due="+1", ttl_ms=1)
    orders.advance(5)
    orders.sweep()
    orders.advance(1)
    _bury(orders, "third", error="line\nbreak \x1b[31m")
    return orders


def _ids(ran: Any) -> list[str]:
    return [letter["id"] for letter in ran.document]


def test_dead_letters_are_listed_latest_first(dead: Queue, commands: Commands) -> None:
    """With all that is known of each."""
    letters = commands.manager("garbage", "list", "orders", "--json").document
    assert [(letter["id"], letter["group"], letter["reason"]) for letter in letters] == [
        ("third", "billing", "rejected"),
        ("second", None, "expired"),
        ("first", "billing", "rejected"),
    ]
    first = letters[-1]
    assert (first["error"], first["attempts"]) == ("no money", 1)
    assert first["died_ms"] == first["due_ms"] == dead.now_ms - 7


def test_a_list_is_narrowed_by_options(dead: Queue, commands: Commands) -> None:
    """By group, reason, age and number."""

    def listed(*options: str) -> list[str]:
        return _ids(commands.manager("garbage", "list", "orders", "--json", *options))

    assert listed("--group", "billing") == ["third", "first"]
    assert listed("--group", "") == ["second"]
    assert listed("--reason", "expired") == ["second"]
    assert listed("--limit", "1") == ["third"]
    assert listed("--older-than", "1h") == []
    assert dead.purge("billing/first") == 1
    assert listed() == ["third", "second"]


def test_people_see_no_line_breaks_or_escapes_of_strangers(dead: Queue, commands: Commands) -> None:
    """An error text comes from a handler: a terminal must not obey it."""
    out = commands.manager("garbage", "list", "orders").out
    assert r"line\nbreak \x1b[31m" in out
    assert len(out.splitlines()) == 4
    assert dead.contents().garbage.keys() == {"billing/first", "/second", "billing/third"}


def test_replay_makes_ready_again(dead: Queue, commands: Commands) -> None:
    """Named ones, whichever group had them; what is not there is told, and is exit code 1."""
    ran = commands.manager("garbage", "replay", "orders", "first", "second", "nope", "--json")
    assert (ran.code, ran.document) == (1, {"replayed": 2, "unknown": 1})
    assert ran.err == "not in the garbage: nope\n"
    assert {delivery.id for delivery in dead.read("billing")} == {"first", "second"}
    assert commands.manager("garbage", "replay", "orders", "--all").out == "replayed 1\n"
    assert [(d.id, d.attempt) for d in dead.read("billing")] == [("third", 1)]


def test_replay_of_some(dead: Queue, commands: Commands) -> None:
    """Options narrow --all and ids alike."""
    ran = commands.manager("garbage", "replay", "orders", "--all", "--reason", "expired")
    assert (ran.code, ran.out) == (0, "replayed 1\n")
    ran = commands.manager("garbage", "replay", "orders", "first", "--group", "mail")
    assert (ran.code, ran.out) == (1, "replayed 0, passed over 1\n")
    assert dead.contents().garbage.keys() == {"billing/first", "billing/third"}


@pytest.mark.parametrize(("verb", "done"), [(("replay",), "replayed"), (("purge", "--yes"), "purged")])
@pytest.mark.parametrize("option", [("--group", "mail"), ("--reason", "nack"), ("--older-than", "1h")])
def test_named_ones_that_options_keep_are_told(
    dead: Queue, commands: Commands, verb: tuple[str, ...], done: str, option: tuple[str, ...]
) -> None:
    """Nothing was done to them: exit code 1, as for what is not there."""
    ran = commands.manager("garbage", *verb, "orders", "first", "second", "nope", *option, "--json")
    assert (ran.code, ran.document) == (1, {done: 0, "passed over": 2, "unknown": 1})
    assert len(dead.contents().garbage) == 3


def test_replay_for_a_group_that_is_gone(dead: Queue, commands: Commands) -> None:
    """Nothing changes, and it is told; naming the message finds it too."""
    dead.connection.call(command("XGROUP", "DESTROY", dead.keys.of("ready"), "billing"))
    ran = commands.manager("garbage", "replay", "orders", "--all", "--json")
    assert (ran.code, ran.document) == (1, {"replayed": 1, "no group": 2})
    ran = commands.manager("garbage", "replay", "orders", "first", "--json")
    assert (ran.code, ran.document) == (1, {"replayed": 0, "no group": 1})


@pytest.mark.parametrize(("words", "told"), [(["--all"], "purged 3\n"), (["first", "second", "third"], "purged 3\n")])
def test_purge_leaves_nothing(
    dead: Queue, commands: Commands, client: redis.Redis, words: list[str], told: str
) -> None:
    """No record, no failure: only the stream, the policy, and for a minute what repeats of the sends must know."""
    ran = commands.manager("garbage", "purge", "orders", *words, "--yes")
    assert (ran.code, ran.out) == (0, told)
    prefix = dead.keys.prefix
    client.delete(dead.keys.of("finished"))
    assert keys_left(client, prefix) == [f"{prefix}:topics", f"{prefix}:{{orders}}:ready"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--all"], "pass --yes"),
        ([], "messages must be named by ids or selected by --all; got neither"),
        (["first", "--all"], "messages must be named by ids or selected by --all; got both"),
        (["--all", "--yes", "--older-than", "soon"], "older_than must be seconds, or numbers with units, as in 250ms"),
        (["--all", "--yes", "--group", "a b"], "group must be 1 to 128 letters, digits or _ . : -; got 'a b'"),
        (
            ["--all", "--yes", "--reason", "nak"],
            "reason must be one of nack, abandoned, rejected, aborted, expired, unknown; got 'nak'",
        ),
        (
            ["first", "--yes", "--reason", ""],
            "reason must be one of nack, abandoned, rejected, aborted, expired, unknown; got ''",
        ),
    ],
)
def test_purge_refuses_what_is_not_certain(dead: Queue, commands: Commands, words: list[str], told: str) -> None:
    """One line, exit code 2, nothing deleted."""
    ran = commands.manager("garbage", "purge", "orders", *words)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert told in ran.err
    assert len(dead.contents().garbage) == 3


def test_a_question_needs_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a terminal a no is a no; elsewhere nobody can be asked."""
    with pytest.raises(LisaError, match="--yes"):
        confirm("Delete?", yes=False)
    confirm("Delete?", yes=True)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda *_, **__: False)
    with pytest.raises(LisaError, match="not done"):
        confirm("Delete?", yes=False)


@pytest.mark.slow
@pytest.mark.long
def test_many_are_replayed_and_purged(orders: Queue, commands: Commands) -> None:
    """Page by page, many of them dead since the same millisecond; each exactly once."""
    orders.join("billing")
    count = 30_000
    for start in range(0, count, 500):
        orders.send_all([outgoing(f"m{number}") for number in range(start, start + 500)])
    _bury_all(orders, count)
    assert commands.manager("garbage", "replay", "orders", "--all", "--reason", "unknown").out == "replayed 30,000\n"
    assert commands.manager("garbage", "replay", "orders", "--all").out == "replayed 0\n"
    _bury_all(orders, count)
    assert commands.manager("garbage", "purge", "orders", "--all", "--yes").out == "purged 30,000\n"
    assert orders.contents().records == {}


def _bury_all(orders: Queue, count: int) -> None:
    ready, garbage, failures = map(orders.keys.of, ("ready", "garbage", "failures"))
    calls: list[Call[int]] = []
    for number, entry in enumerate(orders.take("billing", limit=count)):
        calls.append(command("ZADD", garbage, orders.now_ms - number % 3, f"billing/{entry.id}"))
        calls.append(command("XACK", ready, "billing", entry.entry))
        calls.append(command("HDEL", failures, f"billing/{entry.id}"))
    orders.connection.execute(calls)
