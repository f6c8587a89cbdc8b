"""`lisa-manager status`: sizes from the structures, exact."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from json import loads
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from rich.console import Console

from lisa_common.client.connection import Connection
from lisa_common.model.keys import ShardKeys, topics_key
from lisa_common.protocol.call import Call, command
from lisa_manager import Admin, GroupStatus, ManagerSettings, TopicStatus
from lisa_manager.admin.topics import status
from lisa_manager.commands import watch
from lisa_manager.commands.status_tables import sparkline
from lisa_manager.commands.watch import Reader, Reading, render
from lisa_manager.queries import PAGE
from lisa_producer import Producer, ProducerSettings
from support import Server
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


def test_parked_messages_are_due(orders: Queue, commands: Commands) -> None:
    """What waits for others of its key counts as due within a minute, like all that is overdue."""
    orders.limit(max_in_flight_per_key=1)
    orders.join("billing")
    for id in ("dead", "held", "parked"):
        orders.send(id, key="k")
    orders.promote()
    orders.nack(*orders.read("billing"), rejected=True)
    orders.replay("billing/dead")
    orders.promote()
    orders.send("in ten minutes", due="+600000", key="k")
    orders.send("in a year", due="+31536000000", key="k")
    found = _orders(commands)
    assert (found["waiting"], found["retry"], found["parked"]) == (3, 1, 2)
    assert list(found["due_in"].values()) == [1, 1, 0, 0, 0, 0, 0, 0, 1]
    assert found["retry_in"] == [1, 0, 0, 0, 0, 0, 0, 0, 0]


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


def test_what_was_cancelled_unread_counts_no_longer(orders: Queue, redis_url: str, prefix: str) -> None:
    """Servers take deleted entries for unread ones: an empty stream has a lag, and Redis 7.0 never forgets it."""
    orders.join("billing")
    with Admin(settings=ManagerSettings(redis_url=redis_url, prefix=prefix)) as admin:
        for id in ("a", "b", "c"):
            orders.send(id)
            assert [found.ready for found in (*admin.sizes(), *admin.status())] == [1, 1]
            orders.ack(*orders.read("billing"))
            orders.send("cancelled")
            orders.cancel("cancelled")
            orders.trim()
            assert [found.ready for found in (*admin.sizes(), *admin.status())] == [0, 0]


def test_what_was_cancelled_unread_counts_no_longer_beside_a_group_that_is_behind(
    orders: Queue, redis_url: str, prefix: str
) -> None:
    """That group keeps the stream long, so that the number of Redis 7.0 could be right."""
    orders.join("billing", "behind")
    with Admin(settings=ManagerSettings(redis_url=redis_url, prefix=prefix)) as admin:
        for number in range(3):
            for name in ("read", "cancelled", "last"):
                orders.send(f"{name}-{number}")
            orders.ack(*orders.read("billing", limit=1))
            orders.cancel(f"cancelled-{number}")
            orders.ack(*orders.read("billing"))
            for found in (*admin.sizes(), *admin.status()):
                assert [group.ready for group in found.groups] == [2 * number + 2, 0]


def test_long_streams_are_counted_from_the_short_side(
    orders: Queue, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where much is ready, what was delivered is counted and taken off."""
    monkeypatch.setattr("lisa_manager.admin.groups.backlog._SMALL", 10)
    monkeypatch.setattr("lisa_manager.admin.groups.backlog.PAGE", 7)
    monkeypatch.setattr("lisa_manager.queries.PAGE", 7)
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
    """Ctrl-C ends it, with its exit code; from the second time on there are rates."""
    orders.join("billing")
    pauses = iter([None, KeyboardInterrupt])

    def pause(seconds: float) -> None:
        assert seconds == 2.5
        for number in range(3):
            orders.send(f"m{number}")
        orders.ack(*orders.read("billing", limit=1))
        if interrupt := next(pauses):
            raise interrupt

    _sleep_by(monkeypatch, pause)
    ran = commands.manager("status", "--watch", "2.5", *(["--json"] if json else []))
    assert ran.code == 130
    if json:
        first, second = map(loads, ran.out.splitlines())
        assert (first[0]["in_per_s"], first[0]["out_per_s"]) == (None, None)
        assert second[0]["in_per_s"] > 0
        assert second[0]["out_per_s"] is None, "the group has read nothing before"
        assert second[0]["at"] > first[0]["at"]
    else:
        shown = [row for row in ran.rows if row[:1] == ["orders"] and "0ms" not in row]
        clocks = [row for row in ran.rows if len(row) == 2 and row[1].endswith("Z")]
        assert len(clocks) == 2, ran.out
        assert shown[0][-2:] == ["-", "-"]


def test_watch_says_since_when_the_server_is_silent(own_server: Callable[..., Server], prefix: str) -> None:
    """The screen goes on: its clock, what was known last, and what is wrong; then all is well again."""
    server = own_server()
    settings = ManagerSettings(redis_url=server.url, prefix=prefix)
    with Producer(settings=ProducerSettings(redis_url=server.url, prefix=prefix)) as producer:
        producer.send("orders", b"", delay=60)
    with Admin(settings=settings) as admin:
        reader = Reader(admin, None)
        assert "waiting for the server's first answer" in _screen(reader)
        reader.read()
        since = f"{reader.silent_since:%H:%M:%S}Z"
        assert "no answer" not in _screen(reader)
        server.kill()
        reader.read()
        shown = _screen(reader, later_s=75)
        assert f"no answer from the server since {since} (1m15s)" in shown
        assert f"as of {since}:" in shown
        assert "orders" in shown
        server.start()
        reader.read()
        assert "no answer" not in _screen(reader)


def test_watch_without_a_terminal_names_a_silent_server(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    """On stderr, and what it prints is as before once the server is back."""
    _sleep_by(monkeypatch, _interrupt)
    ran = Commands("redis://127.0.0.1:1", prefix).manager("status", "--watch", "1")
    assert (ran.code, ran.out) == (130, "")
    assert "no answer from the server since" in ran.err
    assert commands.manager("status", "nope", "--watch", "1").code == 2, "an unknown topic stays unknown"


def _sleep_by(monkeypatch: pytest.MonkeyPatch, sleep: Callable[[float], None]) -> None:
    # Only in this module: other threads sleep meanwhile, too.
    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))


def _interrupt(_: float) -> None:
    raise KeyboardInterrupt


def _screen(reader: Reader, *, height: int = 24, width: int = 100, later_s: float = 0.0) -> str:
    console = Console(width=width, height=height, force_terminal=False)
    now = reader.silent_since + timedelta(seconds=later_s)
    with console.capture() as capture:
        console.print(render(reader, now, 2.0, width=width, height=height))
    return capture.get()


@pytest.mark.parametrize(
    ("values", "bars"),
    [
        ([], ""),
        ([None, 0.0], " ▁"),
        ([0.0, 50.0, 100.0, None, 25.0], "▁▅█ ▃"),
        ([3.0, 3.0], "██"),
    ],
)
def test_a_sparkline_has_a_bar_for_each_reading(values: list[float | None], bars: str) -> None:
    """The highest rate is a full bar."""
    assert sparkline(values) == bars


def test_watch_draws_rates_as_sparklines(orders: Queue, redis_url: str, prefix: str) -> None:
    """The latest readings of a topic."""
    with Admin(settings=ManagerSettings(redis_url=redis_url, prefix=prefix)) as admin:
        reader = Reader(admin, None)
        orders.join("billing")
        for count in (0, 0, 5, 0):
            for _ in range(count):
                orders.send(f"m{orders.now_ms}")
                orders.now_ms += 1
            reader.read()
        assert " ▁█▁ " in _screen(reader, width=160)


@pytest.mark.parametrize("height", [8, 12, 20, 24, 50, 200])
@pytest.mark.parametrize("width", [40, 80, 200])
def test_watch_fits_the_screen(redis_url: str, prefix: str, height: int, width: int) -> None:
    """However many topics there are, and however long their names: what is left out is counted."""
    statuses = [
        TopicStatus(topic=f"topic-{number:03}" + "x" * 100, waiting=1, groups=(GroupStatus("billing", 0, 0, 1),))
        for number in range(102)
    ]
    with Admin(settings=ManagerSettings(redis_url=redis_url, prefix=prefix)) as admin:
        reader = Reader(admin, None)
        reader.reading = Reading(reader.silent_since, 0.0, statuses, [], ())
        lines = _screen(reader, height=height, width=width).splitlines()
    assert len(lines) < height
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if line.strip().startswith("top") and not line.startswith("topic ")]
    left_out = [int(line.split()[1]) for line in lines if line.startswith("and ")]
    tables = 1 if height < 12 else 2 if height < 20 else 3
    assert len(rows) + sum(left_out) == 102 * tables
    assert len(left_out) == tables
    assert width < 80 or any(" 1 " in row for row in rows)


def test_unhealthy_topics_come_first(orders: Queue, commands: Commands, declare: Callable[..., Any]) -> None:
    """What cannot be read, what is late, what nobody reads, what has garbage; then the others by name."""
    declare("a-well")
    declare("z-garbage")
    declare("z-damaged")
    orders.now_ms -= HOUR
    orders.send("late", due="+1000")
    garbage = Queue(orders.connection, ShardKeys(orders.keys.prefix, "z-garbage"))
    garbage.join("g")
    garbage.send("m")
    garbage.nack(*garbage.read("g"), rejected=True)
    orders.connection.call(command("SET", ShardKeys(orders.keys.prefix, "z-damaged").of("waiting"), "x"))
    rows = commands.manager("status").rows
    assert [row[0] for row in rows[1:5]] == ["z-damaged", "orders", "z-garbage", "a-well"]
    names = [topic["topic"] for topic in commands.manager("status", "--json").document]
    assert names == ["a-well", "orders", "z-damaged", "z-garbage"]


def test_a_status_of_many_topics_is_read_in_short_steps(
    redis_url: str, prefix: str, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event loop has other work. No step reads the entries of many groups, or makes what is told of many topics."""
    for topic in (f"t{number}" for number in range(12)):
        client.hset(topics_key(prefix), topic, "{}")
        ready = ShardKeys(prefix, topic).of("ready")
        for group in ("a", "b"):
            client.xgroup_create(ready, group, "0", mkstream=True)
        client.xadd(ready, {"id": "x", "due": 1, "n": 1})
    made = pages = most_made = most_pages = 0

    def counted(told: TopicStatus, **fields: Any) -> TopicStatus:
        nonlocal made
        made += 1
        return replace(told, **fields)

    monkeypatch.setattr(status, "replace", counted)
    monkeypatch.setattr(status, "_AT_ONCE", 3)
    flow = status.read_status(prefix)
    with Connection(redis_url) as connection, suppress(StopIteration):
        step = next(flow)
        while True:
            calls = (step,) if isinstance(step, Call) else step
            pages = sum(call.args[0] == "XRANGE" and call.args[-1] == PAGE for call in calls)
            result = connection.call(step) if isinstance(step, Call) else connection.execute_each(step)
            most_pages, made = max(most_pages, pages), 0
            try:
                step = flow.send(result)
            finally:
                most_made = max(most_made, made)
    assert (most_made, most_pages) == (3, 5)
