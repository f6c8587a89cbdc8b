"""Limits of a topic, end to end: what operators set, what producers and workers meet."""

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from lisa_common.client.connection import Connection
from lisa_common.errors import InvalidInput, QueueFull
from lisa_common.model.keys import ShardKeys, topics_key
from lisa_common.model.limits import limits_of
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_consumer import AsyncConsumer, ConsumerSettings, Delivery, RateLimited, Worker
from lisa_consumer.worker.settler import Settler
from lisa_manager import DEFAULT, Admin, ManagerSettings
from lisa_manager.resharding import reshard
from lisa_manager.topic_drop import drop_topic
from lisa_producer import AsyncProducer, Message, PartialSend, Producer, ProducerSettings
from support import keys_left, remove_keys, wait_until_async
from support.commands import Commands
from support.running import Handled, hang, managed, new_worker, working
from support.server import reads_wait
from support.stepping import Stepped

_FEW_LIMITED = 40
"""Eight handlers run at once, and each read that is under way as the first one is limited may bring eight more."""


@pytest.fixture
def admin(redis_url: str, prefix: str) -> Iterator[Admin]:
    """An operator."""
    with Admin(settings=ManagerSettings(redis_url=redis_url, prefix=prefix)) as opened:
        yield opened


@pytest.fixture
def worker(redis_url: str, prefix: str) -> Worker:
    """A worker that does not run yet."""
    return new_worker(redis_url, prefix)


def _handle(worker: Worker) -> Handled:
    handled = Handled()

    @worker.on("orders")
    async def handle(delivery: Delivery) -> None:
        handled.append(delivery)

    return handled


async def _others_go_on(sender: AsyncProducer, redis_url: str, prefix: str, delay: float = 0) -> None:
    """Another worker handles messages, sent one after the other: what could have begun before them has begun."""
    worker, handled = new_worker(redis_url, prefix), Handled()
    worker.on("parcels")(handled.append)
    async with working(worker):
        for count in range(1, 6):
            await sender.send("parcels", b"x", delay=delay)
            await wait_until_async(lambda count=count: len(handled) == count)


async def test_a_pause_and_its_end(
    admin: Admin, worker: Worker, sender: AsyncProducer, redis_url: str, prefix: str
) -> None:
    """The end of a pause wakes a manager that would look only much later; then all is promoted at once."""
    admin.set_policy("orders", paused=True)
    handled = _handle(worker)
    async with managed(redis_url, prefix, poll_s=60, quiet_poll_s=60, discover_s=60), working(worker):
        await sender.send_many("orders", (Message(body=b"x") for _ in range(2_000)))
        await sender.send("orders", b"x", delay=0.1)
        await _others_go_on(sender, redis_url, prefix, delay=0.05)
        [status] = admin.status("orders")
        assert (status.waiting, status.late_ms, status.paused, status.limits) == (2_001, 0, True, "paused")
        assert handled == []
        admin.set_policy("orders", paused=False)
        await wait_until_async(lambda: len(handled) == 2_001, what="all messages")
    assert {delivery.attempt for delivery in handled} == {1}


async def test_rate_limited(admin: Admin, sender: AsyncProducer, redis_url: str, prefix: str) -> None:
    """The handler's message comes again after the delay, as the same attempt; what waits comes after it, too."""
    admin.set_policy("orders", max_retries=0, max_in_flight=2)
    worker = new_worker(redis_url, prefix)
    begun: list[tuple[str, int, float]] = []

    @worker.on("orders", concurrency=1)
    async def handle(delivery: Delivery) -> None:
        begun.append((delivery.id, delivery.attempt, time.monotonic()))
        if len(begun) == 1:
            raise RateLimited(1.5)

    async with managed(redis_url, prefix), working(worker):
        for id in ("a", "b", "c"):
            await sender.send("orders", b"x", id=id)
        # The second message may have been ready beside the first, and begins at once.
        await wait_until_async(lambda: admin.status("orders")[0].shut_ms > 0, what="a shut door")
        await wait_until_async(lambda: len(begun) >= 4, what="all handlers")
    assert {attempt for _, attempt, _ in begun} == {1}
    assert [id for id, _, _ in begun].count(begun[0][0]) == 2
    again = [moment for id, _, moment in begun[1:] if id == begun[0][0]]
    assert again[0] - begun[0][2] >= 1.5
    assert admin.sizes("orders")[0].stored == 0


async def test_a_rate_limited_handler_shuts_the_door_at_once(
    sender: AsyncProducer, redis_url: str, prefix: str
) -> None:
    """However many handlers end meanwhile: what was given back is ready, and would be read again."""
    worker = new_worker(redis_url, prefix, concurrency=8)
    handled, limited = Handled(), Handled()

    @worker.on("orders")
    async def handle(delivery: Delivery) -> None:
        await asyncio.sleep(0.001)
        if len(handled) < 80:
            handled.append(delivery)
            return
        limited.append(delivery)
        raise RateLimited(600)

    await sender.send_many("orders", [Message(body=b"x") for _ in range(400)])
    async with working(worker):
        await wait_until_async(lambda: limited)
        await _others_go_on(sender, redis_url, prefix)
    assert len(limited) <= _FEW_LIMITED


async def test_what_is_given_back_waits_behind_the_door(
    sender: AsyncProducer, redis_url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if that is done before the delivery of the limited handler is settled: it is not read again."""
    settled, settle = asyncio.Event(), Settler._settle

    async def settle_later(settler: Settler, batch: list[Any], **options: Any) -> None:
        await asyncio.sleep(0.5)
        await settle(settler, batch, **options)
        settled.set()

    monkeypatch.setattr(Settler, "_settle", settle_later)
    worker = new_worker(redis_url, prefix, concurrency=8)
    limited = Handled()

    @worker.on("orders")
    async def handle(delivery: Delivery) -> None:
        await asyncio.sleep(0.001)
        limited.append(delivery)
        raise RateLimited(600)

    await sender.send_many("orders", [Message(body=b"x") for _ in range(400)])
    async with working(worker):
        await settled.wait()
        await _others_go_on(sender, redis_url, prefix)
    assert len(limited) <= _FEW_LIMITED


async def test_a_drain_waits_for_what_is_being_given_back(
    sender: AsyncProducer, client: redis.Redis, redis_url: str, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The last handler ends with `RateLimited`: the others of its topic do not have to wait for their leases."""
    worker = new_worker(redis_url, prefix, concurrency=1)
    caplog.set_level("INFO")

    @worker.on("orders")
    async def handle(_: Delivery) -> None:
        await asyncio.sleep(0.05)
        worker.stop()
        raise RateLimited(30)

    await sender.send_many("orders", [Message(body=b"x") for _ in range(8)])
    await worker.serve()
    assert "deliveries that had not begun" in caplog.text
    assert client.xpending(ShardKeys(prefix, "orders").of("ready"), "billing")["pending"] == 0


async def test_rate_limited_shuts_all_shards(
    admin: Admin, sender: AsyncProducer, client: redis.Redis, redis_url: str, prefix: str
) -> None:
    """The limit that a handler has met is the same for the messages of each shard. No trace is left of it."""
    worker = new_worker(redis_url, prefix)
    admin.create_topic("orders", shards=3)

    @worker.on("orders")
    async def handle(delivery: Delivery) -> None:
        handled.append(delivery)
        if len(handled) == 1:
            raise RateLimited(2)

    handled = Handled()
    async with managed(redis_url, prefix), working(worker):
        await sender.send("orders", b"x", id="first")
        doors = [ShardKeys(prefix, "orders", f"{number}").of("door") for number in range(3)]
        await wait_until_async(lambda: client.exists(*doors) == 3, 20, what="three shut doors")
        await wait_until_async(lambda: client.exists(*doors) == 0, 30, what="no doors")
        await wait_until_async(lambda: admin.sizes("orders")[0].stored == 0, 20, what="an empty topic")


async def test_rate_limited_here_stops_one_worker(
    admin: Admin, sender: AsyncProducer, client: redis.Redis, redis_url: str, prefix: str
) -> None:
    """It begins nothing of the topic for so long, whatever a read under way brings. Others go on."""
    worker = new_worker(redis_url, prefix, block_s=40.0)
    settings = ConsumerSettings(redis_url=redis_url, prefix=prefix)
    limited, parcels = Handled(), Handled()
    gate = asyncio.Event()

    @worker.on("orders")
    async def handle(delivery: Delivery) -> None:
        limited.append(delivery)
        if len(limited) == 1:
            await gate.wait()
            raise RateLimited(4, here=True)

    @worker.on("parcels")
    async def handle_parcel(delivery: Delivery) -> None:
        parcels.append(delivery)

    reading = AsyncConsumer("orders", "billing", settings=settings)
    async with managed(redis_url, prefix), working(worker), reading as other:
        await sender.send("orders", b"x", id="first")
        await wait_until_async(lambda: limited, what="a limited handler")
        await wait_until_async(lambda: reads_wait(client), what="the next read")
        gate.set()
        since = time.monotonic()
        await wait_until_async(lambda: admin.sizes("orders")[0].ready == 1, what="the message is given back")
        assert admin.status("orders")[0].shut_ms == 0
        await sender.send("parcels", b"x")
        await wait_until_async(lambda: parcels, what="another topic")
        [delivery] = await other.read(wait=30)
        assert delivery.attempt == 1
        await other.ack(delivery)
        assert len(limited) == 1
        await sender.send("orders", b"x", id="second")
        await wait_until_async(lambda: len(limited) == 2, 30, what="the end of the pause")
        # No read of other topics lasts longer.
        assert 3.9 < time.monotonic() - since < 30


@pytest.mark.parametrize("delay", [0, -1, "x", float("nan"), 10**12])
def test_rate_limited_refuses(delay: Any) -> None:
    """A delay is a duration of 1 ms or more."""
    with pytest.raises(InvalidInput, match=r"delay must be seconds or a timedelta from 0\.001 s to 10 years; got"):
        RateLimited(delay)


async def test_pause_of_one_worker(admin: Admin, sender: AsyncProducer, redis_url: str, prefix: str) -> None:
    """It gives back what has not begun, finishes what has, and begins nothing until it resumes; others go on."""
    admin.create_topic("orders")
    paused, other = (new_worker(redis_url, prefix, concurrency=2, block_s=0.3) for _ in range(2))
    gate = asyncio.Event()
    begun = hang(paused, "orders", gate)
    handled = _handle(other)
    async with managed(redis_url, prefix), working(paused):
        for number in range(20):
            await sender.send("orders", b"x", id=f"{number}")
        await wait_until_async(lambda: len(begun) == 2, what="two handlers")
        # From another thread, as a signal handler or a web server would.
        thread = threading.Thread(target=paused.pause)
        thread.start()
        thread.join()
        assert paused.is_paused
        async with working(other):
            await wait_until_async(lambda: len(handled) == 18, what="what the other worker handles")
        assert {delivery.attempt for delivery in handled} == {1}
        gate.set()
        await wait_until_async(lambda: admin.sizes("orders")[0].stored == 0, 20, what="an empty topic")
        await sender.send("orders", b"x", id="later")
        await _others_go_on(sender, redis_url, prefix)
        assert begun.ids.count("later") == 0
        paused.resume()
        await wait_until_async(lambda: "later" in begun.ids, what="the message after the pause")
    assert not paused.is_paused


@pytest.mark.parametrize("calls", ["pause", "resume and pause"])
async def test_a_handler_that_pauses_its_worker_is_one_of_the_last(
    calls: str, worker: Worker, sender: AsyncProducer, client: redis.Redis, prefix: str
) -> None:
    """Beside those that run already, however quick they are: also in the same turn of the event loop."""
    ready = ShardKeys(prefix, "orders").of("ready")
    begun = []

    @worker.on("orders", concurrency=2)
    async def handle(delivery: Delivery) -> None:
        begun.append(delivery.id)
        # By then it holds many, and knows that they are quick.
        if len(begun) == 200:
            if calls == "resume and pause":
                worker.resume()
            worker.pause()

    await sender.send_many("orders", [Message(body=b"x") for _ in range(600)])
    async with working(worker):
        await wait_until_async(lambda: worker.is_paused)
        await wait_until_async(
            lambda: client.xpending(ready, "billing")["pending"] == 0, 5, what="that the rest is given back"
        )
    # Two slots are taken when the handler begins: that of another, and its own.
    assert 200 <= len(begun) <= 202


async def test_a_worker_paused_before_it_runs_and_stopped_while_it_is(
    *, worker: Worker, sender: AsyncProducer, admin: Admin, redis_url: str, prefix: str
) -> None:
    """It begins nothing, and its drain ends."""
    handled = _handle(worker)
    worker.pause()
    await sender.send("orders", b"x")
    async with working(worker):
        await _others_go_on(sender, redis_url, prefix)
    assert handled == []
    assert admin.sizes("orders")[0].stored == 1


async def test_a_full_topic(admin: Admin, producer: Any) -> None:
    """A send says what the limit is, and how many there are; a batch is stored whole or not at all."""
    admin.set_policy("orders", max_messages=3)
    with pytest.raises(PartialSend) as partial:
        await producer.send_many("orders", [Message(body=b"x", id=f"{n}") for n in range(4)])
    assert isinstance(partial.value.__cause__, QueueFull)
    assert admin.sizes("orders")[0].stored == 0
    for number in range(3):
        await producer.send("orders", b"x", id=f"{number}", delay=60)
    with pytest.raises(QueueFull, match="orders holds 3 messages of at most 3; 1 more were refused") as full:
        await producer.send("orders", b"x")
    assert (full.value.limit, full.value.count) == (3, 3)
    assert (await producer.send("orders", b"x", id="1")).outcome == "duplicate"
    await producer.cancel("orders", "0")
    assert (await producer.send("orders", b"x", id="3")).outcome == "sent"
    admin.set_policy("orders", max_messages=DEFAULT)
    assert (await producer.send("orders", b"x", id="4")).outcome == "sent"


def test_callers_that_share_a_call(admin: Admin, redis_url: str, prefix: str) -> None:
    """A message that has room is not refused because of others: exactly as many are stored as there is room for."""
    admin.set_policy("orders", max_messages=100)
    outcomes: list[str] = []
    with Producer(settings=ProducerSettings(redis_url=redis_url, prefix=prefix)) as producer:

        def send() -> None:
            for _ in range(10):
                try:
                    outcomes.append(producer.send("orders", b"x", delay=60).outcome)
                except QueueFull:
                    outcomes.append("full")

        threads = [threading.Thread(target=send) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (outcomes.count("sent"), outcomes.count("full")) == (100, 60)
    assert admin.sizes("orders")[0].stored == 100


def test_load_reports_a_full_topic(admin: Admin, commands: Commands) -> None:
    """The bulk path ends with the error of the topic."""
    admin.set_policy("orders", max_messages=2)
    lines = "".join(f'{{"topic": "orders", "id": "{number}", "body": "x"}}\n' for number in range(3))
    result = commands.producer("load", "-", stdin=lines)
    assert result.code != 0
    assert "holds 0 messages of at most 2; 3 more were refused" in result.err


def test_shares_of_shards(admin: Admin, client: redis.Redis, prefix: str) -> None:
    """They add up to the limits of the topic, also during a reshard, which gives each shard one of its own."""
    admin.create_topic("orders", shards=3, max_in_flight=10, rate="10/s", burst=4, max_messages=10)
    layout = Layout(prefix, "orders", admin.policy("orders"))
    doors = [client.hget(keys.of("door"), "limits") for keys in layout.served]
    assert [door.decode() for door in doors if door] == [limits_of(layout, keys) for keys in layout.served]
    assert admin.reshard("orders", 5).changed
    layout = Layout(prefix, "orders", admin.policy("orders"))
    assert len(layout.served) == 8
    doors = [client.hget(keys.of("door"), "limits") for keys in layout.served]
    assert [door.decode() for door in doors if door] == [limits_of(layout, keys) for keys in layout.served]
    shares = [json.loads(door) for door in doors if door]
    assert sum(share["in_flight"] for share in shares) == 10
    assert sum(share["burst"] for share in shares) == 4
    assert sum(share.get("messages", 0) for share in shares) == 10
    assert round(sum(1_001 / share["interval_ms"] for share in shares)) == 10
    with pytest.raises(
        InvalidInput, match="policy field max_in_flight must be at least 14, one for each shard; got 10"
    ):
        admin.reshard("orders", 6)
    with pytest.raises(InvalidInput, match="policy field rate must be at least 8 messages in a period"):
        admin.set_policy("orders", rate="7/s")


def test_limits_that_are_lifted_during_a_reshard_are_lifted_everywhere(
    admin: Admin, redis_url: str, client: redis.Redis, prefix: str
) -> None:
    """Between whichever of its steps: the new shards may have got them by then."""
    steps = 0
    with Connection(redis_url, name="test") as connection:
        while True:
            admin.create_topic("orders", paused=True)
            change = Stepped(connection, reshard(prefix, "orders", 2))
            if not all(change.step() for _ in range(steps)):
                break
            admin.set_policy("orders", paused=False)
            change.finish()
            assert admin.check("orders").is_clean, steps
            admin.drop_topic("orders", force=True)
            remove_keys(client, prefix)
            steps += 1
    assert steps > 5


@pytest.mark.parametrize("many", [False, True])
async def test_a_topic_that_another_producer_has_just_declared(
    declare: Callable[..., Policy], client: redis.Redis, sender: AsyncProducer, prefix: str, *, many: bool
) -> None:
    """Its limits may be in the registry, and not in its shards yet. They hold for the first message."""
    await sender.find("orders", "unknown")
    declare("orders", paused=True, shards=2, limits_revision=int(time.time() * 1000))
    for _ in range(2):
        if many:
            await sender.send_many("orders", [Message(body=b"x") for _ in range(10)])
        else:
            await asyncio.gather(*(sender.send("orders", b"x") for _ in range(10)))
    shards = Layout(prefix, "orders", Policy(shards=2)).shards
    assert [client.xlen(keys.of("ready")) for keys in shards] == [0, 0]
    assert sum(client.zcard(keys.of("waiting")) for keys in shards) == 20


async def test_an_interrupted_change(
    admin: Admin, client: redis.Redis, declare: Callable[..., Policy], redis_url: str, prefix: str
) -> None:
    """`check` finds what an operator who died has not brought to the shards; a manager completes it."""
    declare("orders", paused=True)
    door = ShardKeys(prefix, "orders").of("door")
    [finding] = admin.check("orders").findings
    assert finding.problem.kind == "limits"
    assert admin.check("orders", repair=True).is_clean
    assert client.hget(door, "limits")
    client.delete(door)
    async with managed(redis_url, prefix):
        await wait_until_async(lambda: bool(client.hget(door, "limits")), what="the door")
        client.hset(topics_key(prefix), "orders", "{}")
        await wait_until_async(lambda: not client.exists(door), what="no door")
    assert admin.check("orders").findings == ()


def test_concurrent_changes_of_limits(admin: Admin, redis_url: str, client: redis.Redis, prefix: str) -> None:
    """Whoever was last in the registry is last in the shard."""

    def change(number: int) -> None:
        with Admin(settings=ManagerSettings(redis_url=redis_url, prefix=prefix)) as other:
            for turn in range(20):
                other.set_policy("orders", max_in_flight=1 + 100 * number + turn, paused=bool(turn % 2))

    threads = [threading.Thread(target=change, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    layout = Layout(prefix, "orders", admin.policy("orders"))
    (keys,) = layout.served
    assert (client.hget(keys.of("door"), "limits") or b"").decode() == limits_of(layout, keys)


def test_a_topic_that_is_created_gets_its_own_limits(admin: Admin, client: redis.Redis, prefix: str) -> None:
    """Though a producer of a dropped topic of its name has set the former ones late."""
    client.hset(ShardKeys(prefix, "orders").of("door"), "limits", '{"revision":1,"in_flight":5}')
    admin.create_topic("orders", paused=True)
    assert admin.check("orders").is_clean


def test_a_drop_leaves_no_door(admin: Admin, client: redis.Redis, prefix: str) -> None:
    """And a topic that is declared again is open."""
    admin.set_policy("orders", paused=True)
    admin.drop_topic("orders")
    assert not client.exists(ShardKeys(prefix, "orders").of("door"))
    assert "door" not in "".join(keys_left(client, prefix))


@pytest.mark.parametrize("before", [{}, {"paused": True}])
def test_a_topic_that_is_declared_anew_during_a_drop_has_its_limits(
    *, admin: Admin, redis_url: str, client: redis.Redis, prefix: str, before: dict[str, Any]
) -> None:
    """Between whichever steps of the drop that is."""
    (keys,) = Layout(prefix, "orders", Policy()).served
    anew, steps = 0, 0
    with Connection(redis_url, name="test") as connection:
        while True:
            admin.create_topic("orders", **before)
            drop = Stepped(connection, drop_topic(prefix, "orders", force=True))
            if not all(drop.step() for _ in range(steps)):
                break
            created = admin.create_topic("orders", paused=True, rate="5/s")
            assert drop.finish().done
            if created:
                anew += 1
                limits = limits_of(Layout(prefix, "orders", admin.policy("orders")), keys)
                assert (client.hget(keys.of("door"), "limits") or b"").decode() == limits
                admin.drop_topic("orders", force=True)
            assert "door" not in "".join(keys_left(client, prefix))
            steps += 1
    assert anew >= 2


def test_a_drop_that_is_refused_opens_no_shard(admin: Admin, redis_url: str, client: redis.Redis, prefix: str) -> None:
    """A message comes to the second shard between two steps, so the topic stays, and paused all the time."""
    admin.create_topic("orders", paused=True, shards=2)
    layout = Layout(prefix, "orders", admin.policy("orders"))
    id = next(id for id in map(str, range(100)) if layout.home(id) == layout.shards[1])
    refused, steps = 0, 0
    settings = ProducerSettings(redis_url=redis_url, prefix=prefix)
    with Connection(redis_url, name="test") as connection, Producer(settings=settings) as producer:
        while True:
            drop = Stepped(connection, drop_topic(prefix, "orders", force=False))
            for _ in range(steps):
                drop.step()
            producer.send("orders", b"x", id=id)
            while drop.step():
                is_open = [keys for keys in layout.shards if not client.exists(keys.of("door"))]
                assert not (is_open and client.hexists(topics_key(prefix), "orders"))
            if drop.result.done:
                break
            refused, steps = refused + 1, steps + 1
            producer.cancel("orders", id)
    assert refused > 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rate": "fast"}, "policy field rate must be messages in a period of 10 ms to 31 days, as in 100/s"),
        ({"rate": "0/s"}, "policy field rate must be messages in a period"),
        ({"rate": "1/9ms"}, "policy field rate must be messages in a period"),
        ({"rate": 5}, "policy field rate must be a valid string; got 5"),
        ({"max_in_flight": 0}, "policy field max_in_flight must be at least 1; got 0"),
        ({"max_messages": 0}, "policy field max_messages must be at least 1; got 0"),
        ({"burst": -1}, "policy field burst must be at least 0; got -1"),
        ({"burst": 5}, "policy field burst needs rate"),
        ({"paused": "yes"}, "policy field paused must be a valid boolean; got 'yes'"),
    ],
)
def test_bad_limits(admin: Admin, client: redis.Redis, prefix: str, fields: dict[str, Any], message: str) -> None:
    """Refused before anything is written."""
    with pytest.raises(InvalidInput) as refusal:
        admin.set_policy("orders", **fields)
    assert str(refusal.value).startswith(message)
    with pytest.raises(InvalidInput, match=re.escape(message)):
        admin.create_topic("orders", **fields)
    assert keys_left(client, prefix) == []


def test_a_burst_beside_the_rate_of_a_pattern(admin: Admin) -> None:
    """The rate may come from a pattern, and go again."""
    admin.set_pattern_policy("*", {"rate": "1/s"})
    assert admin.create_topic("orders", burst=5)
    assert admin.set_policy("mails", burst=5).effective_burst == 5
    admin.drop_pattern_policy("*")
    assert admin.set_policy("orders", max_retries=1, burst=None).burst is None


def test_commands(commands: Commands, client: redis.Redis, prefix: str) -> None:
    """Limits are set as words, and shown."""
    words = ("--paused", "yes", "--rate", "100/s", "--max-in-flight", "5", "--max-messages", "1000")
    result = commands.manager("topic", "create", "orders", *words)
    assert "paused yes, max_in_flight 5, rate 100/s, max_messages 1000" in result.out
    shown = commands.manager("status", "orders").out
    assert "paused, 100/s, 5 in flight, 1000 messages" in " ".join(shown.split())
    assert client.exists(ShardKeys(prefix, "orders").of("door"))
    reset = ("--paused", "no", "--rate", "none", "--max-in-flight", "none", "--max-messages", "none")
    assert commands.manager("topic", "set", "orders", *reset).code == 0
    assert not client.exists(ShardKeys(prefix, "orders").of("door"))
    assert (
        "paused must be yes or no; got 'maybe'" in commands.manager("topic", "set", "orders", "--paused", "maybe").err
    )


def test_the_revision_of_limits_is_not_set_by_users(admin: Admin, client: redis.Redis, prefix: str) -> None:
    """It orders changes, so that one set by hand could hide the limits of others."""
    for change in (admin.set_policy, admin.create_topic):
        with pytest.raises(InvalidInput, match=r"limits_revision must be left to Lisa, which sets it; got 7"):
            change("orders", limits_revision=7)
    assert not client.exists(topics_key(prefix))
