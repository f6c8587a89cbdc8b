"""RabbitMQ's documented cases of TTL, dead lettering, queue expiry and length, as docs/from-rabbitmq.md tells them.

From its pages "Time-To-Live and Expiration", "Dead Letter Exchanges" and "Queue Length Limit". Names of tests begin
with the anchor of the case.
"""

import time
from itertools import pairwise
from typing import Any

import pytest

from lisa_common.errors import InvalidInput, QueueFull
from lisa_common.model.keys import ShardKeys
from lisa_common.protocol.producing import State
from lisa_consumer import Reject, Worker
from lisa_producer import AsyncProducer, Message, PartialSend, SendOutcome
from support import idle_async, wait_until_async
from support.running import new_worker, working
from support.site import Site, take


async def test_ttl_by_policy(site: Site, sender: AsyncProducer, reading: Any) -> None:
    """A topic's ttl holds for each message: one that nobody read in time is not delivered, and is dead-lettered."""
    await site.admin.set_policy("orders", ttl_ms=200, dead_letter_topic="dead")
    await sender.send("orders", "x", id="a")
    async with site.managed():
        [letter] = await take(reading("dead"))
        assert [(d.queue, d.reason, d.original_ttl_ms) for d in letter.deaths] == [("orders", "expired", 200)]
    assert not await reading("orders").read()


@pytest.mark.parametrize(("of_topic", "of_message"), [(100, 60), (60_000, 0.1), (None, 0.1)])
async def test_ttl_by_message_and_the_lower_of_both_wins(
    site: Site, sender: AsyncProducer, reading: Any, of_topic: int | None, of_message: float
) -> None:
    """Whichever is shorter."""
    await site.admin.set_policy("orders", ttl_ms=of_topic, dead_letter_topic="dead")
    await sender.send("orders", "x", ttl=of_message)
    async with site.managed():
        [letter] = await take(reading("dead"))
    assert letter.deaths[0].original_ttl_ms == 100
    assert letter.deaths[0].last_ms - letter.sent_ms <= 0


async def test_ttl_is_kept_by_a_requeue(site: Site, sender: AsyncProducer, reading: Any) -> None:
    """A message that is given back, or fails, keeps the time at which it expires."""
    await site.admin.set_policy("orders", dead_letter_topic="dead", backoff_base_ms=1, max_retries=1_000)
    orders = reading("orders")
    await orders.read()
    sent = await sender.send("orders", "x", ttl=2)
    async with site.managed():
        [delivery] = await take(orders)
        await orders.release(delivery)
        for delay in (0.05, 0.05, 60):
            [delivery] = await take(orders)
            await orders.nack(delivery, delay=delay)
        [letter] = await take(reading("dead"))
    [death] = letter.deaths
    assert death.reason == "expired"
    assert death.last_ms >= sent.due_ms + 2_000, "not before its time"
    assert death.last_ms < sent.due_ms + 7_000, "not as long after a requeue as after the send"


async def test_ttl_expires_messages_anywhere_not_only_at_the_head(
    site: Site, sender: AsyncProducer, reading: Any
) -> None:
    """Behind one that lasts, RabbitMQ keeps expired messages until they reach the head."""
    await site.admin.set_policy("orders", dead_letter_topic="dead")
    await reading("orders").read()
    await sender.send("orders", "lasts", id="head")
    await sender.send("orders", "x", ttl=0.1, id="behind")
    await sender.send("orders", "lasts, too", id="last")
    async with site.managed():
        [letter] = await take(reading("dead"))
        assert letter.deaths[0].id == "behind"
        [sizes] = await site.admin.sizes("orders")
    assert sizes.ready == 2


async def test_ttl_of_zero_is_refused(sender: AsyncProducer) -> None:
    """In RabbitMQ it means: now or never. Here the least is a millisecond, and the error says so."""
    with pytest.raises(InvalidInput, match=r"^ttl must be seconds or a timedelta from 0\.001 s"):
        await sender.send("orders", "x", ttl=0)
    await sender.send("orders", "x", ttl=0.001)


async def test_ttl_expired_messages_are_never_delivered(sender: AsyncProducer, reading: Any) -> None:
    """Without a manager nobody sweeps; the read itself judges."""
    orders = reading("orders")
    await orders.read()
    await sender.send("orders", "x", ttl=0.05)
    await sender.send("orders", "y")
    await idle_async(0.06)
    assert [delivery.body for delivery in await orders.read()] == [b"y"]


async def test_ttl_ends_the_copy_of_one_queue_only(site: Site, sender: AsyncProducer, reading: Any) -> None:
    """The death of a message in one queue does not concern the others: a group that has read it keeps it."""
    await site.admin.set_policy("orders", dead_letter_topic="dead")
    quick, slow = reading("orders", group="quick"), reading("orders", group="slow")
    await quick.read()
    await slow.read()
    await sender.send("orders", "x", ttl=0.3)
    [delivery] = await take(quick)
    async with site.managed():
        await idle_async(0.35)
        assert not await slow.read()
        [letter] = await take(reading("dead"))
        assert letter.deaths[0].group == "slow"
        assert [str(outcome) for outcome in await quick.ack(delivery)] == ["acked"]


async def test_ttl_by_a_changed_policy_is_that_of_later_messages(
    site: Site, sender: AsyncProducer, reading: Any
) -> None:
    """RabbitMQ applies a policy to what a queue holds. Here a message keeps the ttl that it was sent with."""
    await site.admin.set_policy("orders", dead_letter_topic="dead")
    await sender.send("orders", "x", id="before")
    await site.admin.set_policy("orders", ttl_ms=50)
    fresh = AsyncProducer(settings=sender._settings)
    async with fresh, site.managed():
        await fresh.send("orders", "x", id="after")
        [letter] = await take(reading("dead"))
        assert letter.deaths[0].id == "after"
        # The letter is sent before it is removed here.
        await wait_until_async(lambda: site.ids("orders") == {"before"})


async def test_policies_hold_for_queues_that_exist_and_that_will(site: Site, sender: AsyncProducer) -> None:
    r"""`set_policy TTL "^orders\." '{"message-ttl":60000}'` is `policy set 'orders.*' --ttl 60s`."""
    await sender.send("orders.eu", "x")
    await site.admin.set_pattern_policy("orders.*", {"ttl_ms": 60_000}, priority=10)
    await sender.send("orders.later", "x")
    await sender.send("mails", "x")
    ttls = {topic.name: topic.policy.ttl_ms for topic in await site.admin.topics()}
    assert ttls == {"orders.eu": 60_000, "orders.later": 60_000, "mails": None}
    await site.admin.drop_pattern_policy("orders.*")
    assert {topic.policy.ttl_ms for topic in await site.admin.topics()} == {None}


async def test_policies_of_several_patterns_apply_field_by_field(site: Site) -> None:
    """In RabbitMQ one policy applies, that of the highest priority: the queue would have no max-length."""
    await site.admin.create_topic("orders.eu")
    await site.admin.set_pattern_policy("orders.*", {"ttl_ms": 60_000}, priority=10)
    await site.admin.set_pattern_policy("*", {"ttl_ms": 1_000, "max_messages": 7}, priority=5)
    policy = await site.admin.policy("orders.eu")
    assert (policy.ttl_ms, policy.max_messages) == (60_000, 7)


@pytest.mark.parametrize("own", [5_000, 90_000])
async def test_policies_yield_to_a_topic_s_own_value(site: Site, own: int) -> None:
    """In RabbitMQ the lower one of argument and policy holds; here a bound is a cap, and asked for."""
    await site.admin.create_topic("orders", ttl_ms=own)
    await site.admin.set_pattern_policy("*", {"ttl_ms": 60_000})
    assert (await site.admin.policy("orders")).ttl_ms == own


async def test_policies_of_operators_cap_what_users_set(site: Site) -> None:
    """`set_operator_policy` is `policy set --cap`: the lower value holds, also over no value, and an own one."""
    await site.admin.create_topic("orders", ttl_ms=5_000)
    await site.admin.create_topic("mails")
    await site.admin.set_pattern_policy("mails", {"ttl_ms": 1_000}, priority=99)
    await site.admin.set_pattern_policy("*", {"ttl_ms": 3_000, "max_messages": 3}, cap=True)
    policies = {topic.name: topic.policy for topic in await site.admin.topics()}
    assert {name: (p.ttl_ms, p.max_messages) for name, p in policies.items()} == {
        "orders": (3_000, 3),
        "mails": (1_000, 3),
    }


async def test_policies_of_several_operators_all_hold(site: Site) -> None:
    """In RabbitMQ the one of the highest priority displaces the others: ttl 4,000 and no max-length would hold."""
    await site.admin.create_topic("orders", ttl_ms=5_000)
    await site.admin.set_pattern_policy("*", {"ttl_ms": 3_000, "max_messages": 3}, cap=True)
    await site.admin.set_pattern_policy("orders*", {"ttl_ms": 4_000}, cap=True)
    policy = await site.admin.policy("orders")
    assert (policy.ttl_ms, policy.max_messages) == (3_000, 3)


async def test_policies_of_operators_are_numbers(site: Site) -> None:
    """As in RabbitMQ, which does not know a dead-letter-exchange there."""
    with pytest.raises(InvalidInput, match=r"^field of a cap must be one of .*; got 'dead_letter_topic'$"):
        await site.admin.set_pattern_policy("*", {"dead_letter_topic": "dead"}, cap=True)


async def test_dlx_of_rejected_messages(site: Site, sender: AsyncProducer, reading: Any) -> None:
    """`basic.reject` and `basic.nack` with requeue=false are `reject`, or `Reject` in a handler."""
    await site.admin.set_policy("orders", dead_letter_topic="dead")
    worker: Worker = new_worker(site.url, site.prefix)

    @worker.on("orders")
    async def refuse(_: object) -> None:
        raise Reject("not ours")

    async with site.managed(), working(worker):
        await sender.send("orders", "x")
        [letter] = await take(reading("dead"))
    assert [(d.reason, d.error) for d in letter.deaths] == [("rejected", "not ours")]


async def test_dlx_of_the_delivery_limit(site: Site, sender: AsyncProducer, reading: Any) -> None:
    """A message that failed too often, as in a quorum queue with a delivery limit."""
    await site.admin.set_policy("orders", dead_letter_topic="dead", max_retries=2, backoff_base_ms=1)
    orders = reading("orders")
    await orders.read()
    await sender.send("orders", "x")
    async with site.managed():
        for _ in range(3):
            [delivery] = await take(orders)
            await orders.nack(delivery, error="no")
        [letter] = await take(reading("dead"))
    assert [(d.reason, d.count, d.attempts) for d in letter.deaths] == [("delivery_limit", 1, 3)]


async def test_dlx_strips_the_expiration_and_records_it(site: Site, sender: AsyncProducer) -> None:
    """So that the message does not expire again in its new topic; a ttl of that topic holds."""
    await site.admin.set_policy("orders", dead_letter_topic="dead")
    await site.admin.set_policy("dead", ttl_ms=3_600_000)
    await sender.send("orders", "x", ttl=0.05, id="a")
    async with site.managed():
        await wait_until_async(lambda: site.ids("dead"))
    [hop] = await site.admin.trace("orders", "a")
    assert hop.found.record
    assert hop.found.record.ttl_ms == 3_600_000
    assert '"original-expiration":"50"' in hop.found.record.headers["x-death"]


async def test_dlx_history_counts_and_is_newest_first(site: Site, sender: AsyncProducer, reading: Any) -> None:
    """The pattern of RabbitMQ's users: reject to a waiting queue, whose ttl brings the message back, and count."""
    await site.admin.set_policy("work", dead_letter_topic="work.wait")
    await site.admin.set_policy("work.wait", ttl_ms=50, dead_letter_topic="work")
    work = reading("work")
    await work.read()
    await sender.send("work", "x", id="a", headers={"own": "kept"})
    async with site.managed():
        for tries in range(4):
            [delivery] = await take(work)
            rejected = [death.count for death in delivery.deaths if (death.queue, death.reason) == ("work", "rejected")]
            assert sum(rejected) == tries
            await (work.reject(delivery) if tries < 3 else work.ack(delivery))
    assert [(d.queue, d.reason, d.count) for d in delivery.deaths] == [
        ("work.wait", "expired", 3),
        ("work", "rejected", 3),
    ]
    headers = delivery.headers
    assert (headers["x-first-death-queue"], headers["x-first-death-reason"]) == ("work", "rejected")
    assert (headers["x-last-death-queue"], headers["x-last-death-reason"]) == ("work.wait", "expired")
    assert (headers["own"], headers["x-first-death-id"]) == ("kept", "a")


async def test_dlx_cycles_without_a_rejection_end(site: Site, sender: AsyncProducer) -> None:
    """RabbitMQ drops the message when it would come to a queue twice; here it stays as garbage."""
    await site.admin.set_policy("a", ttl_ms=20, dead_letter_topic="b")
    await site.admin.set_policy("b", ttl_ms=20, dead_letter_topic="a")
    await sender.send("a", "x", id="x")
    async with site.managed():
        await wait_until_async(lambda: site.ids("b", "garbage"))
        await idle_async(0.3)
    [found] = [hop.found for hop in await site.admin.trace("a", "x")]
    assert found.state is State.GARBAGE
    assert not site.ids("a")


async def test_dlx_that_does_not_exist_is_declared(site: Site, sender: AsyncProducer) -> None:
    """RabbitMQ drops messages whose dead letter exchange is missing."""
    await site.admin.set_policy("orders", ttl_ms=1, dead_letter_topic="nobody.made.this")
    await sender.send("orders", "x")
    async with site.managed():
        await wait_until_async(lambda: site.ids("nobody.made.this"))
    assert "nobody.made.this" in {topic.name for topic in await site.admin.topics()}


async def test_dlx_set_later_also_takes_what_is_dead(site: Site, sender: AsyncProducer, reading: Any) -> None:
    """A dead letter topic by policy, at any time: garbage that is there goes as well, oldest first."""
    await site.admin.create_topic("orders")
    orders = reading("orders")
    await orders.read()
    await sender.send_many("orders", [Message(body=str(n)) for n in range(5)])
    for delivery in await take(orders, 5):
        await orders.reject(delivery)
    async with site.managed():
        await site.admin.set_policy("orders", dead_letter_topic="dead")
        letters = await take(reading("dead"), 5)
    assert [letter.text() for letter in letters] == list("01234")


async def test_expires_drops_an_unused_topic(site: Site) -> None:
    """Without consumers, entries and changes of its policy, for the time of the policy; its policy goes as well."""
    await site.admin.set_policy("orders", expire_idle_ms=300)
    async with site.managed():
        await _gone(site, "orders")


async def test_expires_not_while_messages_are_there_unless_always(site: Site, sender: AsyncProducer) -> None:
    """RabbitMQ deletes them with the queue, and does not dead-letter them: here only with `expire_idle="always"`."""
    await site.admin.set_policy("orders", expire_idle_ms=100, dead_letter_topic="dead")
    await site.admin.set_policy("lossy", expire_idle_ms=100, dead_letter_topic="dead", expire_idle="always")
    await sender.send("orders", "x", delay=60, id="a")
    await sender.send("lossy", "x", delay=60)
    async with site.managed():
        await _gone(site, "lossy")
        assert site.ids("orders") == {"a"}
        await site.admin.cancel("orders", ["a"])
        # Repeats of the send know it for a minute.
        site.client.delete(ShardKeys(site.prefix, "orders").of("finished"))
        await _gone(site, "orders")
    assert not site.ids("lossy")
    assert "dead" not in {topic.name for topic in await site.admin.topics()}


@pytest.mark.slow
async def test_expires_is_renewed_by_a_declaration(site: Site) -> None:
    """Setting the same policy again counts as use, as a redeclaration does."""
    async with site.managed():
        for _ in range(8):
            await site.admin.set_policy("orders", expire_idle_ms=1_000)
            await idle_async(0.25)
            assert "orders" in {topic.name for topic in await site.admin.topics()}
        await _gone(site, "orders")


async def test_expires_not_while_consumers_ask(site: Site, reading: Any) -> None:
    """One that reads, or holds a delivery, uses the topic. Before 7.2 the server does not tell of reads in vain."""
    orders, is_there, pauses = reading("orders"), False, [2.0]
    while max(pauses) > 1.5:  # nobody asks while this process stalls
        await site.admin.set_policy("orders", expire_idle_ms=2_000)
        moments = [time.monotonic()]
        async with site.managed():
            for _ in range(7):
                await orders.read(wait=0.4)
                moments.append(time.monotonic())
            is_there = await _is_there(site, "orders")
            moments.append(time.monotonic())
        pauses = [later - earlier for earlier, later in pairwise(moments)]
    assert await site.admin.server_version() < (7, 2) or is_there


@pytest.mark.parametrize("value", [0, -1, "1h"])
async def test_expires_must_be_positive(site: Site, value: Any) -> None:
    """As in RabbitMQ."""
    with pytest.raises(InvalidInput, match=r"^policy field expire_idle_ms must be"):
        await site.admin.set_policy("orders", expire_idle_ms=value)


async def _is_there(site: Site, topic: str) -> bool:
    return topic in {known.name for known in await site.admin.topics()}


async def _gone(site: Site, topic: str) -> None:
    async def is_gone() -> bool:
        return not await _is_there(site, topic)

    await wait_until_async(is_gone, 20, what=f"{topic} expires")


@pytest.mark.parametrize("delay", [0, 60])
async def test_max_length_refuses_what_does_not_fit(site: Site, sender: AsyncProducer, delay: int) -> None:
    """As `overflow=reject-publish`: the publisher is told, with limit and count, and nothing that is there goes."""
    await site.admin.set_policy("orders", max_messages=2)
    for id in "ab":
        await sender.send("orders", "x", id=id, delay=delay)
    with pytest.raises(QueueFull) as refused:
        await sender.send("orders", "x", id="c")
    assert (refused.value.limit, refused.value.count) == (2, 2)
    assert site.ids("orders") == {"a", "b"}


async def test_max_length_counts_unacked_and_delayed_messages(site: Site, sender: AsyncProducer, reading: Any) -> None:
    """RabbitMQ counts ready messages only; here a place is free once a message is acked."""
    await site.admin.set_policy("orders", max_messages=1)
    orders = reading("orders")
    await orders.read()
    await sender.send("orders", "x")
    [delivery] = await take(orders)
    with pytest.raises(QueueFull):
        await sender.send("orders", "y")
    await orders.ack(delivery)
    await sender.send("orders", "y")


async def test_max_length_takes_a_batch_whole_or_not_at_all(site: Site, sender: AsyncProducer) -> None:
    """Two messages, room for one."""
    await site.admin.set_policy("orders", max_messages=1)
    with pytest.raises(PartialSend) as failed:
        await sender.send_many("orders", [Message(body=b"x", id="a"), Message(body=b"x", id="b")])
    assert failed.value.report.failed == 2
    assert not site.ids("orders")


async def test_max_length_refusal_stores_nothing_anywhere(site: Site, sender: AsyncProducer) -> None:
    """There is no `reject-publish-dlx`: the publisher still has the message, and may send it again."""
    await site.admin.set_policy("orders", max_messages=1, dead_letter_topic="dead")
    await sender.send("orders", "x", delay=60, id="a")
    async with site.managed():
        for _ in range(2):
            with pytest.raises(QueueFull):
                await sender.send("orders", "y", id="b")
        await site.admin.cancel("orders", ["a"])
        assert (await sender.send("orders", "y", id="b", delay=60)).outcome is SendOutcome.SENT
        assert site.ids("orders") == {"b"}
        assert not await _is_there(site, "dead")
