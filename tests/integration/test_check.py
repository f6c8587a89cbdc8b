"""`lisa-manager check`: finds what is planted, mends what is safe to mend, and leaves a busy topic alone."""

from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from typing import Any

import pytest
import redis

from lisa_common.client.connection import Connection
from lisa_common.model.keys import KEY_TYPES, ShardKeys, topics_key
from lisa_common.model.record import pack_content
from lisa_common.protocol.call import Flow, command
from lisa_common.protocol.consuming import server_time
from lisa_common.protocol.producing import State
from lisa_common.protocol.scripts import load
from lisa_manager import AsyncAdmin
from lisa_manager.admin.audit.check import Report, check, check_topics
from lisa_manager.admin.audit.snapshot import look, read_snapshot, repair
from lisa_producer import AsyncProducer
from support.commands import Commands
from support.proxy import Proxy
from support.queue import Queue
from support.server import Server
from support.stepping import Stepped

DAY = 86_400_000


@pytest.fixture
def busy(orders: Queue) -> Queue:
    """A topic with messages in every state, two groups, a cancelled delivery, and time to live."""
    orders.join("billing")
    orders.send("before the second group")
    orders.join("mail")
    orders.read("billing")
    for id in ("retry", "garbage", "promoted", "released", "cancelled", "acked", "replayed"):
        orders.send(id, ttl_ms=DAY)
    taken = {delivery.id: delivery for delivery in orders.read("billing")}
    orders.nack(taken["retry"], delay_ms=DAY)
    orders.nack(taken["garbage"], taken["replayed"], rejected=True)
    orders.nack(taken["promoted"], delay_ms=0)
    orders.promote()
    orders.release(taken["released"])
    orders.cancel("cancelled")
    orders.ack(taken["acked"])
    orders.replay("billing/replayed")
    orders.read("mail", limit=3)
    orders.send("waiting", due=f"+{DAY}", priority=7, ttl_ms=DAY)
    orders.send("ready")
    return orders


def _problems(commands: Commands, *options: str) -> list[tuple[str, str, str | None]]:
    ran = commands.manager("check", "--json", *options)
    found = [(p["problem"], p["id"], p["group"]) for p in ran.document["problems"]]
    return sorted(found, key=lambda problem: (problem[0], problem[1], problem[2] or ""))


def test_what_scripts_leave_is_sound(busy: Queue, commands: Commands) -> None:
    """A topic with everything in it passes (promise 9)."""
    ran = commands.manager("check", "orders")
    assert (ran.code, ran.out) == (0, f"{len(busy.contents().records)} messages in 1 topics: each is in its place\n")


def _do(queue: Queue, *words: Any) -> None:
    queue.connection.call(command(*words))


def _lose_waiting(queue: Queue) -> None:
    _do(queue, "ZREM", queue.keys.of("waiting"), "waiting")


def _lose_retry(queue: Queue) -> None:
    _do(queue, "ZREM", queue.keys.of("retry"), "billing/retry")


def _lose_entry(queue: Queue) -> None:
    entry = next(entry for entry, fields in queue.contents().stream.items() if fields["id"] == "ready")
    _do(queue, "XDEL", queue.keys.of("ready"), entry)


def _ack_by_hand(queue: Queue) -> None:
    (entry,) = (entry for entry in queue.contents().groups["billing"].pending if _id(queue, entry).startswith("before"))
    _do(queue, "XACK", queue.keys.of("ready"), "billing", entry)


def _id(queue: Queue, entry: str) -> str:
    return queue.contents().stream[entry]["id"]


def _lose_record(queue: Queue) -> None:
    _do(queue, "HDEL", queue.keys.of("messages"), "retry")


def _add_strangers(queue: Queue) -> None:
    _do(queue, "ZADD", queue.keys.of("waiting"), 1, "stranger")
    _do(queue, "ZADD", queue.keys.of("garbage"), 1, "/buried")
    _do(queue, "HSET", queue.keys.of("owed"), "owed", "billing,mail")
    _do(queue, "HSET", queue.keys.of("failures"), "billing/failed", "1 1-0 - 1 1 nack no")
    _do(queue, "ZADD", queue.keys.of("expiring"), 1, "expiring")
    _do(queue, "ZADD", queue.keys.of("finished"), 9 * 10**12, "generated~")


def _forget_expiry(queue: Queue) -> None:
    _do(queue, "ZREM", queue.keys.of("expiring"), "waiting")


def _owe_to_the_dead(queue: Queue) -> None:
    _do(queue, "HSET", queue.keys.of("owed"), "ready", "billing,gone,mail")


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (_lose_waiting, [("lost", "waiting", None)]),
        (_lose_retry, [("lost", "retry", "billing")]),
        (_lose_entry, [("lost", "ready", "billing"), ("lost", "ready", "mail")]),
        (_ack_by_hand, [("lost", "before the second group", None)]),
        (
            _lose_record,
            [
                ("dangling", "retry", None),
                ("owed", "retry", None),
                ("stray", "retry", None),
                ("stray", "retry", "billing"),
            ],
        ),
        (
            _add_strangers,
            [
                ("dangling", "expiring", None),
                ("dangling", "failed", "billing"),
                ("dangling", "generated~", None),
                ("owed", "owed", None),
                ("stray", "buried", None),
                ("stray", "stranger", None),
            ],
        ),
        (_forget_expiry, [("unwatched", "waiting", None)]),
        (_owe_to_the_dead, [("dead group", "ready", "gone")]),
    ],
)
def test_planted_problems_are_found_and_mended(
    busy: Queue, commands: Commands, plant: Callable[[Queue], None], found: list[tuple[str, str, str | None]]
) -> None:
    """First only told, exit code 1; then mended; then all is well."""
    plant(busy)
    before = busy.contents()
    assert commands.manager("check").code == 1
    assert _problems(commands) == found
    assert busy.contents() == before, "a check changes nothing"
    ran = commands.manager("check", "--repair", "--json")
    assert (ran.code, all(problem["mended"] for problem in ran.document["problems"])) == (0, True)
    assert commands.manager("check").code == 0


def test_a_lost_message_is_delivered_again(busy: Queue, commands: Commands) -> None:
    """In the group that lost it, with the attempts that are known to have been made (promises 2 and 7)."""
    _lose_retry(busy)
    busy.read("billing")
    assert commands.manager("check", "--repair").code == 0
    assert [(d.id, d.attempt) for d in busy.read("billing")] == [("retry", 2)]


@pytest.mark.parametrize("ttl_ms", [1, 2**48 - 1])
def test_a_repair_of_times_beyond_ours_holds(orders: Queue, commands: Commands, ttl_ms: int) -> None:
    """What a record of a neighbour says of its times stays as it says: a repair is not made again for ever."""
    head = b"\1" + b"\0" * 6 + b"\xff" * 6
    _do(orders, "HSET", orders.keys.of("messages"), "far", head + pack_content(b"", ttl_ms=ttl_ms, priority=255))
    assert _problems(commands, "--repair") == [("lost", "far", None)]
    assert _problems(commands, "--repair") == [("unwatched", "far", None)]
    assert _problems(commands) == []


def test_a_lost_message_without_groups_is_ready(orders: Queue, commands: Commands) -> None:
    """For the first group to come."""
    orders.send("m")
    _do(orders, "XDEL", orders.keys.of("ready"), *orders.contents().stream)
    assert _problems(commands, "--repair") == [("lost", "m", None)]
    assert commands.manager("check").code == 0
    orders.join("billing")
    [delivery] = orders.read("billing")
    orders.ack(delivery)
    assert orders.contents().records == {}


@pytest.mark.parametrize("owed", [None, "billing,mail"])
def test_a_lost_message_that_is_due_later_waits(orders: Queue, commands: Commands, owed: str | None) -> None:
    """Nobody is delivered it before its time (promise 1), and everybody then."""
    orders.join("billing", "mail")
    due_ms = orders.send("m", due=f"+{DAY}", priority=7, ttl_ms=DAY)
    before = orders.contents()
    _do(orders, "DEL", orders.keys.of("waiting"))
    if owed:
        _do(orders, "HSET", orders.keys.of("owed"), "m", owed)
    assert _problems(commands, "--repair") == [("lost", "m", None)]
    assert orders.contents() == before
    orders.now_ms = due_ms
    assert orders.promote().count == 1
    assert orders.contents().owed == {"m": "billing,mail"}


def test_what_cannot_be_mended_safely_is_left(busy: Queue, commands: Commands) -> None:
    """It is told, also with --repair, and is exit code 1."""
    _do(busy, "ZADD", busy.keys.of("waiting"), 1, "ready")
    ran = commands.manager("check", "orders", "--repair")
    assert ran.code == 1
    assert "twice" in ran.out
    assert "wrong time" in ran.out
    assert busy.contents().waiting["ready"] == 1


def test_a_repair_is_given_up_when_something_changed(orders: Queue) -> None:
    """A look and its repair are one: what moved between them is left alone."""
    orders.send("m", due="+1000")
    _do(orders, "ZREM", orders.keys.of("waiting"), "m")
    snapshot = orders.connection.run(read_snapshot(orders.keys))
    looked = orders.connection.call(look(orders.keys, snapshot.of("m"), snapshot.last))
    steps = [("ready", "", "m", orders.now_ms)]
    _do(orders, "ZADD", orders.keys.of("waiting"), orders.now_ms + 1000, "m")
    assert orders.connection.call(repair(orders.keys, looked, steps)) is False
    assert orders.contents().stream == {}
    assert orders.connection.call(server_time()) > 0


def test_what_comes_meanwhile_is_no_hindrance(orders: Queue) -> None:
    """Thousands of entries that came since the snapshot leave no suspect undecided."""
    orders.join("billing")
    orders.send("m", due="+1000")
    _do(orders, "ZREM", orders.keys.of("waiting"), "m")
    entries = "for i = 1, 6000 do redis.call('XADD', KEYS[1], '*', 'foreign', i) end"
    audit = Stepped(orders.connection, check(orders.keys, mend=True))
    while not audit.is_next("TIME"):
        audit.step()
    _do(orders, "EVAL", entries, 1, orders.keys.of("ready"))
    report = audit.finish()
    assert (report.undecided, [finding.mended for finding in report.findings]) == (0, [True])


def test_topics_share_round_trips(orders: Queue, client: redis.Redis) -> None:
    """An audit of thousands of topics would take minutes else."""
    prefix = orders.keys.prefix
    client.hset(topics_key(prefix), mapping={f"mails-{number}": "{}" for number in range(10)})

    def counted(topic: str | None) -> Flow[int]:
        flow, trips, reply = check_topics(prefix, topic, mend=False), 0, None
        with suppress(StopIteration):
            while True:
                reply = yield flow.send(reply)
                trips += 1
        return trips

    of_one, of_all = (orders.connection.run(counted(topic)) for topic in ("mails-1", None))
    assert of_all < of_one + 10


def test_bodies_are_not_read(orders: Queue) -> None:
    """An audit takes twenty bytes of each record."""
    orders.send("m", body=b"x" * 1_000_000)
    before = orders.connection.call(command("INFO", "stats"))
    orders.connection.run(check(orders.keys, mend=False))
    after = orders.connection.call(command("INFO", "stats"))
    assert _output_bytes(after) - _output_bytes(before) < 100_000


def _output_bytes(info: bytes) -> int:
    return int(info.partition(b"total_net_output_bytes:")[2].split()[0])


def test_a_busy_topic_raises_no_false_alarm(orders: Queue, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While messages are sent, delivered, retried and acked, no check finds anything."""
    monkeypatch.setattr("lisa_manager.admin.audit.snapshot.PAGE", 10)
    monkeypatch.setattr("lisa_manager.admin.audit.snapshot._RECORDS", 10)
    orders.join("billing", "mail")
    stop = Event()
    trafficker = Thread(target=_traffic, args=(orders, redis_url, stop))
    trafficker.start()
    try:
        with Connection(redis_url, name="check") as connection:
            reports: list[Report] = []
            while len(reports) < 30 or not any(report.messages for report in reports):
                reports.append(connection.run(check(orders.keys, mend=True)))
    finally:
        stop.set()
        trafficker.join()
    assert [finding for report in reports for finding in report.findings] == []
    assert sum(report.messages for report in reports) > 0


def _traffic(orders: Queue, redis_url: str, stop: Event) -> None:
    number = 0
    with Connection(redis_url, name="traffic") as connection:
        # Far enough in the past that it stays there, however fast it goes.
        queue = Queue(connection, orders.keys, now_ms=orders.now_ms - 3_600_000)
        while not stop.is_set():
            for _ in range(20):
                number += 1
                queue.send(f"m{number}", due="+5", ttl_ms=None if number % 2 else DAY)
            queue.advance(5)
            queue.promote()
            for group in ("billing", "mail"):
                for delivery in queue.read(group, limit=15):
                    if delivery.attempt == 1 and int(delivery.id[1:]) % 3 == 0:
                        queue.nack(delivery, delay_ms=5)
                    else:
                        queue.ack(delivery)
            with suppress(ValueError):
                queue.cancel(f"m{number}")
            queue.trim()


def test_keys_of_another_type_are_deleted(orders: Queue, commands: Commands) -> None:
    """Each of a shard, at once: what a check says of a repair holds."""
    orders.send("m")
    names = [name for name, kind in KEY_TYPES.items() if kind != "string"]
    for name in names:
        _do(orders, "SET", orders.keys.of(name), "of another type")
    found = commands.manager("check", "--json").document["problems"]
    assert [(problem["detail"].split()[0], problem["mendable"]) for problem in found] == [
        (name, True) for name in names
    ]
    assert commands.manager("check", "--repair").code == 0
    assert _problems(commands) == []


async def test_a_repair_whose_reply_is_lost_is_told_and_goes_on(own_server: Callable[..., Server]) -> None:
    """The request that mends damaged keys is repeated, and finds nothing to do: messages are mended all the same."""
    server = own_server()
    async with Proxy(server.port) as proxy, AsyncProducer(server.url) as producer:
        await producer.send("orders", b"x", id="a", delay=600)
        with server.client() as client:
            client.set(ShardKeys("lisa", "orders").of("waiting"), "no set")
        async with AsyncAdmin(proxy.url, patience_s=5) as admin:
            # Else the reply that is lost says that the server lacks the script.
            await admin.load_scripts()
            proxy.lose_reply_to(b"EVALSHA\r\n$40\r\n" + load("reset").sha.encode())
            report = await admin.check("orders", repair=True)
        assert proxy.lost == 1
        assert [finding.mended for finding in report.findings] == [True, True]
        found = await producer.find("orders", "a")
        assert found is not None
        assert found.state is State.WAITING
