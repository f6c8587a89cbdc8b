"""`lisa-manager status`: sizes from the structures, exact."""

from collections.abc import Callable
from typing import Any

import pytest
import redis

from support.commands import Commands
from support.queue import Queue

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


def _orders(commands: Commands) -> dict[str, Any]:
    ran = commands.manager("status", "orders", "--json")
    assert ran.code == 0, ran.err
    [found] = ran.document
    return found


def _sizes(found: dict[str, Any]) -> list[int]:
    return [found[name] for name in ("waiting", "ready", "delivered", "retry", "garbage")]


def test_every_state_is_counted(orders: Queue, commands: Commands) -> None:
    """One message in each state is one in each column (promise 9)."""
    orders.join("billing")
    for id in ("acked", "retry", "garbage", "delivered"):
        orders.send(id)
    deliveries = {delivery.id: delivery for delivery in orders.read("billing")}
    orders.ack(deliveries["acked"])
    orders.nack(deliveries["retry"])
    orders.nack(deliveries["garbage"], rejected=True)
    orders.send("ready")
    orders.send("ready too")
    orders.send("waiting", due="+60000")
    found = _orders(commands)
    assert _sizes(found) == [1, 2, 1, 1, 1]
    assert found["groups"] == [{"group": "billing", "ready": 2, "delivered": 1, "consumers": 1}]


def test_waiting_messages_are_counted_by_when_they_fall_due(orders: Queue, commands: Commands) -> None:
    """The histogram has a column for each order of magnitude; what is overdue is in the first."""
    orders.now_ms -= HOUR
    orders.send("overdue", due="+1000")
    orders.now_ms += HOUR
    for position, ms in enumerate((MINUTE, 10 * MINUTE, 30 * MINUTE, HOUR, 6 * HOUR, DAY, 7 * DAY, 30 * DAY, 31 * DAY)):
        for copy in range(position + 1):
            orders.send(f"{ms}-{copy}", due=f"+{ms - 1000 if ms <= 30 * DAY else ms}")
    assert list(_orders(commands)["due_in"].values()) == [2, 2, 3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("state", ["waiting", "retry", "ready", "ready in a group"])
def test_lateness_is_that_of_the_oldest_undelivered_message(orders: Queue, commands: Commands, state: str) -> None:
    """Wherever it stands; a message due in the future is not late."""
    orders.send("later", due="+600000")
    assert _orders(commands)["late_ms"] == 0
    orders.now_ms -= HOUR
    if state in {"retry", "ready in a group"}:
        orders.join("billing")
    orders.send("old", due="+1000" if state == "waiting" else "+0")
    if state == "retry":
        orders.nack(*orders.read("billing"), delay_ms=5)
    orders.now_ms += HOUR
    orders.send("young")
    assert HOUR - 2000 <= _orders(commands)["late_ms"] < HOUR + MINUTE


def test_ready_is_exact_without_the_servers_help(orders: Queue, commands: Commands) -> None:
    """After a cancel deleted an entry, the server does not know a group's lag; it is counted."""
    orders.join("billing")
    for number in range(30):
        orders.send(f"m{number}")
    orders.read("billing", limit=5)
    orders.cancel("m20")
    assert _sizes(_orders(commands)) == [0, 24, 5, 0, 0]


def test_long_streams_are_counted_from_the_short_side(
    orders: Queue, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where much is ready, what was delivered is counted and taken off."""
    monkeypatch.setattr("lisa_manager.admin.backlog._SMALL", 10)
    monkeypatch.setattr("lisa_manager.admin.backlog.PAGE", 7)
    monkeypatch.setattr("lisa_manager.admin.queries.PAGE", 7)
    orders.join("billing")
    for number in range(60):
        orders.send(f"m{number}")
    orders.read("billing", limit=20)
    orders.cancel("m50")
    assert _sizes(_orders(commands)) == [0, 39, 20, 0, 0]


def test_a_retry_counts_in_its_own_group_only(orders: Queue, commands: Commands) -> None:
    """The stream's entry for one group's retry is not ready for the others."""
    orders.join("billing", "mail")
    orders.send("m")
    for group in ("billing", "mail"):
        delivery = orders.read(group)
        orders.nack(*delivery, delay_ms=0) if group == "billing" else orders.ack(*delivery)
    orders.promote()
    assert {group["group"]: group["ready"] for group in _orders(commands)["groups"]} == {"billing": 1, "mail": 0}


def test_a_thousand_topics_take_few_round_trips(
    commands: Commands, client: redis.Redis, declare: Callable[..., Any]
) -> None:
    """Topics are asked for together, not one by one."""
    for number in range(1_000):
        declare(f"topic-{number:04}")
    before = client.info("stats")["total_commands_processed"]
    ran = commands.manager("status", "--json", LISA_TIMEOUT_S="30")
    assert [topic["topic"] for topic in ran.document] == [f"topic-{number:04}" for number in range(1_000)]
    assert client.info("stats")["total_commands_processed"] - before < 20_000


def test_people_see_tables(orders: Queue, commands: Commands) -> None:
    """Columns for pipes and greps: one line for each topic, one for each group, and the histogram."""
    orders.join("billing")
    orders.send("m")
    orders.send("w", due="+1000000")
    rows = commands.manager("status").rows
    assert rows[0] == ["topic", "waiting", "ready", "delivered", "retry", "garbage", "late"]
    assert rows[1][:-1] == ["orders", "1", "1", "0", "0", "0"]
    assert rows[-1] == ["orders", "billing", "1", "0", "0"]


def test_unknown_topic_is_told(commands: Commands) -> None:
    """An operator who mistyped a topic is told so."""
    ran = commands.manager("status", "nope")
    assert (ran.code, ran.out, ran.err) == (2, "", "lisa-manager: there is no topic 'nope'\n")


def test_nothing_is_no_error(commands: Commands) -> None:
    """A fresh server has no topics."""
    assert commands.manager("status").out == "no topics\n"
    assert commands.manager("status", "--json").document == []


@pytest.mark.parametrize("json", [True, False])
def test_watch_shows_it_again_until_interrupted(
    orders: Queue, commands: Commands, monkeypatch: pytest.MonkeyPatch, *, json: bool
) -> None:
    """Ctrl-C ends it, and is told by the exit code."""
    pauses = iter([None, KeyboardInterrupt])

    def pause(seconds: float) -> None:
        assert seconds == 2.5
        orders.send(f"m{seconds}-{pauses}", due="+1000")
        if interrupt := next(pauses):
            raise interrupt

    monkeypatch.setattr("lisa_manager.commands.status.time.sleep", pause)
    ran = commands.manager("status", "--watch", "2.5", *(["--json"] if json else []))
    assert ran.code == 130
    assert len([line for line in ran.out.splitlines() if "orders" in line and (json or "s" in line)]) >= 2
