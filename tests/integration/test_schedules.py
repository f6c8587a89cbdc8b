"""Schedules end to end: operators, workers and managers, on a real server."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.connection import Connection
from lisa_common.errors import InvalidInput, UnknownSchedule
from lisa_common.model.schedule import Schedule
from lisa_common.protocol.call import Flow
from lisa_common.protocol.registry import Topics
from lisa_common.protocol.schedules import Ticked
from lisa_common.protocol.scheduling import declare, send_page
from lisa_consumer import AsyncConsumer, ConsumerSettings, Delivery, Worker
from lisa_manager import DEFAULT, Admin, ManagerSettings
from lisa_manager.admin.schedules.changes import import_schedules
from lisa_manager.jobs.discoverer import Discoverer
from lisa_manager.jobs.ticker import Ticker
from lisa_manager.resharding import close_former
from lisa_manager.shard_table import ShardTable
from lisa_producer import Producer, ProducerSettings
from support import wait_until, wait_until_async
from support.commands import Commands
from support.metrics import metrics_url, scrape
from support.processes import Programs
from support.running import managed
from support.server import Server
from support.stepping import Stepped

_DAY_MS = 86_400_000

_YEARS_S = 300_000_000
"""A period that does not end while a test runs: the next whole multiple since 1970 is in 2027."""


@pytest.fixture
def admin(redis_url: str, prefix: str) -> Admin:
    """An operator on the test's own prefix."""
    return Admin(settings=ManagerSettings.load(redis_url=redis_url, prefix=prefix))


def _ticks(client: redis.Redis, prefix: str, topic: str = "orders") -> list[str]:
    return [fields[b"id"].decode() for _, fields in client.xrange(f"{prefix}:{{{topic}}}:ready")]


def test_an_operator_changes_a_schedule(admin: Admin) -> None:
    """Fields that are not named stay; the same again changes nothing; a new rhythm replaces the other one."""
    assert admin.set_schedule("orders", "s", every=60, body={"a": 1}, priority=3)
    assert not admin.set_schedule("orders", "s", every=60)
    assert admin.set_schedule("orders", "s", cron="30 2 * * *", tz="Europe/Berlin", priority=DEFAULT)
    schedule = admin.schedule("orders", "s").schedule
    assert schedule is not None
    assert (schedule.every_ms, schedule.cron, schedule.priority, schedule.body) == (
        None,
        "30 2 * * *",
        None,
        b'{"a":1}',
    )
    state = admin.schedule("orders", "s")
    assert state.in_words == "At 02:30 every day (Europe/Berlin)"
    assert len(state.next_ticks()) == 10
    assert state.is_sent_ahead
    assert admin.pause_schedule("orders", "s")
    assert not admin.pause_schedule("orders", "s")
    assert (admin.schedule("orders", "s").next_ms, admin.sizes("orders")[0].waiting) == (None, 0)
    assert admin.resume_schedule("orders", "s")
    assert admin.sizes("orders")[0].waiting == 1
    first, second = admin.schedule("orders", "s").next_ticks(2)
    assert admin.skip_tick("orders", "s") == first
    assert admin.skip_tick("orders", "s") == first, "called again, it skips no more"
    assert admin.schedule("orders", "s").next_ms == second
    admin.pause_schedule("orders", "s")
    admin.resume_schedule("orders", "s")
    assert admin.schedule("orders", "s").next_ms == second, "a pause ends no skip"
    admin.delete_schedule("orders", "s")
    assert (admin.list_schedules(), admin.sizes("orders")[0].waiting) == ([], 0)
    for call in (admin.schedule, admin.pause_schedule, admin.delete_schedule, admin.run_now, admin.skip_tick):
        with pytest.raises(UnknownSchedule, match="there is no schedule 's' of topic 'orders'"):
            call("orders", "s")
    assert admin.check().findings == ()


@pytest.mark.parametrize("change", ["body", "pause", "delete", "skip"])
def test_a_skip_and_the_next_change_leave_a_message_that_is_due(admin: Admin, change: str) -> None:
    """It may wait at a limit of its topic. Another skip, and a change of the body, leave the same tick out."""
    admin.set_policy("orders", paused=True)
    tick = admin.server_time().replace(microsecond=0) + timedelta(seconds=2)
    tick_ms = round(tick.timestamp() * 1_000)
    admin.set_schedule("orders", "s", cron=f"{tick:%S %M %H} * * *", overlap="skip")
    wait_until(lambda: admin.server_time() >= tick, what="the tick")
    assert admin.skip_tick("orders", "s") == tick_ms + _DAY_MS
    state = admin.schedule("orders", "s")
    assert (state.last_ms, state.next_ms, state.is_sent_ahead) == (tick_ms, tick_ms + 2 * _DAY_MS, False)
    assert (state.sent, state.skipped, len(state.next_ticks())) == (1, 1, 10)
    if change == "body":
        admin.set_schedule("orders", "s", body="other")
    elif change == "pause":
        admin.pause_schedule("orders", "s")
    elif change == "delete":
        admin.delete_schedule("orders", "s")
    else:
        assert admin.skip_tick("orders", "s") == tick_ms + _DAY_MS
    assert [message.at_ms for message in admin.messages("orders", "waiting").messages] == [tick_ms]
    if change in {"body", "skip"}:
        assert admin.schedule("orders", "s").next_ms == tick_ms + 2 * _DAY_MS


def test_topics_have_schedules_of_one_name(admin: Admin) -> None:
    """A name belongs to its topic; the list is sorted by both."""
    for topic in ("orders", "mail"):
        admin.set_schedule(topic, "s", every=3600, body=topic)
    assert [(state.topic, state.name) for state in admin.list_schedules()] == [("mail", "s"), ("orders", "s")]
    admin.delete_schedule("orders", "s")
    assert {sizes.topic: sizes.waiting for sizes in admin.sizes()} == {"orders": 0, "mail": 1}
    assert [state.topic for state in admin.list_schedules()] == ["mail"]
    assert admin.list_schedules("orders") == []
    assert admin.check().findings == ()


def test_bad_input_writes_nothing(admin: Admin, client: redis.Redis, prefix: str) -> None:
    """Neither to the registry nor anywhere else."""
    bad: list[dict[str, Any]] = [
        {},
        {"every": 60, "subject": "mail"},
        {"cron": "0 0 31 2 *"},
        {"every": 0.001},
        {"cron": "* * * * *", "tz": "Nowhere/Here"},
    ]
    for fields in bad:
        with pytest.raises(InvalidInput):
            admin.set_schedule("orders", "s", **fields)
    with pytest.raises(InvalidInput, match="topic of schedule no topic/b"):
        admin.import_schedules({"orders": {"a": {"every": 60}}, "no topic": {"b": {"every": 60}}})
    assert client.keys(f"{prefix}:*") == []


@pytest.mark.slow
async def test_a_worker_declares_its_schedules(redis_url: str, prefix: str, admin: Admin, client: redis.Redis) -> None:
    """Each message says which tick it is; many workers declare once; an operator's pause stays."""
    seen: list[Delivery] = []

    def worker() -> Worker:
        made = Worker("g", settings=ConsumerSettings(redis_url=redis_url, prefix=prefix, block_s=0.2))

        @made.every(1, body="go", headers={"own": "x"})
        async def beat(delivery: Delivery) -> None:
            seen.append(delivery)

        @made.cron("30 2 * * *", tz="Europe/Berlin", topic="reports")
        def nightly(delivery: Delivery) -> None:
            seen.append(delivery)

        return made

    workers = [worker() for _ in range(3)]
    serving = [asyncio.create_task(each.serve()) for each in workers]
    async with managed(redis_url, prefix):
        await wait_until_async(lambda: len(seen) >= 3, 20, what="three ticks")
    for each in workers:
        each.stop()
    await asyncio.gather(*serving)
    assert len({delivery.headers["lisa-tick"] for delivery in seen}) == len(seen)
    assert {delivery.headers["lisa-schedule"] for delivery in seen} == {"beat"}
    assert {delivery.headers["own"] for delivery in seen} == {"x"}
    assert {delivery.body for delivery in seen} == {b"go"}
    states = {state.name: state for state in await asyncio.to_thread(admin.list_schedules)}
    assert states.keys() == {"beat", "nightly"}
    await asyncio.to_thread(admin.pause_schedule, "beat", "beat")
    version = (await asyncio.to_thread(admin.schedule, "beat", "beat")).version
    again = worker()

    @again.every(3600)
    def last(delivery: Delivery) -> None:
        """Declared after the others."""

    task = asyncio.create_task(again.serve())
    await wait_until_async(
        lambda: client.hexists(f"{prefix}:{{last}}:schedules", "last"), 20, what="the last declaration"
    )
    again.stop()
    await task
    assert (await asyncio.to_thread(admin.schedule, "beat", "beat")).version == version


@asynccontextmanager
async def _ticker(redis_url: str, prefix: str) -> AsyncIterator[tuple[AsyncConnection, Callable[[], Awaitable[None]]]]:
    """A manager that hears no wakes, and its turn."""
    settings = ManagerSettings(redis_url=redis_url, prefix=prefix, housekeeping_s=0.05)
    async with AsyncConnection.of(settings, name="ticker") as connection:
        table = ShardTable(prefix, fallback_s=1)
        discoverer = Discoverer(connection, table)
        ticker = Ticker(connection, table, discoverer, settings)

        async def turn() -> None:
            await discoverer.turn()
            await ticker.turn()

        yield connection, turn


async def test_a_change_without_a_wake_is_seen_at_the_next_turn(redis_url: str, prefix: str, admin: Admin) -> None:
    """The first schedule of a topic within two seconds."""
    async with _ticker(redis_url, prefix) as (connection, turn):

        async def declare_it(**fields: Any) -> None:
            schedule = Schedule.of({"topic": "orders", "name": "s", "every_ms": 86_400_000} | fields)
            await connection.run(declare(Topics(prefix), schedule))

        async def is_sent_ahead() -> bool:
            await turn()
            return (await asyncio.to_thread(admin.schedule, "orders", "s")).is_sent_ahead

        await asyncio.to_thread(admin.create_topic, "orders")
        await declare_it()
        await wait_until_async(is_sent_ahead, what="the first tick ahead")
        await declare_it(body=b"other")
        assert not (await asyncio.to_thread(admin.schedule, "orders", "s")).is_sent_ahead
        assert await is_sent_ahead()


async def test_a_topic_whose_schedules_cannot_be_read_stops_no_other(
    redis_url: str, prefix: str, admin: Admin, client: redis.Redis
) -> None:
    """Wherever it stands in the list."""
    for topic in ("bad-1", "good", "bad-2"):
        await asyncio.to_thread(lambda each=topic: admin.set_schedule(each, "s", every=1))
    for topic in ("bad-1", "bad-2"):
        client.set(f"{prefix}:{{{topic}}}:ticks", "of another program")
    async with _ticker(redis_url, prefix) as (_, turn):

        async def is_sent() -> bool:
            await turn()
            return (await asyncio.to_thread(admin.schedule, "good", "s")).sent >= 3

        await wait_until_async(is_sent, 20, what="three ticks")


async def test_a_full_topic_is_not_asked_all_the_time(
    redis_url: str, prefix: str, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tick that is sent at its moment, and that the topic does not take, is tried again at the next poll."""
    asked: list[float] = []

    def note(*args: Any) -> Flow[Ticked]:
        asked.append(time.monotonic())
        return send_page(*args)

    monkeypatch.setattr("lisa_manager.jobs.ticker.send_page", note)
    await asyncio.to_thread(lambda: admin.create_topic("orders", max_messages=1))
    with Producer(settings=ProducerSettings(redis_url=redis_url, prefix=prefix)) as producer:
        producer.send("orders", b"x", delay=3_600)
    await asyncio.to_thread(lambda: admin.set_schedule("orders", "s", every=1, overlap="skip"))
    async with _ticker(redis_url, prefix) as (_, turn):

        async def is_refused() -> bool:
            asked.clear()
            await turn()
            return bool(asked) and (await asyncio.to_thread(admin.schedule, "orders", "s")).is_overdue

        await wait_until_async(is_refused, 20, what="a tick that is refused")
        for _ in range(3):
            await turn()
    assert len(asked) <= 3


async def test_a_server_that_refuses_ticks_is_logged_once(own_server: Callable[..., Server], caplog: Any) -> None:
    """Though most turns have none to send, and so do not fail; the tick comes once the server has memory."""
    caplog.set_level("INFO", "lisa_manager.jobs.ticker")
    server = own_server(maxmemory_policy="noeviction")
    with Admin(settings=ManagerSettings(redis_url=server.url)) as admin, server.client() as client:
        await asyncio.to_thread(lambda: admin.set_schedule("orders", "s", every=1))
        async with _ticker(server.url, "lisa") as (_, turn):

            async def told() -> list[str]:
                await turn()
                return [record.event for record in caplog.records if record.name == "lisa_manager.jobs.ticker"]

            client.config_set("maxmemory", 1_000_000)
            await wait_until_async(told, 20, what="a tick that is refused")
            assert [await told() for _ in range(3)] == [["job_failed"]] * 3
            client.config_set("maxmemory", 0)

            async def is_sent() -> bool:
                return await told() == ["job_failed", "job_recovered"]

            await wait_until_async(is_sent, 20, what="the tick")


async def test_ticks_are_due_at_once_where_the_clock_was_set_forward(
    redis_url: str, prefix: str, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Likewise where the machine of the manager slept: its own clock stood still."""
    slept_s = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() - slept_s)
    monkeypatch.setattr("lisa_manager.jobs.ticker.time", clock)
    await asyncio.to_thread(lambda: admin.set_schedule("orders", "s", every=2, overlap="skip"))
    async with _ticker(redis_url, prefix) as (_, turn):

        async def has_sent(count: int) -> bool:
            await turn()
            state = await asyncio.to_thread(admin.schedule, "orders", "s")
            return state.sent + state.skipped >= count

        await wait_until_async(lambda: has_sent(1), 20, what="the first tick")
        slept_s = 3_600.0
        await wait_until_async(lambda: has_sent(2), 20, what="the next tick")


def test_two_declarations_of_one_name_are_refused() -> None:
    """In one worker; so are wrong fields, when the module is imported."""
    worker = Worker("g", settings=ConsumerSettings())
    worker.every(60, name="a", topic="one")(lambda _: None)
    worker.every(60, name="a", topic="two")(lambda _: None)
    with pytest.raises(InvalidInput, match="schedule must be the name of one function only"):
        worker.every(60, name="a", topic="one")(lambda _: None)
    with pytest.raises(InvalidInput, match="cron must be"):
        worker.cron("x", name="b")(lambda _: None)


@pytest.mark.slow
def test_a_topic_is_dropped_with_its_schedules(admin: Admin, redis_url: str, prefix: str, tmp_path: Path) -> None:
    """Only by force; no manager brings it back."""
    admin.set_schedule("orders", "s", every=1)
    programs = Programs(redis_url, prefix, tmp_path)
    try:
        programs.manager()
        dropped = admin.drop_topic("orders")
        assert (dropped.done, dropped.schedules) == (False, 1)
        dropped = admin.drop_topic("orders", force=True)
        assert (dropped.done, dropped.schedules) == (True, 1)
        programs.manager()
        assert (admin.topics(), admin.list_schedules()) == ([], [])
    finally:
        programs.close()


@pytest.mark.slow
def test_ticks_go_on_through_a_reshard(
    admin: Admin, redis_url: str, prefix: str, client: redis.Redis, tmp_path: Path
) -> None:
    """Each tick once, in the first shard of some layout; the former shards drain."""
    admin.set_schedule("orders", "s", every=1, catchup="all")
    programs = Programs(redis_url, prefix, tmp_path)
    try:
        programs.manager()
        for shards in (3, 2):
            sent = admin.schedule("orders", "s").sent
            wait_until(lambda before=sent: admin.schedule("orders", "s").sent >= before + 2, 20)
            admin.reshard("orders", shards)
        wait_until(lambda: admin.schedule("orders", "s").sent >= 6, 30)
        tags = ("orders", *(f"orders/{n}.1" for n in range(3)), *(f"orders/{n}.2" for n in range(2)))
        ids = [id for tag in tags for id in _ticks(client, prefix, tag)]
        ticks = sorted(datetime.fromisoformat(id.removesuffix("~").partition("@")[2]) for id in ids)
        assert [later - tick for tick, later in pairwise(ticks)] == [timedelta(seconds=1)] * (len(ticks) - 1)
        wait_until(lambda: sum(client.exists(f"{prefix}:{{{tag}}}:ticks") for tag in tags) == 1, 20)
        found = admin.find("orders", ids[0])
        assert found is not None
        assert found.id == ids[0]
    finally:
        programs.close()


async def test_a_former_shard_that_forgot_a_move_drains(
    redis_url: str, prefix: str, admin: Admin, client: redis.Redis
) -> None:
    """A node of a Cluster may lose its latest writes. What it has again is of no use, as the new shard serves it."""
    await asyncio.to_thread(lambda: admin.set_schedule("orders", "s", every=86_400))
    keys = [f"{prefix}:{{orders}}:{name}" for name in ("schedules", "ticks")]
    stored = {key: client.hgetall(key) for key in keys}
    await asyncio.to_thread(admin.reshard, "orders", 2)
    async with AsyncConnection.of(ManagerSettings(redis_url=redis_url), name="manager") as connection:
        assert await connection.run(close_former(prefix, "orders")) == []
        for key, fields in stored.items():
            client.delete(key)
            client.hset(key, mapping=fields)
        assert await connection.run(close_former(prefix, "orders")) == [1]
    assert client.exists(*keys) == 0
    assert [state.name for state in await asyncio.to_thread(admin.list_schedules)] == ["s"]


@pytest.mark.slow
async def test_a_tick_is_left_out_while_a_former_shard_holds_one(redis_url: str, prefix: str, admin: Admin) -> None:
    """With overlap = skip, a message that runs while its topic is resharded still counts; once it is acked, no more."""
    await asyncio.to_thread(lambda: admin.set_schedule("orders", "s", every=1, overlap="skip"))
    settings = ConsumerSettings(redis_url=redis_url, prefix=prefix)

    async def skips(more: int) -> None:
        before = (await asyncio.to_thread(admin.schedule, "orders", "s")).skipped
        await wait_until_async(
            lambda: admin.schedule("orders", "s").skipped >= before + more, 20, what="ticks left out"
        )

    async with (
        managed(redis_url, prefix),
        AsyncConsumer("orders", "g", settings=settings) as consumer,
        AsyncConnection.of(ManagerSettings(redis_url=redis_url), name="operator") as connection,
    ):
        [held] = await consumer.read(limit=1, wait=30)
        await skips(2)
        sent = (await asyncio.to_thread(admin.schedule, "orders", "s")).sent
        await asyncio.to_thread(admin.reshard, "orders", 3)
        await skips(1)
        await connection.run(close_former(prefix, "orders"))
        await skips(2)
        assert (await asyncio.to_thread(admin.schedule, "orders", "s")).sent == sent
        assert await consumer.ack(held) == ["acked"]
        [following] = await consumer.read(limit=1, wait=20)
        assert following.shard != held.shard
        assert following.headers["lisa-tick"] > held.headers["lisa-tick"]


@pytest.mark.slow
def test_a_manager_exports_what_it_does_with_schedules(
    admin: Admin, redis_url: str, prefix: str, tmp_path: Path
) -> None:
    """Ticks by outcome, and when the next one is due; nothing more of a schedule that is deleted."""
    programs = Programs(redis_url, prefix, tmp_path)
    name = "lisa_schedule_next_timestamp_seconds"
    try:
        url = metrics_url(programs.manager("--metrics", "127.0.0.1:0"))
        admin.set_schedule("orders", "often", every=1)
        admin.set_schedule("orders", "seldom", every=86_400)
        wait_until(lambda: scrape(url).sum("lisa_schedule_ticks_total", schedule="often", outcome="sent") >= 2, 20)
        wait_until(
            lambda: scrape(url).sum(name, schedule="seldom") * 1000 == admin.schedule("orders", "seldom").next_ms, 20
        )
        assert abs(scrape(url).sum(name, schedule="often") - time.time()) < 30
        admin.delete_schedule("orders", "often")
        wait_until(lambda: not scrape(url).sum(name, schedule="often"), 20, what="a deleted schedule to be forgotten")
        assert scrape(url).sum(name, schedule="seldom")
    finally:
        programs.close()


def test_an_import_of_many_writes_each(admin: Admin) -> None:
    """They are written side by side; a refusal names the schedule, and what is the same is left alone."""
    many: dict[str, dict[str, dict[str, Any]]] = {
        f"t{topic}": {f"s{at}": {"every": _YEARS_S + at} for at in range(topic, 250, 3)} for topic in range(3)
    }
    assert len(admin.import_schedules(many).created) == 250
    many["t1"]["s7"] = {"every": _YEARS_S + 7_000_000}
    done = admin.import_schedules(many)
    assert (done.created, done.changed, len(done.unchanged)) == ((), ("t1/s7",), 249)
    states = admin.list_schedules()
    assert len(states) == 250
    assert all(state.is_sent_ahead for state in states)
    kept = {"t1": {"s7": many["t1"]["s7"]}}
    assert len(admin.import_schedules(kept, prune=["t1"]).deleted) == 82
    assert len(admin.import_schedules(kept, prune=["*"]).deleted) == 167
    assert sum(sizes.waiting for sizes in admin.sizes()) == 1


def test_an_import_prunes_beside_another(admin: Admin, redis_url: str, prefix: str) -> None:
    """Whichever of its round trips the other comes between: what that deleted first is not listed."""
    deleted: set[tuple[str, ...]] = set()
    with Connection(redis_url) as connection:
        for trips in count():
            admin.import_schedules({"orders": {name: {"every": _YEARS_S} for name in ("a", "b")}})
            first = Stepped(connection, import_schedules(Topics(prefix), {}, prune=["orders"]))
            for _ in range(trips):
                first.step()
            if first.done:
                break
            admin.import_schedules({"orders": {"b": {"every": _YEARS_S}}}, prune=["orders"])
            deleted.add(first.finish().deleted)
            assert admin.list_schedules() == []
    assert deleted == {("orders/b",), ("orders/a", "orders/b")}


def test_a_schedule_that_can_never_tick_is_refused(admin: Admin) -> None:
    """Its `until` has passed, or comes before its first tick; of an import nothing is written then."""
    now = datetime.now(UTC)
    start = datetime(now.year + 1, 1, 1, 0, 0, 1, tzinfo=UTC)
    never = {"start": start, "until": start + timedelta(hours=1)}
    for fields in ({"until": now - timedelta(hours=1)}, never):
        with pytest.raises(InvalidInput, match=r"until must be \d{4}-.*Z, its next tick, or later; got \d{4}-"):
            admin.set_schedule("orders", "s", cron="@daily", **fields)
    with pytest.raises(InvalidInput, match="until of schedule orders/s must be"):
        admin.import_schedules({"orders": {"first": {"every": 60}, "s": {"cron": "@daily", **never}}})
    assert admin.list_schedules() == []


def test_a_schedule_that_has_ended_stays(admin: Admin) -> None:
    """It can be imported, changed but for its rhythm, and declared by a worker whose code still has it."""
    ended = {"every": 60, "until": datetime.now(UTC) - timedelta(hours=1)}
    assert admin.import_schedules({"orders": {"s": ended}}).created == ("orders/s",)
    assert admin.import_schedules({"orders": {"s": ended}}).unchanged == ("orders/s",)
    assert admin.set_schedule("orders", "s", body="other")
    assert admin.pause_schedule("orders", "s")
    assert admin.resume_schedule("orders", "s")
    assert admin.schedule("orders", "s").next_ms is None
    with pytest.raises(InvalidInput, match="until must be"):
        admin.set_schedule("orders", "s", every=120)
    assert admin.set_schedule("orders", "s", until=None)
    Worker("jobs").add_schedule("orders", "s", **ended)


def test_run_now_and_backfill(admin: Admin) -> None:
    """Beside the ticks; a backfill that is repeated within the dedup window sends nothing more."""
    admin.set_schedule("orders", "s", every=60)
    id = admin.run_now("orders", "s")
    found = admin.find("orders", id)
    assert found is not None
    now = datetime.now(UTC)
    for sent in (10, 0):
        result = admin.backfill("orders", "s", now - timedelta(minutes=10), now)
        assert result.ticks in {10, 11}
        assert result.sent == (result.ticks if sent else 0)
    with pytest.raises(InvalidInput, match="to must be a time up to now"):
        admin.backfill("orders", "s", now, now + timedelta(days=1))
    with pytest.raises(InvalidInput, match="at most 100000 ticks"):
        admin.backfill("orders", "s", now - timedelta(days=400), now)


def test_the_commands(commands: Commands, tmp_path: Path) -> None:
    """Each of them; what is wrong is one line."""
    made = commands.manager("schedule", "set", "orders", "s", "--cron", "0 9 * * 1", "--tz", "Asia/Tokyo")
    assert made.out.startswith("s: At 09:00 on Monday (Asia/Tokyo); next ")
    shown = commands.manager("schedule", "show", "orders", "s").out
    assert shown.count("Monday, ") == 10
    assert "09:00:00 JST, in " in shown
    limited = ("--until", "2030-01-01T00:00Z", "--ttl", "90m")
    assert commands.manager("schedule", "set", "orders", "s", *limited).code == 0
    shown = commands.manager("schedule", "show", "orders", "s").out
    assert "\nttl: 1h30m\n" in shown
    assert "\nuntil: 2030-01-01T00:00:00" in shown
    listed = commands.manager("schedule", "list", "--json").document
    assert [(each["name"], each["schedule"]["cron"]) for each in listed] == [("s", "0 9 * * 1")]
    for verb in ("pause", "resume", "skip", "run-now"):
        assert commands.manager("schedule", verb, "orders", "s").code == 0
    ran = commands.manager(
        "schedule", "backfill", "orders", "s", "--from", "2026-01-01T00:00Z", "--to", "2026-02-01T00:00Z"
    )
    assert ran.out == "sent 4 ticks of s\n"
    path = tmp_path / "schedules.toml"
    path.write_text(
        '\ufeff[schedules.orders.a]\nevery = "15m"\nbody = { x = 1 }\n'  # Windows writes such a mark
        '[schedules.orders.b]\ncron = "@daily"\nfrom = 2026-01-01T00:00:00Z\n'
    )
    assert commands.manager("schedule", "import", str(path)).out == "2 created, 0 changed, 0 unchanged, 0 deleted\n"
    again = commands.manager("schedule", "import", str(path), "--prune", "orders", "--json").document
    assert again == {"created": [], "changed": [], "unchanged": ["orders/a", "orders/b"], "deleted": ["orders/s"]}
    assert commands.manager("schedule", "delete", "orders", "a", "--yes").out == "deleted a\n"
    for words, told in (
        (["import", str(path), "--prune", "ordres"], "there is no topic 'ordres'"),
        (
            ["set", "orders", "x", "--every", "1ms"],
            "every must be seconds or a timedelta from 1 s to 10 years",
        ),
        (["set", "orders", "x", "--cron", "0 0 31 2 *"], "cron must be five fields"),
        (["show", "orders", "gone"], "there is no schedule 'gone' of topic 'orders'"),
        (["list", "--topic", "ordres"], "there is no topic 'ordres'; did you mean 'orders'?"),
        (["set", "orders", "x", "--priority", "1e1"], "priority must be a whole number from 0 on; got '1e1'"),
        (["set", "orders", "x", "--every", "1h", "--from", "9999-01-01T00:00Z"], "from must be a time from 1970 to"),
        (["set", "orders", "x"], "schedule must be given at least one field"),
        (["set", "orders", "x", "--every", "1h", "--until", "2020-01-01T00:00Z"], "its next tick, or later; got 2020"),
        (["set", "orders", "x", "--every", "1h", "--header", "a=1", "--header", "a=2"], "header must be given once"),
    ):
        ran = commands.manager("schedule", *words)
        assert ran.code == 2
        assert told in ran.err
        assert ran.err.count("\n") == 1
    path.write_text('[schedules.orders.a]\nevery = "soon"\n')
    assert "every of schedule orders/a must be" in commands.manager("schedule", "import", str(path)).err


def test_a_send_at_a_local_time(redis_url: str, prefix: str) -> None:
    """In spring's gap, in autumn's repeated hour, and wrong ones."""
    with Producer(settings=ProducerSettings(redis_url=redis_url, prefix=prefix)) as producer:
        for local, tz, expected in (
            ("2027-03-28 02:30", "Europe/Berlin", datetime(2027, 3, 28, 1, tzinfo=UTC)),
            ("2027-10-31 02:30", "Europe/Berlin", datetime(2027, 10, 31, 0, 30, tzinfo=UTC)),
            ("2027-03-01 08:00", "America/New_York", datetime(2027, 3, 1, 13, tzinfo=UTC)),
        ):
            assert producer.send("orders", "x", at_local=local, tz=tz).due_ms == expected.timestamp() * 1000
        for fields, told in (
            ({"at_local": "2027-03-28 02:30"}, "tz must be an IANA time zone"),
            ({"at_local": "2027-03-28T02:30Z", "tz": "UTC"}, "at_local must be a time without a zone"),
            ({"at_local": "2027-03-28", "tz": "UTC", "delay": 1}, "delay cannot be combined with at_local"),
            ({"tz": "UTC"}, "tz needs at_local"),
            ({"at_local": "2099-01-01", "tz": "UTC"}, "at_local must be a time from 1970"),
        ):
            with pytest.raises(InvalidInput, match=told):
                producer.send("orders", "x", **fields)  # type: ignore[arg-type]


def test_a_topic_that_cannot_be_read_hides_no_other(admin: Admin, client: redis.Redis, prefix: str) -> None:
    """It is listed with the reason."""
    admin.set_schedule("mail", "a", every=60)
    admin.set_schedule("orders", "b", every=60)
    client.set(f"{prefix}:{{orders}}:ticks", "of another program")
    whole, damaged = admin.list_schedules()
    assert (whole.damage, whole.next_ms is None) == ("", False)
    assert (damaged.topic, damaged.schedule, damaged.next_ms) == ("orders", None, None)
    assert "cannot be read: " in damaged.damage


async def test_a_damaged_schedule_is_shown_and_can_be_replaced(
    admin: Admin, client: redis.Redis, redis_url: str, prefix: str
) -> None:
    """Others go on; managers give a schedule whose mark was lost another one."""
    client.hset(f"{prefix}:{{orders}}:schedules", "bad", b"{")
    for name in ("good", "lost", "wrong", "old"):
        await asyncio.to_thread(lambda each=name: admin.set_schedule("orders", each, every=86_400))
    states = await asyncio.to_thread(admin.list_schedules)
    assert [state.name for state in states if state.damage] == ["bad"]
    assert await asyncio.to_thread(lambda: admin.set_schedule("orders", "bad", every=60))
    client.hset(f"{prefix}:{{orders}}:ticks", mapping={"wrong": "x", "old": "1 2 3 4 5 6 -"})
    client.hdel(f"{prefix}:{{orders}}:ticks", "lost")
    async with managed(redis_url, prefix):
        await wait_until_async(
            lambda: all(state.is_sent_ahead for state in admin.list_schedules()), 20, what="the ticks ahead"
        )
    assert (await asyncio.to_thread(admin.check)).findings == ()
