"""Schedules end to end: operators, workers and managers, on a real server."""

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import redis

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import InvalidInput, UnknownSchedule
from lisa_consumer import AsyncConsumer, ConsumerSettings, Delivery, Worker
from lisa_manager import DEFAULT, Admin, ManagerSettings
from lisa_manager.jobs.ticker import Ticker
from lisa_producer import Producer, ProducerSettings
from support import wait_until, wait_until_async
from support.commands import Commands
from support.metrics import metrics_url, scrape
from support.processes import Programs
from support.running import managed

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
    assert admin.set_schedule("s", topic="orders", every=60, body={"a": 1}, priority=3)
    assert not admin.set_schedule("s", every=60)
    assert admin.set_schedule("s", cron="30 2 * * *", tz="Europe/Berlin", priority=DEFAULT)
    schedule = admin.schedule("s").schedule
    assert schedule is not None
    assert (schedule.every_ms, schedule.cron, schedule.priority, schedule.body) == (
        None,
        "30 2 * * *",
        None,
        b'{"a":1}',
    )
    state = admin.schedule("s")
    assert state.in_words == "At 02:30 every day (Europe/Berlin)"
    assert len(state.next_ticks()) == 10
    assert state.is_sent_ahead
    assert admin.pause_schedule("s")
    assert not admin.pause_schedule("s")
    assert (admin.schedule("s").next_ms, admin.sizes("orders")[0].waiting) == (None, 0)
    assert admin.resume_schedule("s")
    assert admin.sizes("orders")[0].waiting == 1
    first, second = admin.schedule("s").next_ticks(2)
    assert admin.skip_tick("s") == first
    assert admin.skip_tick("s") == first, "called again, it skips no more"
    assert admin.schedule("s").next_ms == second
    admin.delete_schedule("s")
    assert (admin.list_schedules(), admin.sizes("orders")[0].waiting) == ([], 0)
    for call in (admin.schedule, admin.pause_schedule, admin.delete_schedule, admin.run_now, admin.skip_tick):
        with pytest.raises(UnknownSchedule, match="there is no schedule 's'"):
            call("s")
    assert admin.check().findings == ()


def test_a_schedule_moves_to_another_topic(admin: Admin) -> None:
    """What it has sent ahead to the former one is taken back."""
    admin.set_schedule("s", topic="orders", every=3600)
    admin.set_schedule("s", topic="mail")
    assert {sizes.topic: sizes.waiting for sizes in admin.sizes()} == {"orders": 0, "mail": 1}
    admin.set_schedule("s", topic="orders")
    assert {sizes.topic: sizes.waiting for sizes in admin.sizes()} == {"orders": 1, "mail": 0}
    assert admin.check().findings == ()


def test_bad_input_writes_nothing(admin: Admin, client: redis.Redis, prefix: str) -> None:
    """Neither to the registry nor anywhere else."""
    bad: list[dict[str, Any]] = [
        {"topic": "orders"},
        {"every": 60},
        {"topic": "orders", "cron": "0 0 31 2 *"},
        {"topic": "orders", "every": 0.001},
        {"topic": "orders", "cron": "* * * * *", "tz": "Nowhere/Here"},
    ]
    for fields in bad:
        with pytest.raises(InvalidInput):
            admin.set_schedule("s", **fields)
    with pytest.raises(InvalidInput, match="topic of schedule b"):
        admin.import_schedules({"a": {"topic": "orders", "every": 60}, "b": {"topic": "no topic", "every": 60}})
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
    await asyncio.to_thread(admin.pause_schedule, "beat")
    version = (await asyncio.to_thread(admin.schedule, "beat")).version
    again = worker()

    @again.every(3600)
    def last(delivery: Delivery) -> None:
        """Declared after the others."""

    task = asyncio.create_task(again.serve())
    await wait_until_async(lambda: client.hexists(f"{prefix}:schedules", "last"), 20, what="the last declaration")
    again.stop()
    await task
    assert (await asyncio.to_thread(admin.schedule, "beat")).version == version


def test_two_declarations_of_one_name_are_refused() -> None:
    """In one worker; so are wrong fields, when the module is imported."""
    worker = Worker("g", settings=ConsumerSettings())
    worker.every(60, name="a", topic="one")(lambda _: None)
    with pytest.raises(InvalidInput, match="schedule must be the name of one function only"):
        worker.every(60, name="a", topic="two")(lambda _: None)
    with pytest.raises(InvalidInput, match="cron must be"):
        worker.cron("x", name="b")(lambda _: None)


@pytest.mark.slow
def test_a_topic_is_dropped_with_its_schedules(admin: Admin, redis_url: str, prefix: str, tmp_path: Path) -> None:
    """Only by force; no manager brings it back."""
    admin.set_schedule("s", topic="orders", every=1)
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
    """Each tick once, in the shard of the schedule's name; the former shards drain."""
    admin.set_schedule("s", topic="orders", every=1, catchup="all")
    programs = Programs(redis_url, prefix, tmp_path)
    try:
        programs.manager()
        for shards in (3, 2):
            sent = admin.schedule("s").sent
            wait_until(lambda before=sent: admin.schedule("s").sent >= before + 2, 20)
            admin.reshard("orders", shards)
        wait_until(lambda: admin.schedule("s").sent >= 6, 30)
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


@pytest.mark.slow
async def test_a_tick_is_left_out_while_a_former_shard_holds_one(redis_url: str, prefix: str, admin: Admin) -> None:
    """With overlap = skip, a message that runs while its topic is resharded still counts; once it is acked, no more."""
    await asyncio.to_thread(lambda: admin.set_schedule("s", topic="orders", every=1, overlap="skip"))
    settings = ConsumerSettings(redis_url=redis_url, prefix=prefix)

    async def skips(more: int) -> None:
        before = (await asyncio.to_thread(admin.schedule, "s")).skipped
        await wait_until_async(lambda: admin.schedule("s").skipped >= before + more, 20, what="ticks left out")

    async with managed(redis_url, prefix), AsyncConsumer("orders", "g", settings=settings) as consumer:
        [held] = await consumer.read(limit=1, wait=10)
        await skips(2)
        sent = (await asyncio.to_thread(admin.schedule, "s")).sent
        await asyncio.to_thread(admin.reshard, "orders", 3)
        await skips(3)
        assert (await asyncio.to_thread(admin.schedule, "s")).sent == sent
        assert await consumer.ack(held) == ["acked"]
        [following] = await consumer.read(limit=1, wait=20)
        assert following.shard != held.shard
        assert following.headers["lisa-tick"] > held.headers["lisa-tick"]


async def test_a_former_shard_that_cannot_be_read_holds_up_no_other_schedule(
    redis_url: str, prefix: str, admin: Admin, client: redis.Redis
) -> None:
    """With overlap = skip, a schedule has to look there before it sends; those of other topics go on meanwhile."""

    def sent(name: str) -> int:
        return admin.schedule(name).sent

    settings = ManagerSettings(redis_url=redis_url, prefix=prefix, housekeeping_s=0.05)
    async with AsyncConnection.of(settings, name="ticker") as connection:
        ticker = Ticker(connection, settings)

        async def turn_until(name: str, least: int) -> None:
            async def done() -> bool:
                await ticker.turn()
                return await asyncio.to_thread(sent, name) >= least

            await wait_until_async(done, 20, what=f"tick {least} of {name}")

        await asyncio.to_thread(lambda: admin.set_schedule("held", topic="orders", every=1, overlap="skip"))
        await asyncio.to_thread(lambda: admin.set_schedule("free", topic="mail", every=1))
        await turn_until("held", 1)
        await asyncio.to_thread(admin.reshard, "orders", 3)
        assert sent("held") == 1, "its mark is still in the former shard"
        client.set(f"{prefix}:{{orders}}:messages", "of another program")
        await turn_until("free", sent("free") + 3)
        assert sent("held") == 1


@pytest.mark.slow
def test_a_manager_exports_what_it_does_with_schedules(
    admin: Admin, redis_url: str, prefix: str, tmp_path: Path
) -> None:
    """Ticks by outcome, and when the next one is due; nothing more of a schedule that is deleted."""
    programs = Programs(redis_url, prefix, tmp_path)
    name = "lisa_schedule_next_timestamp_seconds"
    try:
        url = metrics_url(programs.manager("--metrics", "127.0.0.1:0"))
        admin.set_schedule("often", topic="orders", every=1)
        admin.set_schedule("seldom", topic="orders", every=86_400)
        wait_until(lambda: scrape(url).sum("lisa_schedule_ticks_total", schedule="often", outcome="sent") >= 2, 20)
        wait_until(lambda: scrape(url).sum(name, schedule="seldom") * 1000 == admin.schedule("seldom").next_ms, 20)
        assert abs(scrape(url).sum(name, schedule="often") - time.time()) < 5
        admin.delete_schedule("often")
        wait_until(lambda: not scrape(url).sum(name, schedule="often"), 20, what="a deleted schedule to be forgotten")
        assert scrape(url).sum(name, schedule="seldom")
    finally:
        programs.close()


def test_an_import_of_many_writes_each(admin: Admin) -> None:
    """They are written side by side; a refusal names the schedule, and what is the same is left alone."""
    many: dict[str, dict[str, Any]] = {f"s{at}": {"topic": f"t{at % 3}", "every": _YEARS_S + at} for at in range(250)}
    assert len(admin.import_schedules(many).created) == 250
    many["s7"] = {"topic": "t2", "every": _YEARS_S + 7_000_000}
    done = admin.import_schedules(many)
    assert (done.created, done.changed, len(done.unchanged)) == ((), ("s7",), 249)
    states = admin.list_schedules()
    assert len(states) == 250
    assert all(state.is_sent_ahead for state in states)
    done = admin.import_schedules({"s7": many["s7"]}, prune=True)
    assert len(done.deleted) == 249
    assert sum(sizes.waiting for sizes in admin.sizes()) == 1


def test_run_now_and_backfill(admin: Admin) -> None:
    """Beside the ticks; a backfill that is repeated within the dedup window sends nothing more."""
    admin.set_schedule("s", topic="orders", every=60)
    id = admin.run_now("s")
    found = admin.find("orders", id)
    assert found is not None
    now = datetime.now(UTC)
    for sent in (10, 0):
        result = admin.backfill("s", now - timedelta(minutes=10), now)
        assert result.ticks in {10, 11}
        assert result.sent == (result.ticks if sent else 0)
    with pytest.raises(InvalidInput, match="to must be a time up to now"):
        admin.backfill("s", now, now + timedelta(days=1))
    with pytest.raises(InvalidInput, match="at most 100000 ticks"):
        admin.backfill("s", now - timedelta(days=400), now)


def test_the_commands(commands: Commands, tmp_path: Path) -> None:
    """Each of them; what is wrong is one line."""
    made = commands.manager("schedule", "set", "s", "--topic", "orders", "--cron", "0 9 * * 1", "--tz", "Asia/Tokyo")
    assert made.out.startswith("s: At 09:00 on Monday (Asia/Tokyo); next ")
    shown = commands.manager("schedule", "show", "s").out
    assert shown.count("Monday, ") == 10
    assert "09:00:00 JST, in " in shown
    listed = commands.manager("schedule", "list", "--json").document
    assert [(each["name"], each["schedule"]["cron"]) for each in listed] == [("s", "0 9 * * 1")]
    for words in (["pause", "s"], ["resume", "s"], ["skip", "s"], ["run-now", "s"]):
        assert commands.manager("schedule", *words).code == 0
    ran = commands.manager("schedule", "backfill", "s", "--from", "2026-01-01T00:00Z", "--to", "2026-02-01T00:00Z")
    assert ran.out == "sent 4 ticks of s\n"
    path = tmp_path / "schedules.toml"
    path.write_text(
        '[schedules.a]\ntopic = "orders"\nevery = "15m"\nbody = { x = 1 }\n'
        '[schedules.b]\ntopic = "orders"\ncron = "@daily"\nfrom = 2026-01-01T00:00:00Z\n'
    )
    assert commands.manager("schedule", "import", str(path)).out == "2 created, 0 changed, 0 unchanged, 0 deleted\n"
    again = commands.manager("schedule", "import", str(path), "--prune", "--json").document
    assert again == {"created": [], "changed": [], "unchanged": ["a", "b"], "deleted": ["s"]}
    assert commands.manager("schedule", "delete", "a", "--yes").out == "deleted a\n"
    for words, told in (
        (
            ["set", "x", "--topic", "orders", "--every", "1ms"],
            "every must be seconds or a timedelta from 1 s to 10 years",
        ),
        (["set", "x", "--topic", "orders", "--cron", "0 0 31 2 *"], "cron must be five fields"),
        (["show", "gone"], "there is no schedule 'gone'"),
        (["set", "x"], "schedule must be given at least one field"),
    ):
        ran = commands.manager("schedule", *words)
        assert ran.code == 2
        assert told in ran.err
        assert ran.err.count("\n") == 1
    path.write_text('[schedules.a]\ntopic = "orders"\nevery = "soon"\n')
    assert "every of schedule a must be" in commands.manager("schedule", "import", str(path)).err


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
            ({"at_local": "2027-03-28", "tz": "UTC", "delay": 1}, "delay must be omitted"),
            ({"tz": "UTC"}, "tz must be omitted"),
            ({"at_local": "2099-01-01", "tz": "UTC"}, "at_local must be a time from 1970"),
        ):
            with pytest.raises(InvalidInput, match=told):
                producer.send("orders", "x", **fields)  # type: ignore[arg-type]


def test_marks_that_cannot_be_read_hide_no_other_schedule(admin: Admin, client: redis.Redis, prefix: str) -> None:
    """Their schedules are listed with the reason."""
    admin.set_schedule("a", topic="mail", every=60)
    admin.set_schedule("b", topic="orders", every=60)
    client.set(f"{prefix}:{{orders}}:ticks", "of another program")
    whole, damaged = admin.list_schedules()
    assert (whole.damage, whole.next_ms is None) == ("", False)
    assert damaged.damage.startswith("its mark cannot be read: ")
    assert "WRONGTYPE" in damaged.damage
    assert damaged.schedule is not None
    assert damaged.next_ms is None
    one = admin.schedule("b")
    assert (one.damage, one.schedule) == (damaged.damage, damaged.schedule)


def test_a_damaged_schedule_is_shown_and_can_be_replaced(admin: Admin, client: redis.Redis, prefix: str) -> None:
    """Others go on; a mark of nobody is found and removed."""
    client.hset(f"{prefix}:schedules", mapping={"bad": b"{", "s": json.dumps({"version": 1})})
    admin.set_schedule("good", topic="orders", every=60)
    damage = {state.name: bool(state.damage) for state in admin.list_schedules()}
    assert damage == {"bad": True, "good": False}
    assert admin.set_schedule("bad", topic="orders", every=60)
    client.hset(f"{prefix}:{{orders}}:ticks", mapping={"nobody": "1 2 3 4 5 6 -", "wrong": "x"})
    assert sorted(finding.problem.detail for finding in admin.check().findings) == [
        "a mark of a schedule that cannot be read",
        "a mark of a schedule that does not exist",
    ]
    assert all(finding.mended for finding in admin.check(repair=True).findings)
    assert admin.check().findings == ()
