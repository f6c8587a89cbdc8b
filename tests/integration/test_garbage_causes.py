"""Why dead letters died: filters by error, time and release, and the summary by cause."""

import asyncio
from typing import Any

import pytest

from lisa_common.errors import InvalidInput
from lisa_common.protocol.call import command
from lisa_consumer import AsyncConsumer, ConsumerSettings, Delivery, Worker
from lisa_manager import AsyncAdmin, GarbageFilter, State
from lisa_producer import AsyncProducer, Message
from support.commands import Commands
from support.queue import Queue


def _bury(orders: Queue, *ids: str, group: str = "billing", error: str = "no money") -> None:
    for id in ids:
        orders.send(id)
    for delivery in orders.read(group):
        orders.nack(delivery, rejected=True, error=error)


@pytest.fixture
def dead(orders: Queue) -> Queue:
    """Five dead letters: three for lack of money, one of them three hours ago, and two for a timeout of the bank."""
    orders.join("billing")
    orders.advance(-3 * 3_600_000)
    _bury(orders, "old")
    orders.advance(3 * 3_600_000 - 10)
    _bury(orders, "a", "b", error="no money\nbut much debt")
    orders.advance(1)
    _bury(orders, "c", "d", error="The bank: TIMEOUT")
    return orders


def _listed(commands: Commands, *options: str) -> set[str]:
    return {letter["id"] for letter in commands.manager("garbage", "list", "orders", "--json", *options).document}


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        (("--error", "timeout"), {"c", "d"}),
        (("--error", "much DEBT"), {"a", "b"}),
        (("--since", "2h"), {"a", "b", "c", "d"}),
        (("--since", "4h", "--older-than", "2h"), {"old"}),
        (("--since", "2h", "--error", "money"), {"a", "b"}),
        (("--release", ""), {"old", "a", "b", "c", "d"}),
        (("--release", "7"), set()),
        (("--newest", "--limit", "2"), {"c", "d"}),
        (("--oldest", "--limit", "1"), {"old"}),
    ],
)
def test_lists_replays_and_purges_take_the_same_filters(
    dead: Queue, commands: Commands, options: tuple[str, ...], ids: set[str]
) -> None:
    """What a list shows is what goes."""
    assert _listed(commands, *options) == ids
    if "--limit" in options:
        return
    ran = commands.manager("garbage", "replay", "orders", "--all", *options, "--json")
    assert ran.document == {"replayed": len(ids)}
    left = {copy.removeprefix("billing/") for copy in dead.contents().garbage}
    assert left == {"old", "a", "b", "c", "d"} - ids
    for delivery in dead.read("billing"):
        dead.nack(delivery, rejected=True, error="again")
    ran = commands.manager("garbage", "purge", "orders", "--all", "--yes", "--error", "again", "--json")
    assert ran.document == {"purged": len(ids)}


def test_a_filter_of_no_time_is_one_line(dead: Queue, commands: Commands) -> None:
    """Nothing is deleted."""
    words = ("--all", "--yes", "--since", "1h", "--older-than", "2h")
    ran = commands.manager("garbage", "purge", "orders", *words)
    assert (ran.code, ran.out) == (2, "")
    assert "since must be longer than older_than" in ran.err
    assert len(dead.contents().garbage) == 5


@pytest.mark.usefixtures("dead")
def test_a_summary_counts_by_cause(commands: Commands) -> None:
    """By reason, first line of the error, group and release, the most frequent first."""
    document = commands.manager("garbage", "summary", "orders", "--json").document
    assert [(cause["count"], cause["error"], cause["last_id"]) for cause in document["causes"]] == [
        (3, "no money", "b"),
        (2, "The bank: TIMEOUT", "d"),
    ]
    first = document["causes"][0]
    assert (first["reason"], first["group"], first["release"]) == ("rejected", "billing", "")
    assert first["last_ms"] - first["first_ms"] == 3 * 3_600_000 - 10
    assert {name: document[name] for name in ("counted", "others", "looked", "total", "more")} == {
        "counted": 5,
        "others": 0,
        "looked": 5,
        "total": 5,
        "more": False,
    }
    narrowed = commands.manager("garbage", "summary", "orders", "--since", "2h", "--error", "money").out
    assert narrowed.splitlines()[1].split()[:2] == ["2", "rejected"]
    assert commands.manager("garbage", "summary", "orders", "--reason", "nack").out == "no such garbage in orders\n"


@pytest.mark.usefixtures("dead")
def test_a_summary_says_where_it_stopped(commands: Commands) -> None:
    """It looks at the latest ones."""
    ran = commands.manager("garbage", "summary", "orders", "--limit", "2")
    assert "The bank: TIMEOUT" in ran.out
    assert "no money" not in ran.out
    assert ran.err == "looked at the latest 2 of 5 dead letters; --limit is 2\n"
    assert commands.manager("garbage", "summary", "orders", "--limit", "5").err == ""


@pytest.mark.parametrize("shards", [1, 3])
async def test_a_list_says_whether_there_is_more(
    *, admin: AsyncAdmin, sender: AsyncProducer, redis_url: str, prefix: str, shards: int
) -> None:
    """Also where it shows as many as it may, and none is left in later pages."""
    await admin.create_topic("orders", shards=shards)
    settings = ConsumerSettings(redis_url=redis_url, prefix=prefix)
    async with AsyncConsumer(["orders"], "billing", settings=settings) as consumer:
        await consumer.read()
        for count, error in ((3_100, "old"), (3, "disk full")):
            await sender.send_many("orders", [Message(body="x") for _ in range(count)])
            left = count
            while left:
                deliveries = await consumer.read(limit=500, wait=30)
                await consumer.reject(*deliveries, error=error)
                left -= len(deliveries)
    for limit, more in ((2, True), (3, False), (4, False)):
        found = await admin.garbage("orders", GarbageFilter(error="disk full"), limit=limit)
        assert (len(found.letters), found.more) == (min(3, limit), more)
    for limit, more in ((3_102, True), (3_103, False)):
        found = await admin.garbage("orders", limit=limit, oldest_first=True)
        assert (len(found.letters), found.more) == (limit, more)


async def test_all_shards_are_read_by_time(
    admin: AsyncAdmin, sender: AsyncProducer, redis_url: str, prefix: str
) -> None:
    """The latest of all come first, and a summary stops at the latest."""
    await admin.create_topic("orders", shards=4)
    settings = ConsumerSettings(redis_url=redis_url, prefix=prefix)
    async with AsyncConsumer(["orders"], "billing", settings=settings) as consumer:
        for number in range(40):
            await sender.send("orders", b"x", id=f"m{number}")
            [delivery] = await consumer.read(wait=30)
            await consumer.reject(delivery, error=f"error {number // 20}")
    ids = [letter.id for letter in (await admin.garbage("orders", limit=10)).letters]
    assert ids == [letter.id for letter in (await admin.garbage("orders", limit=1_000)).letters][:10]
    times = [letter.died_ms for letter in (await admin.garbage("orders", limit=40, oldest_first=True)).letters]
    assert (len(times), times) == (40, sorted(times))
    found = await admin.summarize_garbage("orders", limit=8)
    assert (found.looked, found.total, found.more) == (8, 40, True)
    assert [cause.error for cause in found.causes] == ["error 1"]


@pytest.mark.usefixtures("dead")
async def test_pages_of_garbage_begin_with_the_newest(admin: AsyncAdmin) -> None:
    """With bodies, page by page; other states are in order of their due times alone."""
    found, cursor = list[str](), None
    while cursor is not None or not found:
        page = await admin.messages("orders", State.GARBAGE, limit=2, cursor=cursor, newest_first=True)
        found += [message.id for message in page.messages]
        cursor = page.cursor
    oldest_first = (await admin.messages("orders", State.GARBAGE)).messages
    assert found == [message.id for message in oldest_first][::-1]
    assert found[-1] == "old"
    for state in (State.WAITING, State.READY, State.DELIVERED, State.RETRY):
        with pytest.raises(InvalidInput, match="newest_first must be False for"):
            await admin.messages("orders", state, newest_first=True)


async def test_a_summary_keeps_a_bounded_number_of_causes(orders: Queue, admin: AsyncAdmin) -> None:
    """Errors that quote ids are each a cause: the rest are counted together."""
    orders.join("billing")
    failures, garbage = orders.keys.of("failures"), orders.keys.of("garbage")
    count = 1_500
    calls: list[Any] = []
    for number in range(count):
        value = f"1 1-{number} - 1 1 nack no order {number}"
        calls += [
            command("ZADD", garbage, orders.now_ms - number, f"billing/m{number}"),
            command("HSET", failures, f"billing/m{number}", value),
        ]
    await asyncio.to_thread(orders.connection.execute, calls)
    found = await admin.summarize_garbage("orders")
    assert (len(found.causes), found.counted, found.others, found.more) == (1_000, count, 500, False)
    found = await admin.summarize_garbage("orders", GarbageFilter(error="no order 7"))
    assert found.counted == len([number for number in range(count) if str(number).startswith("7")])
    with pytest.raises(InvalidInput, match="limit must be"):
        await admin.summarize_garbage("orders", limit=0)


async def test_failures_name_the_release_of_their_handler(
    redis_url: str, prefix: str, sender: AsyncProducer, admin: AsyncAdmin, commands: Commands
) -> None:
    """A poisoned release is found by the summary, and its dead letters are replayed without the others."""
    for release in ("1.4.1", "1.4.2"):
        settings = ConsumerSettings(redis_url=redis_url, prefix=prefix, release=release)
        worker = Worker("billing", settings=settings)

        @worker.on("orders")
        async def handle(_: Delivery) -> None:
            raise KeyError("price")

        await sender.send("orders", b"x", id=f"a{release}", max_retries=0)
        await worker.serve(burst=True)
    consumer = AsyncConsumer(["orders"], "billing", settings=settings)
    await sender.send("orders", b"x", id="plain")
    [delivery] = await consumer.read(wait=30)
    await consumer.reject(delivery, error="by hand")
    await consumer.close()
    found = await admin.summarize_garbage("orders")
    causes = {(cause.release, cause.error): cause for cause in found.causes}
    assert causes.keys() == {("1.4.1", "KeyError: 'price'"), ("1.4.2", "KeyError: 'price'"), ("1.4.2", "by hand")}
    assert causes["1.4.1", "KeyError: 'price'"].trace[-1].endswith("handle")
    ran = await asyncio.to_thread(commands.manager, "garbage", "summary", "orders", "--trace", "--release", "1.4.1")
    assert "traceback of billing/a1.4.1:\n  " in ran.out
    ran = await asyncio.to_thread(commands.manager, "garbage", "list", "orders", "--trace", "--release", "1.4.1")
    assert "traceback of billing/a1.4.1:\n  " in ran.out
    replayed = await admin.replay_all("orders", GarbageFilter(release="1.4.1"))
    assert replayed.done == 1
    assert {letter.id for letter in (await admin.garbage("orders")).letters} == {"a1.4.2", "plain"}


@pytest.mark.parametrize("release", ["a b", "x" * 65, "é"])
def test_a_release_is_a_word(release: str) -> None:
    """It is stored with each failure."""
    with pytest.raises(ValueError, match="release"):
        ConsumerSettings(release=release)


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        (("--error", "timeout"), "Delete 2 dead letters of orders for good?"),
        (("--since", "2h"), "Delete 4 dead letters of orders for good?"),
        ((), "Delete 5 dead letters of orders for good?"),
    ],
)
def test_a_purge_asks_for_as_many_as_the_filters_select(
    dead: Queue, commands: Commands, options: tuple[str, ...], asked: str
) -> None:
    """Without an answer nothing is deleted."""
    ran = commands.manager("garbage", "purge", "orders", "--all", *options)
    assert ran.code != 0
    assert asked in ran.err
    assert len(dead.contents().garbage) == 5


@pytest.mark.parametrize(
    "words",
    [
        ("garbage", "list", "orders"),
        ("garbage", "summary", "orders"),
        ("garbage", "replay", "orders", "--all"),
        ("garbage", "purge", "orders", "--all"),
        ("garbage", "purge", "orders", "--all", "--yes"),
        ("list", "orders", "garbage"),
        ("list", "orders", "delivered"),
    ],
)
@pytest.mark.usefixtures("dead")
def test_a_group_that_is_misspelt(commands: Commands, words: tuple[str, ...]) -> None:
    """The error has the near name, though a group may have no dead letters."""
    ran = commands.manager(*words, "--group", "biling")
    assert ran.code == 2
    assert ran.err.endswith("topic 'orders' has no group 'biling'; did you mean 'billing'?\n")
    assert commands.manager("garbage", "list", "orders", "--group", "billing", "--error", "none such").code == 0
