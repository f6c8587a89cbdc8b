"""Keys of messages, end to end: how many of a key are in flight, in which order, and that none is left behind."""

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest
import redis

from lisa_common.errors import InvalidInput
from lisa_common.model.keys import ShardKeys
from lisa_consumer import Consumer, ConsumerSettings, Delivery, Reject, Worker
from lisa_manager import DEFAULT, Admin, ManagerSettings, State
from lisa_producer import AsyncProducer, Message, Producer, ProducerSettings
from support import wait_until_async
from support.commands import Commands
from support.queue import Queue
from support.running import managed, new_worker, working

_SEEN_LATE_S = 20
DAY = 86_400_000


@pytest.fixture
def admin(redis_url: str, prefix: str) -> Iterator[Admin]:
    """An operator."""
    with Admin(settings=ManagerSettings(redis_url=redis_url, prefix=prefix)) as opened:
        yield opened


class Watch:
    """What handlers see: how many of a key are in flight at once, and in which order they come."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.order: list[tuple[str, str, int]] = []

    def attend(self, worker: Worker, *, fails: bool = False) -> None:
        """Handles a topic's messages by a worker."""

        @worker.on("orders", concurrency=16)
        async def handle(delivery: Delivery) -> None:
            key = delivery.key or ""
            self.order.append((key, delivery.id, delivery.attempt))
            self.running[key] += 1
            self.most[key] = max(self.most[key], self.running[key])
            try:
                await asyncio.sleep(0.002)
                if fails and delivery.attempt == 1 and hash(delivery.id) % 4 == 0:
                    raise RuntimeError("again")
                if fails and hash(delivery.id) % 4 == 1:
                    raise Reject("no")
            finally:
                self.running[key] -= 1

    def first_of(self, key: str) -> list[str]:
        """The messages of a key, in the order of their first deliveries."""
        return [id for of, id, attempt in self.order if of == key and attempt == 1]


@pytest.mark.parametrize("limit", [1, 3])
async def test_four_workers(admin: Admin, sender: AsyncProducer, redis_url: str, prefix: str, limit: int) -> None:
    """Never more of a key at once than the limit; with 1, in the order of their due times, failures or not."""
    admin.set_policy("orders", max_in_flight_per_key=limit, backoff_base_ms=5, backoff="fixed")
    watch = Watch()
    workers = [new_worker(redis_url, prefix) for _ in range(4)]
    for worker in workers:
        watch.attend(worker, fails=True)
    async with (
        managed(redis_url, prefix, poll_s=60, quiet_poll_s=60),
        working(workers[0]),
        working(workers[1]),
        working(workers[2]),
        working(workers[3]),
    ):
        messages = [
            Message(body=b"x", id=f"{key}-{n:03}", key=key, delay=0.2 + n / 200) for n in range(40) for key in "abc"
        ]
        await sender.send_many("orders", reversed(messages))
        await sender.send_many("orders", [Message(body=b"x", id=f"free {n}") for n in range(50)])
        await wait_until_async(
            lambda: admin.sizes("orders")[0].stored == admin.sizes("orders")[0].garbage and len(watch.order) >= 170,
            _SEEN_LATE_S,
            what="all messages",
        )
    assert max(watch.most[key] for key in "abc") <= limit
    for key in "abc":
        assert sorted(watch.first_of(key)) == [f"{key}-{n:03}" for n in range(40)]
        if limit == 1:
            assert watch.first_of(key) == sorted(watch.first_of(key))
    assert admin.check("orders").is_clean


async def test_sends_in_the_same_ms_keep_their_order(admin: Admin, redis_url: str, prefix: str) -> None:
    """Of one program, where Lisa makes the ids: one call each, and a list."""
    admin.set_policy("orders", max_in_flight_per_key=1)
    watch, worker = Watch(), new_worker(redis_url, prefix)
    watch.attend(worker)
    with Producer(settings=ProducerSettings(redis_url=redis_url, prefix=prefix)) as producer:
        sent = [producer.send("orders", b"x", key="a", delay=0.1) for _ in range(60)]
        listed = producer.send_many("orders", [Message(body=b"x", key="b", delay=0.1)] * 20).results
    assert len({result.due_ms for result in sent}) < len(sent)
    async with managed(redis_url, prefix), working(worker):
        await wait_until_async(lambda: len(watch.order) == 80)
    assert watch.first_of("a") == [result.id for result in sent]
    assert watch.first_of("b") == [result.id for result in listed]


async def test_a_busy_key_does_not_hold_up_others(
    admin: Admin, sender: AsyncProducer, redis_url: str, prefix: str
) -> None:
    """A handler that hangs with one key; the others go on. Status says how many wait for it."""
    admin.set_policy("orders", max_in_flight_per_key=1)
    worker, done, hold = new_worker(redis_url, prefix), [], asyncio.Event()

    @worker.on("orders", concurrency=4)
    async def handle(delivery: Delivery) -> None:
        if delivery.id == "a0":
            await hold.wait()
        done.append(delivery.id)

    async with managed(redis_url, prefix, poll_s=60, quiet_poll_s=60), working(worker):
        for n in range(5):
            await sender.send("orders", b"x", id=f"a{n}", key="a")
        await sender.send("orders", b"x", id="b", key="b")
        await wait_until_async(lambda: done == ["b"], what="the other key")
        [status] = admin.status("orders")
        assert (status.waiting, status.parked, status.late_ms) == (4, 4, 0)
        assert status.limits == "1 in flight per key"
        assert admin.check("orders").is_clean
        hold.set()
        await wait_until_async(lambda: len(done) == 6, what="all messages")
    assert done == ["b", *(f"a{n}" for n in range(5))]


async def test_cancel_of_a_holder_wakes(admin: Admin, redis_url: str, prefix: str) -> None:
    """The next message of a key comes at once when one is cancelled, rescheduled, or its group is dropped."""
    admin.set_policy("orders", max_in_flight_per_key=1)
    settings = ConsumerSettings(redis_url=redis_url, prefix=prefix)
    async with managed(redis_url, prefix, poll_s=60, quiet_poll_s=60):
        with Producer(settings=ProducerSettings(redis_url=redis_url, prefix=prefix)) as producer:
            for id in "abc":
                producer.send("orders", b"x", id=id, key="k")
            await wait_until_async(lambda: admin.sizes("orders")[0].ready == 1, what="a")
            producer.cancel("orders", "a")
            await wait_until_async(lambda: producer.find("orders", "b").state == "ready", what="b")
            with Consumer("orders", "g", settings=settings) as consumer:
                [b] = await asyncio.to_thread(lambda: list(consumer.read(limit=5, wait=30)))
                assert (b.id, b.key) == ("b", "k")
                consumer.reject(b)
                await wait_until_async(lambda: producer.find("orders", "c").state == "ready", what="c")


async def test_a_limit_that_goes(admin: Admin, sender: AsyncProducer, redis_url: str, prefix: str) -> None:
    """Without its limit, all that is parked is delivered."""
    admin.set_policy("orders", max_in_flight_per_key=1)
    worker, done, hold = new_worker(redis_url, prefix), [], asyncio.Event()

    @worker.on("orders", concurrency=10)
    async def handle(delivery: Delivery) -> None:
        done.append(delivery.id)
        await hold.wait()

    async with managed(redis_url, prefix, discover_s=0.2), working(worker):
        await sender.send_many("orders", [Message(body=b"x", id=f"a{n}", key="a") for n in range(5)])
        await wait_until_async(lambda: done == ["a0"], what="the first")
        admin.set_policy("orders", max_in_flight_per_key=DEFAULT)
        await wait_until_async(lambda: len(done) == 5, what="the others")
        hold.set()


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_lists(admin: Admin, orders: Queue, limit: int) -> None:
    """What waits for its key is listed first, as it is due before all others; page by page, also as the limit goes."""
    orders.limit(max_in_flight_per_key=1)
    admin.set_policy("orders", max_in_flight_per_key=1)
    orders.join("g")
    for n in range(3):
        orders.send(f"due {n}", key="k", due=f"+{n}")
        orders.send(f"tomorrow {n}", key="k", due=f"+{DAY + n}")
    orders.advance(10)
    orders.promote()
    orders.nack(*orders.read("g"), rejected=True)
    orders.promote()
    orders.replay("g/due 0")
    orders.promote()
    tomorrow = [f"tomorrow {n}" for n in range(3)]
    assert list(_listed(admin, State.WAITING, limit)) == ["due 2", *tomorrow]
    assert list(_listed(admin, State.RETRY, limit)) == ["due 0"]
    pages = _listed(admin, State.WAITING, 1)
    first = next(pages)
    admin.set_policy("orders", max_in_flight_per_key=DEFAULT)
    assert [first, *pages][:4] == ["due 2", *tomorrow]
    assert list(_listed(admin, State.WAITING, limit)) == [*tomorrow, "due 2"]


def _listed(admin: Admin, state: State, limit: int) -> Iterator[str]:
    cursor = None
    while True:
        page = admin.messages("orders", state, limit=limit, cursor=cursor)
        yield from (message.id for message in page.messages)
        cursor = page.cursor
        if cursor is None:
            return


def test_what_is_refused(admin: Admin, redis_url: str, prefix: str, client: redis.Redis) -> None:
    """Keys that are none, keys by hand, and several shards; before anything is written."""
    with Producer(settings=ProducerSettings(redis_url=redis_url, prefix=prefix)) as producer:
        for key in ("", "a\n", "x" * 201, 7):
            with pytest.raises(InvalidInput, match="key must be 1 to 200 bytes of printable text"):
                producer.send("orders", b"x", key=key)  # type: ignore[arg-type]
        for wrong in ("", "a\n", "x" * 201, 7):
            with pytest.raises(
                InvalidInput, match="headers must be without 'lisa-key', or with 1 to 200 bytes of print"
            ):
                producer.send("orders", b"x", headers={"lisa-key": wrong})  # type: ignore[dict-item]
        with pytest.raises(InvalidInput, match="headers must be without 'lisa-key', or with the key 'b'"):
            producer.send("orders", b"x", headers={"lisa-key": "a"}, key="b")
        assert client.hlen(ShardKeys(prefix, "orders").of("messages")) == 0
        producer.send("orders", b"x", id="a", headers={"lisa-key": "b", "other": "c"}, key="b")
        found = producer.find("orders", "a")
        assert found is not None
        assert found.key == "b"
    with pytest.raises(InvalidInput, match="max_in_flight_per_key must be none, where the topic has several shards"):
        admin.create_topic("mails", shards=2, max_in_flight_per_key=1)
    admin.create_topic("mails", shards=2)
    with pytest.raises(InvalidInput, match="max_in_flight_per_key must be none"):
        admin.set_policy("mails", max_in_flight_per_key=1)
    admin.set_policy("orders", max_in_flight_per_key=1)
    with pytest.raises(InvalidInput, match="shards must be 1, as max_in_flight_per_key of the topic is set; got 3"):
        admin.reshard("orders", 3)
    assert not admin.reshard("orders", 1).changed
    assert admin.drop_topic("orders", force=True)
    assert not client.exists(*ShardKeys(prefix, "orders").all())


def test_forwarding(admin: Admin, redis_url: str, prefix: str) -> None:
    """The headers of a message may be sent on as they are, with its key, which comes first: scripts look there."""
    with Producer(settings=ProducerSettings(redis_url=redis_url, prefix=prefix)) as producer:
        producer.send("orders", b"x", id="a", key="customer-7", headers={"source": "shop"})
        headers = admin.records("orders", ["a"])["a"].headers
        producer.send("next", b"x", id="b", headers=headers)
        producer.send("next", b"x", id="c", headers=headers, key="customer-7")
        producer.send("next", b"x", id="d", headers=dict(reversed(headers.items())))
    records = admin.records("next", ["b", "c", "d"])
    assert {(record.key, *record.headers.items()) for record in records.values()} == {
        ("customer-7", ("lisa-key", "customer-7"), ("source", "shop"))
    }
    assert len(records) == 3


def test_the_command(commands: Commands, admin: Admin) -> None:
    """`--key` of send, and the option of the policy."""
    commands.manager("topic", "create", "orders", "--max-in-flight-per-key", "1")
    commands.producer("send", "orders", "body", "--id", "a", "--key", "customer-7")
    found = admin.find("orders", "a")
    assert found is not None
    assert found.key == "customer-7"
    lines = """{"body": 1, "id": "b", "key": "customer-8"}
{"body": 1, "id": "c", "headers": {"lisa-key": "customer-9"}}"""
    assert commands.producer("load", "-", "--topic", "orders", stdin=lines).code == 0
    assert {id: record.key for id, record in admin.records("orders", ["a", "b", "c"]).items()} == {
        "a": "customer-7",
        "b": "customer-8",
        "c": "customer-9",
    }
    assert admin.policy("orders").max_in_flight_per_key == 1
