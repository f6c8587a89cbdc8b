"""`cancel_many`, and `lisa-manager cancel --all`: waiting messages that a filter selects."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lisa_common.errors import InvalidInput, UnknownTopic
from lisa_manager import Admin, AsyncAdmin, ManagerSettings, StopBulk, WaitingFilter
from lisa_producer import AsyncProducer, Message, Producer, ProducerSettings
from support import wait_until_async
from support.commands import Commands
from support.site import Site

_HOUR_S = 3_600


async def _send(sender: AsyncProducer, topic: str = "orders") -> None:
    shops = [("north", 1), ("south", 2)]
    await sender.send_many(
        topic,
        [
            Message(body=b"x" * 1_000, id=f"{shop}-{n}", headers={"shop": shop, "n": str(n)}, delay=hours * _HOUR_S)
            for shop, hours in shops
            for n in range(450)
        ],
    )


@pytest.mark.parametrize("shards", [1, 3])
async def test_all_waiting_messages_are_cancelled(
    admin: AsyncAdmin, sender: AsyncProducer, reading: Any, shards: int
) -> None:
    """In bounded steps that are reported; what has been ready stays, as does what another topic holds."""
    await admin.create_topic("orders", shards=shards)
    orders = reading("orders")
    await orders.read()
    await sender.send("orders", "x", id="retried")
    await orders.nack(*await orders.read(wait=30), delay=_HOUR_S)
    await sender.send("orders", "x", id="ready")
    await _send(sender)
    await _send(sender, "others")
    steps: list[tuple[int, int]] = []
    result = await admin.cancel_many("orders", on_progress=lambda *step: steps.append(step))
    assert (result.done, result.failed, result.stopped) == (900, {}, False)
    assert steps[-1] == (900, 900)
    assert len(steps) >= 900 // 200
    [orders_left, others_left] = await admin.sizes()
    assert (orders_left.stored, orders_left.ready, orders_left.retry) == (2, 1, 1)
    assert others_left.waiting == 900
    assert (await admin.cancel_many("orders")).done == 0


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"id_prefix": "north-"}, 450),
        ({"id_prefix": "north-44"}, 11),
        ({"headers": {"shop": "south"}}, 450),
        ({"headers": {"shop": "south", "n": "7"}}, 1),
        ({"headers": {"shop": "west"}}, 0),
        ({"due_before": timedelta(hours=1.5)}, 450),
        ({"due_before": timedelta(hours=1.5), "id_prefix": "south"}, 0),
        ({"due_before": timedelta(hours=3), "headers": {"n": "3"}}, 2),
    ],
)
async def test_filters_are_combined(
    site: Site, admin: AsyncAdmin, sender: AsyncProducer, options: dict[str, Any], count: int
) -> None:
    """Only what all of them select is cancelled; a dry run counts the same, and cancels nothing."""
    await _send(sender)
    if "due_before" in options:
        options = options | {"due_before": datetime.now(UTC) + options["due_before"]}
    where = WaitingFilter(**options)
    assert (await admin.cancel_many("orders", where, dry_run=True)).done == count
    assert len(site.ids("orders")) == 900
    assert (await admin.cancel_many("orders", where)).done == count
    assert len(site.ids("orders")) == 900 - count


async def test_parked_messages_are_found_by_their_own_times(
    site: Site, admin: AsyncAdmin, sender: AsyncProducer
) -> None:
    """Messages that wait for others of their key are waiting, too."""
    await admin.create_topic("orders", max_in_flight_per_key=1)
    async with site.managed():
        for id in ("first", "second", "third"):
            await sender.send("orders", "x", id=id, key="k")
        await sender.send("orders", "x", id="later", key="k", delay=2 * _HOUR_S)
        await wait_until_async(lambda: len(site.ids("orders", "parked")) == 2)
        result = await admin.cancel_many("orders", WaitingFilter(due_before=datetime.now(UTC) + timedelta(hours=1)))
    assert result.done == 2
    assert site.ids("orders") == {"first", "later"}


async def test_messages_sent_meanwhile_stay(site: Site, redis_url: str, prefix: str, sender: AsyncProducer) -> None:
    """So a producer that goes on sending does not keep the call going."""
    await _send(sender)
    settings = ManagerSettings(redis_url=redis_url, prefix=prefix)
    sending = ProducerSettings(redis_url=redis_url, prefix=prefix)
    with Admin(settings=settings) as blocking, Producer(settings=sending) as producer:

        def send_one(looked: int, _: int) -> None:
            producer.send("orders", "x", id=f"new-{looked}", delay=10 * _HOUR_S)

        result = blocking.cancel_many("orders", on_progress=send_one)
    assert result.done == 900
    assert len(site.ids("orders")) == 5


async def test_it_can_be_stopped(site: Site, admin: AsyncAdmin, sender: AsyncProducer) -> None:
    """After a step; what it has done is told."""
    await _send(sender)

    def stop(looked: int, total: int) -> None:
        assert (looked, total) == (200, 900)
        raise StopBulk

    result = await admin.cancel_many("orders", on_progress=stop)
    assert (result.done, result.stopped) == (200, True)
    assert len(site.ids("orders")) == 700


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"id_prefix": ""}, "id_prefix must be 1 to 200 bytes of printable text; got ''"),
        ({"headers": {"a": 1}}, "headers must be a mapping of text to text"),
        ({"due_before": datetime(2030, 1, 1)}, "due_before must be a datetime with a time zone"),  # noqa: DTZ001
    ],
)
def test_bad_filters(options: dict[str, Any], message: str) -> None:
    """Refused before anything is cancelled."""
    with pytest.raises(InvalidInput, match=message):
        WaitingFilter(**options)


async def test_an_unknown_topic(admin: AsyncAdmin) -> None:
    """As all calls of operators."""
    with pytest.raises(UnknownTopic):
        await admin.cancel_many("nowhere")


async def test_the_command(site: Site, sender: AsyncProducer, commands: Commands) -> None:
    """It asks first, says how many, and says what it did."""
    await _send(sender)
    counted = commands.manager("cancel", "orders", "--all", "--id-prefix", "north-", "--dry-run")
    assert (counted.code, counted.out.strip()) == (0, "450 messages would be cancelled")
    asked = commands.manager("cancel", "orders", "--all", "--header", "shop=north")
    assert asked.code != 0
    assert "Cancel 450 waiting messages of orders?" in asked.err
    assert len(site.ids("orders")) == 900
    done = commands.manager("cancel", "orders", "--all", "--header", "shop=north", "--header", "n=7", "--yes", "--json")
    assert (done.code, done.document) == (0, {"cancelled": 1})
    moment = (datetime.now(UTC) + timedelta(hours=1.5)).isoformat()
    done = commands.manager("cancel", "orders", "--all", "--due-before", moment, "--yes")
    assert (done.code, done.out.strip()) == (0, "cancelled 449")
    done = commands.manager("cancel", "orders", "--all", "--yes")
    assert (done.code, done.out.strip()) == (0, "cancelled 450")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "messages must be named by ids or selected by --all; got neither"),
        (["a", "--all"], "messages must be named by ids or selected by --all; got both"),
        (["a", "--header", "x=y"], "--header needs --all"),
        (["--all", "--id-prefix", "", "--yes"], "id_prefix must be 1 to 200 bytes of printable text"),
        (
            ["--all", "--header", "a=1", "--header", "a=2", "--yes"],
            "header must be given once for each name; got 'a=2'",
        ),
        (["--all", "--header", "x", "--yes"], "header must be KEY=VALUE; got 'x'"),
        (["--all", "--due-before", "tomorrow", "--yes"], "due_before must be a time in ISO 8601"),
    ],
)
async def test_a_wrong_command(
    site: Site, sender: AsyncProducer, commands: Commands, words: list[str], told: str
) -> None:
    """Cancels nothing, and says why."""
    await sender.send("orders", "x", id="a", delay=60)
    ran = commands.manager("cancel", "orders", *words)
    assert ran.code != 0
    assert told in ran.err
    assert site.ids("orders") == {"a"}
