"""Policies of patterns: for topics that exist and that will, and however a change of them is cut short."""

import asyncio
import contextlib
import json
from typing import Any

import pytest
import redis

from lisa_common.errors import InvalidInput, QueueFull
from lisa_common.model.keys import PATTERNS, ShardKeys, topics_key
from lisa_common.model.pattern_policies import PatternPolicy, parse_patterns
from lisa_common.model.policy import Policy
from lisa_manager import DEFAULT
from lisa_producer import AsyncProducer, Message, ProducerSettings, SendOutcome
from support import wait_until_async
from support.commands import Commands
from support.site import Site, take


async def test_topics_that_exist_and_that_will_get_a_pattern_s_values(site: Site, sender: AsyncProducer) -> None:
    """However they are declared: by a send, by an operator, or as a dead letter topic."""
    admin = site.admin
    await sender.send("orders.sent", "x")
    await admin.create_topic("orders.own", ttl_ms=5_000)
    await admin.create_topic("mails")
    changed = await admin.set_pattern_policy("orders.*", {"ttl_ms": 60_000, "max_retries": 3}, priority=10)
    assert changed.topics == {"orders.sent", "orders.own"}
    await sender.send("orders.later", "x")
    await admin.create_topic("orders.created")
    await admin.set_policy("orders.set", max_retries=0, backoff_base_ms=1, dead_letter_topic="orders.dead")
    for topic in ("orders.sent", "orders.later", "orders.created"):
        policy = await admin.policy(topic)
        assert (policy.ttl_ms, policy.max_retries) == (60_000, 3), topic
    assert ((await admin.policy("orders.own")).ttl_ms, (await admin.policy("orders.set")).max_retries) == (5_000, 0)
    assert (await admin.policy("mails")) == Policy()
    await sender.send("orders.set", "x", ttl=0.01)
    async with site.managed():
        await wait_until_async(lambda: site.client.hexists(topics_key(site.prefix), "orders.dead"))
    assert (await admin.policy("orders.dead")).max_retries == 3


async def test_a_send_uses_the_pattern_at_once(site: Site, sender: AsyncProducer) -> None:
    """The first message of a new topic has its ttl."""
    await site.admin.set_pattern_policy("orders.*", {"ttl_ms": 60_000, "max_body_bytes": 3})
    await sender.send("orders.new", "x", id="a")
    await sender.send_many("orders.batch", [Message(body="x", id="b")])
    assert (site.ids("orders.new", "expiring"), site.ids("orders.batch", "expiring")) == ({"a"}, {"b"})
    with pytest.raises(InvalidInput, match=r"^body must be at most 3 bytes"):
        await sender.send("orders.other", "long")
    assert not site.client.hexists(topics_key(site.prefix), "orders.other"), "what is refused declares nothing"


async def test_first_messages_are_held_by_a_pattern_s_limits(site: Site, sender: AsyncProducer, reading: Any) -> None:
    """Also where no manager runs, which would set them otherwise."""
    await site.admin.set_pattern_policy("tenant-*", {"max_messages": 1, "paused": True})
    await sender.send("tenant-7", "x")
    with pytest.raises(QueueFull):
        await sender.send("tenant-7", "y")
    assert site.client.zcard(ShardKeys(site.prefix, "tenant-7").of("waiting")) == 1, "nothing becomes ready"
    await site.admin.drop_pattern_policy("tenant-*")
    await sender.send("tenant-7", "z")
    async with site.managed():
        assert len(await take(reading("tenant-7"), 2)) == 2


async def test_a_topic_s_own_value_can_be_given_up(site: Site) -> None:
    """And then follows the pattern, and its changes."""
    admin = site.admin
    await admin.create_topic("orders", max_retries=7)
    await admin.set_pattern_policy("*", {"max_retries": 3})
    assert (await admin.policy("orders")).max_retries == 7
    assert (await admin.set_policy("orders", max_retries=DEFAULT)).max_retries == 3
    await admin.set_pattern_policy("*", {"max_retries": 4, "ttl_ms": 1_000})
    assert (await admin.policy("orders")).max_retries == 4
    await admin.set_pattern_policy("*", {"max_retries": DEFAULT})
    assert ((await admin.policy("orders")).max_retries, (await admin.policy("orders")).ttl_ms) == (10, 1_000)
    await admin.drop_pattern_policy("*")
    assert site.client.hgetall(topics_key(site.prefix)) == {b"orders": b"{}"}


async def test_nothing_exceeds_a_cap(site: Site, sender: AsyncProducer) -> None:
    """Not the topic's own value, not that of a pattern, not the default; own values come back when the cap goes."""
    admin = site.admin
    await admin.create_topic("orders", ttl_ms=3_600_000, max_retries=2)
    await admin.set_pattern_policy("orders", {"max_in_flight": 50}, priority=100)
    await admin.set_pattern_policy("*", {"ttl_ms": 60_000, "max_retries": 3, "max_in_flight": 9}, cap=True)
    await sender.send("mails", "x")
    policies = {name: await admin.policy(name) for name in ("orders", "mails")}
    assert [(p.ttl_ms, p.max_retries, p.max_in_flight) for p in policies.values()] == [(60_000, 2, 9), (60_000, 3, 9)]
    assert (await admin.set_policy("orders", ttl_ms=7_200_000)).ttl_ms == 60_000
    assert (await admin.set_policy("orders", ttl_ms=30_000)).ttl_ms == 30_000
    await admin.set_policy("orders", ttl_ms=7_200_000)
    await admin.drop_pattern_policy("*", cap=True)
    assert (await admin.policy("orders")).ttl_ms == 7_200_000
    assert (await admin.policy("mails")).model_dump(exclude={"limits_revision"}) == Policy().model_dump(
        exclude={"limits_revision"}
    )


async def test_what_a_topic_cannot_have_is_refused_before_anything_is_written(site: Site) -> None:
    """The error names the topic."""
    await site.admin.create_topic("orders.wide", shards=4)
    before = site.client.hgetall(topics_key(site.prefix))
    expected = r"^policy field max_messages must be at least 4, one for each shard, for topic orders\.wide; got 2$"
    with pytest.raises(InvalidInput, match=expected):
        await site.admin.set_pattern_policy("orders.*", {"max_messages": 2})
    assert site.client.hgetall(topics_key(site.prefix)) == before
    await site.admin.set_pattern_policy("mails.*", {"max_messages": 2})
    with pytest.raises(InvalidInput, match=r"max_messages must be at least 3"):
        await site.admin.create_topic("mails.wide", shards=3)


async def test_a_drop_that_leaves_a_topic_without_a_policy_is_refused(site: Site) -> None:
    """Once the topic has a value of its own, it goes on. The same holds for a field that the pattern gives up."""
    admin = site.admin
    await admin.create_topic("orders.wide", shards=4)
    await admin.set_pattern_policy("orders.*", {"max_in_flight": None, "ttl_ms": 1_000}, priority=10)
    await admin.set_pattern_policy("*", {"max_in_flight": 2})
    before = site.client.hgetall(topics_key(site.prefix))
    expected = r"^policy field max_in_flight must be at least 4, one for each shard, for topic orders\.wide; got 2$"
    with pytest.raises(InvalidInput, match=expected):
        await admin.drop_pattern_policy("orders.*")
    with pytest.raises(InvalidInput, match=expected):
        await admin.set_pattern_policy("orders.*", {"max_in_flight": DEFAULT})
    assert site.client.hgetall(topics_key(site.prefix)) == before
    await admin.set_policy("orders.wide", max_in_flight=8)
    dropped = await admin.drop_pattern_policy("orders.*")
    assert dropped is not None
    assert (dropped.topics, dropped.failed) == ({"orders.wide"}, {})
    policy = await admin.policy("orders.wide")
    assert (policy.max_in_flight, policy.ttl_ms, policy.own) == (8, None, None)


async def test_any_topic_can_be_paused(site: Site, sender: AsyncProducer) -> None:
    """Also one that cannot have what patterns give, because an earlier release declared it, and a damaged one."""
    admin, registry = site.admin, topics_key(site.prefix)
    await admin.set_pattern_policy("*", {"max_in_flight": 2})
    site.client.hset(registry, mapping={"wide": '{"shards":4}', "damaged": '{"shards":4,"own":{"ttl_ms":0}}'})
    for topic in ("wide", "damaged"):
        with pytest.raises(InvalidInput, match=r"^policy field max_in_flight must be at least 4, one for each shard"):
            await admin.set_policy(topic, ttl_ms=5_000)
        await admin.set_policy(topic, paused=True)
        await sender.send(topic, "x", id="a")
        [status] = await admin.status(topic)
        assert (status.ready, status.waiting) == (0, 1), topic
        await admin.set_policy(topic, paused=False, max_in_flight=4)
        policy = await admin.policy(topic)
        assert (policy.paused, policy.max_in_flight, policy.shards) == (False, 4, 4)
    site.client.hset(registry, "damaged", '{"priority":3,"own":{"ttl_ms":0}}')
    policy = await admin.set_policy("damaged", paused=True)
    assert (policy.paused, policy.priority, policy.max_in_flight) == (True, 3, 2), (
        "a topic that can have the pattern has it"
    )
    own = '{"dead_letter_topic":"damaged"}'
    site.client.hset(registry, "damaged", f'{{"dead_letter_topic":"damaged","own":{own}}}')
    policy = await admin.set_policy("damaged", paused=True)
    assert (policy.paused, policy.dead_letter_topic) == (True, None)
    with pytest.raises(InvalidInput, match=r"^policy field paused must be a valid boolean; got 'yes'$"):
        await admin.set_policy("wide", paused="yes")


async def test_a_topic_that_cannot_be_resolved_stops_no_other(site: Site) -> None:
    """Patterns that fit it can be set and dropped, and it is told with its reason."""
    admin, registry = site.admin, topics_key(site.prefix)
    await admin.set_pattern_policy("*", {"max_in_flight": 2})
    site.client.hset(registry, mapping={"orders.wide": '{"shards":4}', "orders.eu": "{}", "mails": "{"})
    changed = await admin.set_pattern_policy("orders.*", {"ttl_ms": 1_000})
    assert (changed.topics, changed.failed.keys()) == ({"orders.eu"}, {"orders.wide"})
    assert "at least 4, one for each shard" in str(changed.failed["orders.wide"])
    changed = await admin.set_pattern_policy("orders.*", {"max_in_flight": 4}, priority=1)
    assert (changed.topics, changed.failed) == ({"orders.eu", "orders.wide"}, {})


@pytest.mark.parametrize(
    "stored",
    [
        {"max_retries": 3, "shards": 4, "own": {"max_retries": "x", "shards": 7}},
        {"max_retries": 3, "shards": 4, "own": {"ttl_ms": 0}},
        {"max_retries": 3, "shards": 4, "own": {"own": {}}},
        {"max_retries": 3, "shards": 4, "own": "x"},
        {"max_retries": 3, "shards": 4, "ttl_ms": "x", "own": {"max_retries": 3}},
        {"max_retries": 3, "shards": 4, "of a later release": 1},
    ],
)
async def test_a_damaged_topic_hurts_no_other(site: Site, sender: AsyncProducer, stored: dict[str, Any]) -> None:
    """It is told with its reason, and keeps its valid fields, its shards above all, until somebody sets its policy."""
    admin, registry = site.admin, topics_key(site.prefix)
    await admin.create_topic("orders.wide", shards=4, max_retries=3)
    await sender.send("orders.wide", "x", id="a", delay=60)
    await admin.create_topic("orders.eu")
    await admin.create_topic("mails")
    site.client.hset(registry, "orders.wide", json.dumps(stored))
    async with AsyncProducer(settings=ProducerSettings(redis_url=site.url, prefix=site.prefix)) as other:
        again = await other.send("orders.wide", "x", id="a", delay=60)
    assert again.outcome is SendOutcome.DUPLICATE, "it goes to the same shard"
    changed = await admin.set_pattern_policy("orders.*", {"ttl_ms": 1_000, "max_retries": 5})
    assert (changed.topics, changed.failed.keys()) == ({"orders.eu"}, {"orders.wide"})
    assert str(changed.failed["orders.wide"]).startswith("policy field")
    assert (await admin.set_pattern_policy("mails", {"ttl_ms": 1_000})).failed == {}, "no concern of it"
    dropped = await admin.drop_pattern_policy("orders.*")
    assert dropped is not None
    assert (dropped.topics, dropped.failed.keys()) == ({"orders.eu"}, {"orders.wide"})
    assert json.loads(site.client.hget(registry, "orders.wide") or b"") == stored
    set_ = await admin.set_policy("orders.wide", priority=7)
    assert (set_.max_retries, set_.shards, set_.priority) == (3, 4, 7)
    assert (await admin.set_pattern_policy("orders.*", {"ttl_ms": 1_000})).failed == {}


async def test_a_reshard_keeps_what_patterns_gave(site: Site) -> None:
    """And what is the topic's own."""
    admin = site.admin
    await admin.create_topic("orders", max_retries=7)
    await admin.set_pattern_policy("*", {"ttl_ms": 1_000})
    await admin.set_pattern_policy("*", {"max_retries": 5}, cap=True)
    await admin.reshard("orders", 2)
    policy = await admin.policy("orders")
    assert (policy.shards, policy.ttl_ms, policy.max_retries) == (2, 1_000, 5)
    await admin.drop_pattern_policy("*")
    await admin.drop_pattern_policy("*", cap=True)
    policy = await admin.policy("orders")
    assert (policy.shards, policy.former, policy.ttl_ms, policy.max_retries) == (2, (1,), None, 7)


async def test_a_reshard_does_not_rely_on_a_cap(site: Site) -> None:
    """What the cap hides would not be possible once it is dropped."""
    admin = site.admin
    await admin.create_topic("orders", rate="3/100ms")
    await admin.set_pattern_policy("*", {"rate": "9/s"}, cap=True)
    with pytest.raises(InvalidInput, match=r"rate must be at least 5 messages in a period, .*; got '3/100ms'$"):
        await admin.reshard("orders", 4)
    await admin.set_policy("orders", rate="30/s")
    await admin.reshard("orders", 4)
    await admin.drop_pattern_policy("*", cap=True)
    assert (await admin.policy("orders")).rate == "30/s"


@pytest.mark.parametrize("completes", ["manager", "repetition"])
async def test_an_interrupted_change_is_completed(site: Site, completes: str) -> None:
    """As if the caller had died between the patterns and the topics, of which it had written some."""
    admin = site.admin
    for number in range(50):
        await admin.create_topic(f"orders-{number}")
    policy = PatternPolicy("orders-*", {"ttl_ms": 1_000, "max_messages": 3})
    stored = parse_patterns(None).replaced(None, policy).dump()
    site.client.hset(topics_key(site.prefix), PATTERNS, stored)
    doors = [ShardKeys(site.prefix, f"orders-{number}").of("door") for number in range(50)]

    def is_complete() -> bool:
        topics = {name: Policy.load(value) for name, value in site.client.hgetall(topics_key(site.prefix)).items()
                  if name != b"*"}  # fmt: skip
        return all(p.ttl_ms == 1_000 for p in topics.values()) and all(map(site.client.exists, doors))

    if completes == "manager":
        async with site.managed(discover_s=0.1):
            await wait_until_async(is_complete)
    else:
        changed = await admin.set_pattern_policy("orders-*", {"ttl_ms": 1_000})
        assert len(changed.topics) == 50
        assert is_complete()


async def test_topics_of_an_earlier_release_get_the_values_of_a_manager(site: Site) -> None:
    """Its producers declare topics with a plain command, and know of no patterns."""
    await site.admin.set_pattern_policy("*", {"ttl_ms": 1_000})
    async with site.managed(discover_s=0.1):
        site.client.hsetnx(topics_key(site.prefix), "orders", "{}")
        await wait_until_async(lambda: b"ttl_ms" in (site.client.hget(topics_key(site.prefix), "orders") or b""))
    assert (await site.admin.policy("orders")).ttl_ms == 1_000


async def test_changes_at_the_same_time_leave_no_stale_topic(
    site: Site, redis_url: str, prefix: str, client: redis.Redis
) -> None:
    """Two operators change patterns, two change topics, and producers declare new ones."""
    admin = site.admin

    async def patterns(own: str) -> None:
        for number in range(1, 25):
            await admin.set_pattern_policy(own, {"ttl_ms": 1_000 * number, "max_in_flight": number}, priority=number)
            await admin.set_pattern_policy("*", {"max_retries": number % 7, "max_in_flight": 9 + number % 3}, cap=True)

    async def topics() -> None:
        for number in range(60):
            await admin.set_policy(
                f"orders-{number % 10}", max_retries=number, ttl_ms=DEFAULT if number % 2 else number + 1
            )

    async def sends(which: int) -> None:
        async with AsyncProducer(settings=ProducerSettings(redis_url=redis_url, prefix=prefix)) as producer:
            for number in range(40):
                with contextlib.suppress(QueueFull):
                    await producer.send(f"orders-{which}-{number}", "x")

    await asyncio.gather(patterns("orders-*"), patterns("*"), topics(), topics(), sends(1), sends(2))
    policies = parse_patterns(client.hget(topics_key(prefix), PATTERNS))
    registry = {topic.name: topic.policy for topic in await admin.topics()}
    assert len(registry) >= 80
    for name, policy in registry.items():
        assert policies.resolve(name, policy.own_fields).model_dump() == policy.model_dump(), name


async def test_damaged_policies_stop_nobody(site: Site, sender: AsyncProducer) -> None:
    """Topics keep what they have, new ones begin with the defaults, and the next change replaces the damage."""
    await site.admin.set_pattern_policy("*", {"ttl_ms": 1_000})
    await site.admin.create_topic("orders")
    site.client.hset(topics_key(site.prefix), PATTERNS, b"{")
    async with site.managed(discover_s=0.1) as manager:
        await sender.send("mails", "x")
        await wait_until_async(lambda: "mails" in manager._discoverer.layouts)
    assert [topic.policy.ttl_ms for topic in await site.admin.topics()] == [None, 1_000]
    with pytest.raises(InvalidInput, match=r"^policies must be a JSON array of policies"):
        await site.admin.pattern_policies()
    await site.admin.set_pattern_policy("*", {"ttl_ms": 2_000})
    assert [topic.policy.ttl_ms for topic in await site.admin.topics()] == [2_000, 2_000]


def test_commands(commands: Commands) -> None:
    """`policy set`, `list`, `explain` and `drop`, as an operator uses them."""
    commands.manager("topic", "create", "orders.eu", "--max-retries", "9")
    ran = commands.manager("policy", "set", "orders.*", "--ttl", "60s", "--max-retries", "3", "--priority", "10")
    assert ran.out == "orders.*: max_retries 3, ttl 1m; 1 topics changed, in force everywhere within 10 s\n"
    ran = commands.manager("policy", "set", "*", "--cap", "--max-retries", "5", "--message-priority", "7")
    assert ran.out == "*: max_retries 5, priority 7 at most; 1 topics changed, in force everywhere within 10 s\n"
    assert commands.manager("policy", "list").rows == [
        ["pattern", "priority", "policy"],
        ["orders.*", "10", "max_retries", "3,", "ttl", "1m"],
        ["*", "cap", "max_retries", "5,", "priority", "7"],
    ]
    rows = {row[0]: " ".join(row[1:]) for row in commands.manager("policy", "explain", "orders.eu").rows}
    assert rows["ttl"] == "1m pattern orders.*, priority 10"
    assert rows["max_retries"] == "5 cap *, in place of 9 from the topic"
    assert rows["visibility"] == "30s default"
    new = commands.manager("policy", "explain", "orders.us", "--json").document
    assert (new["declared"], new["fields"]["max_retries"]["value"]) == (False, 3)
    told = commands.manager("topic", "set", "orders.eu", "--max-retries", "8").err
    assert told == "max_retries is 5, not 8: a cap holds, see `policy explain orders.eu`\n"
    assert commands.manager("policy", "drop", "orders.*").out.startswith("orders.*: dropped; 1 topics changed")
    gone = commands.manager("policy", "drop", "orders.*")
    assert (gone.code, gone.err) == (2, "lisa-manager: there is no policy of 'orders.*'; `policy list` lists them\n")
    nothing = commands.manager("policy", "set", "orders.*")
    assert nothing.err == "lisa-manager: policy must be at least one field to set, as in --ttl 60s; got nothing\n"
    both = commands.manager("policy", "set", "orders.*", "--ttl", "1s", "--cap", "--priority", "3")
    assert both.err == "lisa-manager: priority cannot be combined with cap\n"
