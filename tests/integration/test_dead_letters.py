"""Garbage goes to the dead letter topic: once, whatever breaks, and to wherever that topic is."""

from typing import Any

import pytest

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import InvalidInput, QueueFull
from lisa_common.model.keys import ShardKeys, topics_key
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_common.protocol.paging import START
from lisa_common.protocol.producing import State
from lisa_common.protocol.registry import Topics
from lisa_manager.dead_lettering import move_page
from lisa_producer import AsyncProducer
from support import wait_until_async
from support.commands import Commands
from support.queue import Queue
from support.site import Site, take
from support.stepping import Stepped


def _is_empty(queue: Queue) -> bool:
    """Whether nothing is left but known ids."""
    return set(queue.contents().left) <= {"finished"}


async def test_a_rejected_message_arrives_with_its_history(site: Site, sender: AsyncProducer, reading: Any) -> None:
    """Body, headers, priority and retries are those of the message; a missing topic is declared; nothing stays."""
    await site.admin.set_policy("orders", dead_letter_topic="dead")
    orders, dead = reading("orders"), reading("dead", group="other")
    await orders.read()
    sent = {"body": b"\x00\xff", "headers": {"a": "ü"}, "priority": 9, "max_retries": 3, "id": "o-7", "ttl": 60}
    await sender.send("orders", sent.pop("body"), **sent)
    [delivery] = await take(orders)
    await orders.reject(delivery, error="no order")
    async with site.managed():
        [letter] = await take(dead)
        assert (letter.body, letter.headers["a"]) == (b"\x00\xff", "ü")
        [death] = letter.deaths
        assert (death.queue, death.reason, death.count, death.group) == ("orders", "rejected", 1, "g")
        assert (death.id, death.attempts, death.error, death.original_ttl_ms) == ("o-7", 1, "no order", 60_000)
        assert letter.id == f"orders/g/o-7@{death.last_ms}"
        found = await site.admin.find("dead", letter.id)
        assert found
        assert found.record
        assert (found.record.priority, found.record.max_retries, found.record.ttl_ms) == (9, 3, None)
        assert not site.ids("orders")
        assert "dead" in {topic.name for topic in await site.admin.topics()}


async def test_a_delay_holds_dead_letters_back(site: Site, orders: Queue) -> None:
    """They wait in the new topic for as long."""
    await site.admin.set_policy("orders", dead_letter_topic="later", dead_letter_delay_ms=3_600_000)
    _bury(orders, "a")
    async with site.managed():
        await wait_until_async(lambda: site.ids("later", "waiting"))
    [found] = [hop.found for hop in await site.admin.trace("orders", "a")]
    assert found.state is State.WAITING
    assert found.record
    assert found.record.due_ms - found.record.sent_ms == 3_600_000


async def test_each_group_has_its_own_dead_letter(site: Site, orders: Queue) -> None:
    """Copies of one message die apart."""
    await site.admin.set_policy("orders", dead_letter_topic="dead")
    orders.join("g", "h")
    orders.send("a")
    for group in ("g", "h"):
        orders.nack(*orders.read(group), rejected=True)
    async with site.managed():
        await wait_until_async(lambda: len(site.ids("dead")) == 2 and _is_empty(orders))
    assert {id.split("/")[1] for id in site.ids("dead")} == {"g", "h"}


async def test_a_crash_between_send_and_purge_leaves_one_message(
    connection: AsyncConnection, site: Site, orders: Queue
) -> None:
    """After every single call; another manager then starts anew."""
    policy = Policy(dead_letter_topic="dead")
    for steps in range(1, 6):
        _bury(orders, f"m{steps}")
        stepped = Stepped(orders.connection, _page(orders, policy))
        for _ in range(steps):
            stepped.step()
        moved = await connection.run(_page(orders, policy))
        assert moved.at_end
        assert _is_empty(orders)
        assert len(site.ids("dead")) == steps


def _page(queue: Queue, policy: Policy, **options: Any) -> Any:
    return move_page(queue.keys, policy, Topics(queue.keys.prefix), START, **options)


def _bury(queue: Queue, *ids: str, group: str = "g", **options: Any) -> None:
    queue.join(group)
    for id in ids:
        queue.send(id, **options)
    queue.nack(*queue.read(group), rejected=True)


async def test_a_letter_that_died_again_is_not_purged(connection: AsyncConnection, site: Site, orders: Queue) -> None:
    """An operator replays it while it is moved, and it dies once more: that is another dead letter."""
    policy = Policy(dead_letter_topic="dead")
    _bury(orders, "a")
    stepped = Stepped(orders.connection, _page(orders, policy))
    while not site.ids("dead"):
        stepped.step()
    assert orders.replay("g/a") == ["replayed"]
    orders.advance(5)
    orders.nack(*orders.read("g"), rejected=True)
    stepped.finish()
    assert orders.contents().garbage
    await connection.run(_page(orders, policy))
    assert len(site.ids("dead")) == 2
    assert _is_empty(orders)


async def test_a_letter_that_has_moved_on_is_not_sent_again(
    connection: AsyncConnection, site: Site, orders: Queue
) -> None:
    """A manager is stopped before its send; meanwhile the letter goes through the new topic to the next one."""
    policy = Policy(dead_letter_topic="dead")
    _bury(orders, "a", "b~")
    stopped = Stepped(orders.connection, _page(orders, policy))
    stopped.step()
    await connection.run(_page(orders, policy))
    dead = Queue(orders.connection, ShardKeys(site.prefix, "dead"))
    dead.catch_up()
    dead.join("g")
    dead.nack(*dead.read("g"), rejected=True)
    await connection.run(_page(dead, Policy(dead_letter_topic="last")))
    assert len(site.ids("last")) == 2
    stopped.finish()
    assert not site.ids("dead")


async def test_no_topic_is_its_own_dead_letter_topic(site: Site, orders: Queue) -> None:
    """A rejected message would go round for ever: refused as it is set, and left out of what others have stored."""
    for call in (site.admin.set_policy, site.admin.create_topic):
        with pytest.raises(InvalidInput, match="policy field dead_letter_topic must be another topic; got 'orders'"):
            await call("orders", dead_letter_topic="orders")
    assert site.client.hget(topics_key(site.prefix), "orders") == b"{}"
    site.client.hset(topics_key(site.prefix), "orders", '{"dead_letter_topic":"orders","max_retries":3}')
    policy = await site.admin.policy("orders")
    assert (policy.dead_letter_topic, policy.max_retries) == (None, 3)
    _bury(orders, "a")
    async with site.managed():
        # The manager has looked at all garbage by the time that it has moved that of another topic.
        await site.admin.create_topic("other", dead_letter_topic="dead")
        other = Queue(orders.connection, ShardKeys(site.prefix, "other"), now_ms=orders.now_ms)
        _bury(other, "b")
        await wait_until_async(lambda: len(site.ids("dead")) == 1)
    assert site.ids("orders") == {"a"}
    await site.admin.set_policy("orders", max_retries=5)
    assert b"orders" not in site.client.hget(topics_key(site.prefix), "orders")


async def test_a_full_target_multiplies_nothing(connection: AsyncConnection, site: Site, orders: Queue) -> None:
    """Not even without a dedup window: the letter stays garbage, once, until there is room."""
    await site.admin.create_topic("dead", max_messages=1, dedup_window_ms=0, dead_letter_topic="last")
    policy = Policy(dead_letter_topic="dead", dedup_window_ms=0)
    dead = Queue(orders.connection, ShardKeys(site.prefix, "dead"))
    dead.send("fills it", due="+3600000")
    _bury(orders, "a")
    for _ in range(3):
        moved = await connection.run(_page(orders, policy))
        assert isinstance(moved.error, QueueFull)
        await connection.run(_page(dead, Policy(dead_letter_topic="last")))
    assert not site.ids("last")
    assert len(orders.contents().garbage) == 1
    dead.cancel("fills it")
    await connection.run(_page(orders, policy))
    assert len(site.ids("dead")) == 1
    assert _is_empty(orders)


async def test_a_page_that_was_held_up_is_read_again(connection: AsyncConnection, site: Site, orders: Queue) -> None:
    """The process was stopped after it read the page: another may have moved the letters long ago."""
    _bury(orders, "a")
    moments = iter((0.0, 11.0))
    moved = await connection.run(_page(orders, Policy(dead_letter_topic="dead"), clock=lambda: next(moments)))
    assert (moved.moved, moved.at_end, moved.rest) == (0, False, START)
    assert not site.ids("dead")


async def test_two_managers_move_each_letter_once(site: Site, orders: Queue, reading: Any) -> None:
    """Both meet the same letters; the new topic knows their ids."""
    await site.admin.set_policy("orders", dead_letter_topic="dead")
    _bury(orders, *(f"m{n}" for n in range(1_000)))
    dead = reading("dead")
    async with site.managed(), site.managed():
        letters = await take(dead, 1_000)
        await dead.ack(*letters)
        await wait_until_async(lambda: _is_empty(orders))
    assert len({letter.deaths[0].id for letter in letters}) == len(letters) == 1_000
    assert not await dead.read()


async def test_a_cycle_without_a_rejection_ends_in_garbage(site: Site, orders: Queue) -> None:
    """RabbitMQ drops such a message. Here an operator may look at it, and the topic's limits of garbage hold."""
    await site.admin.set_policy("orders", dead_letter_topic="wait", garbage_max_messages=3)
    await site.admin.set_policy("wait", dead_letter_topic="orders", ttl_ms=1)
    orders.policy = Policy(max_retries=0)
    orders.join("g")
    for id in "abcde":
        orders.send(id)
    orders.nack(*orders.read("g"))
    async with site.managed():
        await wait_until_async(lambda: len(site.ids("wait", "garbage")) == 5)
        hops = await site.admin.trace("orders", "a")
        assert [(hop.topic, hop.found.state) for hop in hops] == [("wait", "garbage")]
        assert [(d.queue, d.reason) for d in hops[0].found.deaths] == [("orders", "delivery_limit")]
        await site.admin.set_policy("wait", garbage_max_messages=2)
        await wait_until_async(lambda: len(site.ids("wait", "garbage")) == 2)
        await site.admin.set_policy("wait", garbage_retention_ms=1)
        await wait_until_async(lambda: not site.ids("wait", "garbage"))
    assert not site.ids("orders")


async def test_letters_behind_those_that_stay_are_moved(site: Site, orders: Queue) -> None:
    """Hundreds that stay, unreadable or in a cycle, hold no other up."""
    orders.join("g")
    for n in range(450):
        orders.send(f"bad{n}")
    site.client.hset(orders.keys.of("messages"), mapping={f"bad{n}": b"\x09damaged" for n in range(450)})
    assert not orders.read("g")
    assert len(orders.contents().garbage) == 450
    await site.admin.set_policy("orders", dead_letter_topic="dead")
    async with site.managed():
        for n in range(3):
            _bury(orders, f"good{n}")
            await wait_until_async(lambda n=n: len(site.ids("dead")) == n + 1)
        await wait_until_async(lambda: len(orders.contents().garbage) == 450)


@pytest.mark.parametrize("limits", [{"garbage_max_messages": 0}, {"garbage_retention_ms": 1}])
async def test_limits_of_garbage_lose_no_letter(site: Site, orders: Queue, limits: dict[str, int]) -> None:
    """A topic that keeps no garbage passes all of it on, also while the new topic does not take it."""
    await site.admin.set_policy("orders", dead_letter_topic="dead", **limits)
    _bury(orders, *(f"m{n}" for n in range(300)))
    site.client.set(ShardKeys(site.prefix, "dead").of("messages"), "no hash")
    async with site.managed() as manager:
        await wait_until_async(lambda: manager._dead_letterer._problems)
        assert len(orders.contents().garbage) == 300
        site.client.delete(ShardKeys(site.prefix, "dead").of("messages"))
        await wait_until_async(lambda: len(site.ids("dead")) == 300)


async def test_one_topic_that_takes_nothing_hurts_no_other(site: Site, orders: Queue) -> None:
    """Its letters stay where they are; others go on."""
    await site.admin.set_policy("orders", dead_letter_topic="broken")
    await site.admin.set_policy("other", dead_letter_topic="dead")
    site.client.set(ShardKeys(site.prefix, "broken").of("messages"), "no hash")
    other = Queue(orders.connection, ShardKeys(site.prefix, "other"), now_ms=orders.now_ms)
    _bury(orders, "a")
    async with site.managed():
        for id in "xyz":
            _bury(other, id)
            await wait_until_async(lambda: _is_empty(other))
    assert orders.contents().garbage
    assert len(site.ids("dead")) == 3


@pytest.mark.parametrize("before", [1, 3])
async def test_letters_go_to_the_shards_of_a_sharded_topic(site: Site, orders: Queue, before: int) -> None:
    """Also while that topic is resharded, and what a former shard knows is not sent again."""
    await site.admin.create_topic("dead", shards=before)
    policy = Policy(dead_letter_topic="dead")
    topics = Topics(site.prefix)
    _bury(orders, *(f"m{n}" for n in range(50)))
    stepped = Stepped(orders.connection, move_page(orders.keys, policy, topics, START))
    while not _stored(site, before):
        stepped.step()
    await site.admin.reshard("dead", 4)
    # The first manager has died. Another one knows the topic from before the reshard.
    orders.connection.run(move_page(orders.keys, policy, topics, START))
    assert _is_empty(orders)
    [sizes] = await site.admin.sizes("dead")
    assert sizes.stored == 50


def _stored(site: Site, shards: int) -> int:
    layout = Layout(site.prefix, "dead", Policy(shards=shards))
    return sum(site.client.hlen(keys.of("messages")) for keys in layout.shards)


async def test_letters_of_former_shards_are_moved(site: Site, orders: Queue) -> None:
    """A topic with a dead letter topic drains after a reshard."""
    await site.admin.set_policy("orders", dead_letter_topic="dead", dedup_window_ms=50)
    _bury(orders, "a")
    await site.admin.reshard("orders", 2)
    async with site.managed():
        await wait_until_async(lambda: len(site.ids("dead")) == 1 and _is_empty(orders))
        # Repeats of the send know it for a minute.
        site.client.delete(orders.keys.of("finished"))
        await wait_until_async(lambda: b'"drained":[0]' in (site.client.hget(topics_key(site.prefix), "orders") or b""))


async def test_a_letter_of_an_earlier_message_with_the_id_is_not_moved(
    site: Site, orders: Queue, connection: AsyncConnection
) -> None:
    """A group is gone, its copy is left in garbage, and the id belongs to a message that is alive."""
    _bury(orders, "a", group="gone")
    orders.destroy("gone")
    site.client.hdel(orders.keys.of("messages"), "a")
    orders.catch_up()
    orders.send("a", due="+60000", body=b"alive")
    moved = await connection.run(_page(orders, Policy(dead_letter_topic="dead")))
    assert (moved.moved, moved.kept) == (0, 1)
    assert orders.contents().waiting
    assert not site.ids("dead")


async def test_foreign_values_are_passed_over(site: Site, orders: Queue) -> None:
    """Scores, members and failures of any kind, beside letters that are moved."""
    await site.admin.set_policy("orders", dead_letter_topic="dead")
    garbage = orders.keys.of("garbage")
    site.client.zadd(garbage, {b"\xff/\xfe": 1, "no slash": 2, "g/none": float("inf"), "/": float("-inf"), "g/x": 1.5})
    site.client.hset(orders.keys.of("failures"), "g/x", "damaged")
    _bury(orders, "a", "inf")
    site.client.zadd(garbage, {"g/inf": float("inf")})
    async with site.managed():
        await wait_until_async(lambda: len(site.ids("dead")) == 2)
        _bury(orders, "b")
        await wait_until_async(lambda: len(site.ids("dead")) == 3)
        await wait_until_async(lambda: site.client.zrange(garbage, 0, -1) == [b"g/none"])
    assert not site.client.hkeys(orders.keys.of("messages"))


async def test_show_follows_a_message(site: Site, commands: Commands, orders: Queue) -> None:
    """From where it died, hop by hop, also once its last dead letter is finished; and back, by its history."""
    await site.admin.set_policy("orders", dead_letter_topic="wait", max_retries=0)
    await site.admin.set_policy("wait", ttl_ms=1, dead_letter_topic="last")
    _bury(orders, "a/b", "a")
    async with site.managed():
        await wait_until_async(lambda: len(site.ids("last")) == 2)
    ran = commands.manager("show", "orders", "a")
    assert ran.code == 0
    assert "finished" in ran.out, "its id is known in its first topic, too"
    [hop] = [row for row in ran.rows if row[:1] == ["last"]]
    assert hop[2] == "ready"
    [document] = commands.manager("show", "orders", "a/b", "--json").document["dead_letters"][-1:]
    assert document["topic"] == "last"
    shown = commands.manager("show", "last", hop[1])
    assert [row[:3] for row in shown.rows if row[:1] in (["wait"], ["orders"])] == [
        ["wait", "expired", "1"],
        ["orders", "rejected", "1"],
    ]
    deaths = commands.manager("show", "last", hop[1], "--json").document["deaths"]
    assert [(death["queue"], death["reason"], death["id"]) for death in deaths][1] == ("orders", "rejected", "a")
    last = Queue(orders.connection, ShardKeys(site.prefix, "last"))
    last.catch_up()
    last.join("g")
    last.ack(*last.read("g"))
    assert [row[2] for row in commands.manager("show", "orders", "a").rows if row[:1] == ["last"]] == ["finished"]
    assert commands.manager("show", "orders", "never").code == 1
