"""`lisa-manager group list | drop`: no record leaks, and no other group loses anything."""

from typing import Any

import pytest
import redis

from lisa_common.protocol.call import command
from support import keys_left
from support.commands import Commands
from support.queue import Queue


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' consumers read a moment ago; whether that matters has a test of its own."""
    monkeypatch.setattr("lisa_manager.admin.groups.debts._READING_MS", 0)


def _groups(commands: Commands) -> dict[str, list[int]]:
    listed = commands.manager("group", "list", "orders", "--json").document
    return {one["group"]: [one[n] for n in ("ready", "delivered", "retry", "garbage", "owed")] for one in listed}


def _check(commands: Commands) -> Any:
    return commands.manager("check", "orders", "--json").document["problems"]


def _in_every_state(orders: Queue, group: str) -> None:
    for id in ("delivered", "retry", "garbage", "promoted", "ready"):
        orders.send(id)
        if id != "ready":
            [delivery] = orders.read(group, limit=1)
        if id == "retry":
            orders.nack(delivery, delay_ms=60_000)
        if id == "garbage":
            orders.nack(delivery, rejected=True)
        if id == "promoted":
            orders.nack(delivery, delay_ms=0)
    orders.promote()


def test_groups_are_listed_with_what_they_owe(orders: Queue, commands: Commands) -> None:
    """Copies by state; a copy in any of them is owed where there are several groups."""
    orders.join("billing", "mail")
    _in_every_state(orders, "billing")
    assert _groups(commands) == {"billing": [2, 1, 1, 1, 5], "mail": [5, 0, 0, 0, 5]}
    assert commands.manager("group", "list", "orders").rows[1] == ["billing", "2", "1", "1", "1", "1"]


def test_drop_refuses_while_the_group_owes(orders: Queue, commands: Commands) -> None:
    """Each kind of debt keeps it, and is told."""
    orders.join("billing")
    _in_every_state(orders, "billing")
    ran = commands.manager("group", "drop", "orders", "billing", "--yes")
    assert (ran.code, ran.out) == (2, "")
    assert "still owes (2 ready, 1 delivered, 1 retry, 1 garbage)" in ran.err
    assert _groups(commands) == {"billing": [2, 1, 1, 1, 0]}


def test_drop_of_the_only_group_leaves_nothing(orders: Queue, commands: Commands, client: redis.Redis) -> None:
    """With --force all that it owed is ended, wherever it stood (promise 11)."""
    orders.join("billing")
    _in_every_state(orders, "billing")
    ran = commands.manager("group", "drop", "orders", "billing", "--yes", "--force")
    assert (ran.code, ran.out) == (0, "dropped group billing of orders, and ended 5 copies of messages\n")
    prefix = orders.keys.prefix
    assert keys_left(client, prefix) == [f"{prefix}:topics", f"{prefix}:{{orders}}:ready"]
    assert orders.contents().stream == {}


def test_drop_leaves_the_other_groups_what_they_have(orders: Queue, commands: Commands) -> None:
    """Another group gets each message all the same, and nothing of the dropped one stays."""
    orders.join("billing", "mail")
    _in_every_state(orders, "billing")
    assert commands.manager("group", "drop", "orders", "billing", "--yes", "--force").code == 0
    assert _check(commands) == []
    assert len(orders.read("mail")) == 5
    assert orders.contents().failures == {}


def test_drop_ends_what_was_sent_before_the_other_group_came(orders: Queue, commands: Commands) -> None:
    """Such messages are in no list of several groups' debts, and the later group never gets them."""
    orders.join("billing")
    _in_every_state(orders, "billing")
    orders.join("mail")
    orders.send("for both")
    assert commands.manager("group", "drop", "orders", "billing", "--yes", "--force").code == 0
    assert _check(commands) == []
    assert orders.contents().records.keys() == {"for both"}
    orders.ack(*orders.read("mail"))
    assert orders.contents().records == {}


def test_drop_of_the_later_group_harms_nothing(orders: Queue, commands: Commands) -> None:
    """What only the first group owes stays with it, in every state."""
    orders.join("billing")
    _in_every_state(orders, "billing")
    orders.join("mail")
    before = orders.contents()
    assert commands.manager("group", "drop", "orders", "mail", "--yes").code == 0
    after = orders.contents()
    assert (after.records, after.retry, after.garbage) == (before.records, before.retry, before.garbage)
    assert after.stream == before.stream
    assert _check(commands) == []


def test_drop_without_debts_needs_no_force(orders: Queue, commands: Commands) -> None:
    """What was acked is no debt, trimmed or not."""
    orders.join("billing")
    orders.send("m")
    orders.ack(*orders.read("billing"))
    assert commands.manager("group", "drop", "orders", "billing", "--yes").code == 0
    assert orders.contents().stream == {}, "else it would seem ready to a group to come"


def test_leftovers_of_a_group_that_is_gone_can_be_dropped(orders: Queue, commands: Commands) -> None:
    """A drop that broke off, or XGROUP DESTROY by hand: the list shows it, another drop ends it."""
    orders.join("billing", "mail")
    _in_every_state(orders, "billing")
    orders.connection.call(command("XGROUP", "DESTROY", orders.keys.of("ready"), "billing"))
    assert _groups(commands)["billing"] == [0, 0, 1, 1, 5]
    assert {problem["problem"] for problem in _check(commands)} == {"dead group", "dangling"}
    assert commands.manager("group", "drop", "orders", "billing", "--yes", "--force").code == 0
    assert _groups(commands).keys() == {"mail"}
    assert _check(commands) == []


def test_drop_refuses_while_consumers_read(orders: Queue, commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would make the group again at once."""
    monkeypatch.undo()
    orders.join("billing")
    orders.send("m")
    orders.ack(*orders.read("billing"))
    ran = commands.manager("group", "drop", "orders", "billing", "--yes")
    assert (ran.code, "1 consumers of orders are reading in group billing" in ran.err) == (2, True)


@pytest.mark.parametrize("group", ["nope", "a b", ""])
def test_unknown_groups_are_told(orders: Queue, commands: Commands, group: str) -> None:
    """One line, exit code 2."""
    ran = commands.manager("group", "drop", orders.keys.topic, group, "--yes")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
