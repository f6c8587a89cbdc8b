"""`Admin` and `AsyncAdmin`: everything that operators do, from Python, against a real server."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest
import redis

from lisa_common import InvalidInput, UnknownGroup, UnknownTopic, Unreachable
from lisa_manager import (
    DEFAULT,
    Admin,
    AsyncAdmin,
    BulkResult,
    CancelOutcome,
    DroppedGroup,
    GarbageFilter,
    GroupStatus,
    ManagerSettings,
    RescheduleOutcome,
    State,
    TopicSizes,
)
from support.queue import Queue, outgoing
from support.twins import InThread

STATES = (State.WAITING, State.READY, State.DELIVERED, State.RETRY, State.GARBAGE)


@pytest.fixture(params=["blocking", "asyncio"])
async def admin(request: pytest.FixtureRequest, redis_url: str, prefix: str) -> AsyncIterator[Any]:
    """A client of either kind, all awaitable."""
    settings = ManagerSettings(redis_url=redis_url, prefix=prefix)
    async with AsyncExitStack() as stack:
        opened: Any = (
            AsyncAdmin(settings=settings) if request.param == "asyncio" else InThread(Admin(settings=settings))
        )
        stack.push_async_callback(opened.close)
        yield opened


@pytest.fixture
def busy(orders: Queue) -> Queue:
    """One message in each state, each with its state as id and body."""
    orders.join("billing")
    for id in ("retry", "garbage", "delivered"):
        orders.send(id, body=id.encode())
    deliveries = {delivery.id: delivery for delivery in orders.read("billing")}
    orders.nack(deliveries["retry"], delay_ms=60_000, error="busy")
    orders.nack(deliveries["garbage"], rejected=True, error="no money")
    orders.send("ready", body=b"ready")
    orders.send("waiting", due="+60000", body=b"waiting")
    return orders


async def _ids(admin: Any, state: State, **options: Any) -> list[str]:
    """The ids of a state, read in pages."""
    page = await admin.messages("orders", state, **options)
    ids = [message.id for message in page.messages]
    while page.cursor:
        page = await admin.messages("orders", state, cursor=page.cursor, **options)
        ids += [message.id for message in page.messages]
    return ids


async def test_sizes_count_every_state(admin: Any, busy: Queue) -> None:
    """By topic, state and group; `status` adds when messages are due."""
    billing = GroupStatus("billing", ready=1, delivered=1, consumers=1)
    sizes = TopicSizes(topic="orders", stored=5, waiting=1, ready=1, delivered=1, retry=1, garbage=1, groups=(billing,))
    assert await admin.sizes() == await admin.sizes("orders") == [sizes]
    [status] = await admin.status("orders")
    assert (status.stored, status.messages, sum(status.due_in), status.groups) == (5, 5, 1, (billing,))
    assert busy.keys.topic == status.topic


async def test_sizes_of_many_topics_take_two_round_trips(
    admin: Any, busy: Queue, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry, then all topics together. A damaged topic is named, and the others are counted."""
    for number in range(100):
        await admin.create_topic(f"t{number:02}")
    client.set(f"{busy.keys.prefix}:{{t50}}:waiting", "no set")
    asked: list[int] = []
    connection = getattr(admin, "_blocking", admin)._connection
    execute = connection.execute_each
    monkeypatch.setattr(
        connection, "execute_each", lambda calls, *more: (asked.append(len(calls)), execute(calls, *more))[1]
    )
    sizes = {each.topic: each for each in await admin.sizes()}
    assert len(asked) == 2
    assert len(sizes) == 101
    assert sizes["orders"].stored == 5
    assert "t50" in sizes["t50"].damage
    assert sizes["t50"].stored == 0
    assert [name for name, each in sizes.items() if each.damage] == ["t50"]
    assert [each.topic for each in await admin.status() if each.damage] == ["t50"]


async def test_other_groups_cost_a_page_nothing(admin: Any, orders: Queue) -> None:
    """The server selects the copies of a group: large bodies of other groups neither travel nor end its page."""
    for group in ("billing", "mails"):
        orders.join(group)
    large = [f"large-{number}" for number in range(4)]
    for id in (*large, "small"):
        orders.send(id, body=b"x" * (1_000_000 if id in large else 1))
    for delivery in orders.read("billing"):
        if delivery.id in large:
            orders.nack(delivery, rejected=True)
    for delivery in orders.read("mails"):
        if delivery.id == "small":
            orders.nack(delivery, rejected=True)
    page = await admin.messages("orders", State.GARBAGE, group="mails")
    assert ([message.id for message in page.messages], page.cursor) == (["small"], None)
    assert await _ids(admin, State.GARBAGE, group="billing") == large
    assert await _ids(admin, State.GARBAGE, group="") == []


@pytest.mark.parametrize("state", STATES)
async def test_messages_of_each_state_are_listed(admin: Any, busy: Queue, state: State) -> None:
    """With body, group, failure and, where a consumer has it, who."""
    page = await admin.messages("orders", state)
    [message] = page.messages
    assert page.cursor is None
    assert await admin.messages("orders", state.value) == page or state is State.DELIVERED, "its name is as good"
    assert (message.id, message.state, message.record.body) == (state.value, state, state.value.encode())
    assert message.group == (None if state is State.WAITING else "billing")
    errors = {State.RETRY: "busy", State.GARBAGE: "no money"}
    assert (message.failure.error if message.failure else None) == errors.get(state)
    assert (message.consumer is not None, message.idle_ms is not None) == (state is State.DELIVERED,) * 2
    due_ms = busy.now_ms + (60_000 if state in {State.WAITING, State.RETRY} else 0)
    assert message.at_ms == due_ms


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("limit", [1, 3, 1_000])
async def test_pages_hold_each_message_once(admin: Any, orders: Queue, state: State, limit: int) -> None:
    """In order, by groups and within a limit."""
    orders.join("billing", "mail")
    ids = [f"m{number}" for number in range(8)]
    due = "+60000" if state is State.WAITING else "+0"
    orders.send_all([outgoing(id, due=due) for id in ids])
    if state not in {State.WAITING, State.READY}:
        deliveries = [delivery for group in ("billing", "mail") for delivery in orders.read(group)]
        for delivery in deliveries:
            if state is not State.DELIVERED:
                orders.nack(delivery, delay_ms=60_000, rejected=state is State.GARBAGE)
    copies = ids if state is State.WAITING else ids * 2
    assert sorted(await _ids(admin, state, limit=limit)) == sorted(copies)
    if state is not State.WAITING:
        assert sorted(await _ids(admin, state, group="mail", limit=limit)) == ids


async def test_pages_cross_shards(admin: Any, orders: Queue) -> None:
    """Those of today and the former ones."""
    orders.send_all([outgoing(f"old{number}", due="+60000") for number in range(3)])
    result = await admin.reshard("orders", 3)
    assert (result.before, result.shards, result.draining, result.changed) == (1, 3, 1, True)
    assert (await admin.reshard("orders", 3)).changed is False
    assert sorted(await _ids(admin, State.WAITING, limit=2)) == ["old0", "old1", "old2"]
    assert await admin.cancel("orders", ["old0"]) == {"old0": CancelOutcome.CANCELLED}


async def test_a_page_is_bounded_by_bytes(admin: Any, orders: Queue) -> None:
    """Large bodies end a page early; the cursor goes on."""
    orders.join("billing")
    for id in ("a", "b", "c", "d"):
        orders.send(id, body=b"x" * 900_000)
    page = await admin.messages("orders", State.READY)
    assert len(page.messages) < 4
    assert await _ids(admin, State.READY) == ["a", "b", "c", "d"]
    assert len(orders.read("billing")) == 4
    assert await _ids(admin, State.DELIVERED) == ["a", "b", "c", "d"]


async def test_ready_messages_without_groups_are_listed(admin: Any, orders: Queue) -> None:
    """A group to come gets them; a cancelled one is not among them."""
    orders.send("a")
    orders.send("b")
    orders.cancel("a")
    [message] = (await admin.messages("orders", State.READY)).messages
    assert (message.id, message.group) == ("b", None)


async def test_damaged_records_are_listed_as_unreadable(admin: Any, busy: Queue, client: redis.Redis) -> None:
    """They name what is wrong, and hide nothing else."""
    for id in ("ready", "delivered", "waiting"):
        client.hset(busy.keys.of("messages"), id, b"\x01")
    for state in (State.READY, State.DELIVERED, State.WAITING):
        [message] = (await admin.messages("orders", state)).messages
        assert (message.id, message.record) == (state.value, None)
        assert "unreadable record" in message.unreadable


@pytest.mark.parametrize("cursor", ["", "x", "é", "bnVsbA", "WyJ3YWl0aW5nIiwwLDAsIiIsIm5hbiIsIiJd", "WzFd"])
async def test_foreign_cursors_are_refused(admin: Any, orders: Queue, cursor: str) -> None:
    """As they come from the users of a gateway."""
    for state in (State.WAITING, State.READY):
        with pytest.raises(InvalidInput, match=f"cursor must be the cursor of a page of {state} messages; got"):
            await admin.messages(orders.keys.topic, state, cursor=cursor)


async def test_what_cannot_be_listed_is_refused(admin: Any, busy: Queue) -> None:
    """Names the field."""
    with pytest.raises(InvalidInput, match="state must be one of waiting, ready, delivered, retry, garbage; got"):
        await admin.messages("orders", State.FINISHED)
    with pytest.raises(InvalidInput, match="limit must be"):
        await admin.messages("orders", State.READY, limit=1_001)
    with pytest.raises(InvalidInput, match="group must be None for waiting messages"):
        await admin.messages("orders", State.WAITING, group="billing")
    for state in (State.READY, State.DELIVERED, State.RETRY, State.GARBAGE):
        with pytest.raises(UnknownGroup):
            await admin.messages("orders", state, group="nope")
    for call in (admin.garbage, admin.count_garbage, admin.summarize_garbage):
        with pytest.raises(UnknownGroup):
            await call("orders", GarbageFilter(group="nope"))
    with pytest.raises(UnknownTopic):
        await admin.messages("nope", State.READY)
    assert busy.keys.topic == "orders"


async def test_a_message_is_found_rescheduled_and_cancelled(admin: Any, busy: Queue) -> None:
    """One by one or together; each id has its outcome."""
    found = await admin.find("orders", "retry")
    assert (found.state, found.copies[0].failure.error) == (State.RETRY, "busy")
    assert await admin.find("orders", "nope") is None
    assert await admin.reschedule("orders", ["waiting", "ready", "nope"], delay=3600) == {
        "waiting": RescheduleOutcome.RESCHEDULED,
        "ready": RescheduleOutcome.READY,
        "nope": RescheduleOutcome.UNKNOWN,
    }
    assert (await admin.find("orders", "waiting")).due_ms > busy.now_ms + 3_500_000
    outcomes = await admin.cancel("orders", ["waiting", "garbage", "nope", "nope"])
    assert outcomes == {
        "waiting": CancelOutcome.CANCELLED,
        "garbage": CancelOutcome.GARBAGE,
        "nope": CancelOutcome.UNKNOWN,
    }
    with pytest.raises(InvalidInput, match="ids must be a list of message ids; got 'waiting'"):
        await admin.cancel("orders", "waiting")


@pytest.mark.parametrize("method", ["cancel", "reschedule", "records", "replay", "purge"])
async def test_ids_that_are_missing_do_not_stand_for_all(admin: Any, busy: Queue, method: str) -> None:
    """None is no list of ids: a caller who had none would purge everything."""
    with pytest.raises(InvalidInput, match="ids must be a list of message ids; got None"):
        await getattr(admin, method)("orders", None)
    assert await admin.count_garbage(busy.keys.topic) == 1


async def test_arguments_of_the_wrong_type_are_refused_before_anything_is_done(admin: Any, busy: Queue) -> None:
    """Filters, functions, topics, and delays that look like none."""
    for method in (admin.garbage, admin.count_garbage, admin.replay_all, admin.purge_all):
        with pytest.raises(InvalidInput, match="where must be a GarbageFilter; got "):
            await method("orders", {"group": "billing"})
    with pytest.raises(InvalidInput, match="where must be a WaitingFilter; got None"):
        await admin.cancel_many("orders", None)
    for method in (admin.replay_all, admin.purge_all, admin.cancel_many):
        with pytest.raises(InvalidInput, match="on_progress must be a plain function; got True"):
            await method("orders", on_progress=True)
    for method in (admin.sizes, admin.status, admin.traffic):
        with pytest.raises(InvalidInput, match=r"topic must be .* got 1"):
            await method(1)
    for schedules in ("x", {"orders": []}, {"orders": {"a": 5}}):
        with pytest.raises(InvalidInput, match=r"schedules?( of topic orders| orders/a)? must be a mapping; got"):
            await admin.import_schedules(schedules)
    with pytest.raises(InvalidInput, match="prune must be a list of topics; got None"):
        await admin.import_schedules({}, prune=None)
    for pattern, fields, field in ((b"x", {"priority": 1}, "pattern"), ("x*", "y", "policy")):
        with pytest.raises(InvalidInput, match=f"^{field} must be"):
            await admin.set_pattern_policy(pattern, fields)
    with pytest.raises(InvalidInput, match="cap must be True or False; got 1"):
        await admin.set_pattern_policy("x*", {"priority": 1}, cap=1)
    with pytest.raises(InvalidInput, match="newest_first must be True or False; got 'x'"):
        await admin.messages("orders", "garbage", newest_first="x")
    for hours in (timedelta(hours=1), "1", float("nan"), 0, 1e9):
        with pytest.raises(InvalidInput, match="hours must be a number above 0"):
            await admin.history(["orders"], hours=hours)
    with pytest.raises(InvalidInput, match="topics must be a list of topics; got 1"):
        await admin.history(1, hours=1)
    assert await admin.records("orders", [[]]) == {}
    with pytest.raises(InvalidInput, match="delay must be seconds"):
        await admin.reschedule("orders", ["waiting"], delay=False)
    assert (await admin.find("orders", "waiting")).state is State.WAITING
    assert await admin.count_garbage(busy.keys.topic) == 1


async def test_garbage_is_listed_replayed_and_purged(admin: Any, busy: Queue) -> None:
    """In batches, with progress; filters select."""
    garbage = await admin.garbage("orders")
    assert [(letter.id, letter.group, letter.reason) for letter in garbage.letters] == [
        ("garbage", "billing", "rejected")
    ]
    assert (garbage.more, await admin.count_garbage("orders")) == (False, 1)
    assert (await admin.garbage("orders", GarbageFilter(older_than=3600))).letters == ()
    assert await admin.replay("orders", ["garbage", "nope"], GarbageFilter(group="mail")) == BulkResult(
        0, {"passed over": 1, "unknown": 1}
    )
    steps: list[tuple[int, int]] = []
    result = await admin.replay_all(
        "orders", GarbageFilter(reason="rejected"), on_progress=lambda done, total: steps.append((done, total))
    )
    assert (result, steps) == (BulkResult(1, {}), [(1, 1)])
    for delivery in busy.read("billing"):
        busy.nack(delivery, rejected=True)
    assert await admin.purge("orders", ["garbage"]) == BulkResult(1, {})
    assert (await admin.purge_all("orders")).done == 1
    assert await admin.count_garbage("orders") == 0


@pytest.mark.parametrize(
    "fields",
    [{"group": "a b"}, {"reason": "nak"}, {"older_than": -1}, {"since": -1}, {"error": 1}, {"release": 1}],
)
def test_filters_refuse_what_selects_nothing(fields: dict[str, Any]) -> None:
    """Before anything is asked or changed."""
    [name] = fields
    with pytest.raises(InvalidInput, match=f"{name} must be"):
        GarbageFilter(**fields)


def test_a_filter_of_no_time_is_refused() -> None:
    """What died within an hour cannot have died longer ago."""
    with pytest.raises(InvalidInput, match="since must be longer than older_than, 3600; got 60"):
        GarbageFilter(since=60, older_than=3600)
    with pytest.raises(InvalidInput, match="since must be longer than 0 s; got 0"):
        GarbageFilter(since=0)


async def test_topics_and_policies(admin: Any) -> None:
    """Created, changed, listed and dropped."""
    assert await admin.create_topic("mails", max_retries=3) is True
    assert await admin.create_topic("mails", max_retries=4) is False
    assert (await admin.policy("mails")).max_retries == 3
    policy = await admin.set_policy("mails", max_retries=DEFAULT, ttl_ms=60_000)
    assert (policy.max_retries, policy.ttl_ms, policy.model_fields_set) == (10, 60_000, {"ttl_ms"})
    assert [(topic.name, topic.policy) for topic in await admin.topics()] == [("mails", policy)]
    with pytest.raises(InvalidInput, match="policy field max_retries"):
        await admin.set_policy("mails", max_retries=-1)
    assert (await admin.drop_topic("mails")).done is True
    with pytest.raises(UnknownTopic):
        await admin.policy("mails")


async def test_a_topic_with_messages_is_dropped_only_by_force(admin: Any, busy: Queue) -> None:
    """So that nothing is lost by mistake."""
    dropped = await admin.drop_topic(busy.keys.topic)
    assert (dropped.done, dropped.messages) == (False, 5)
    assert (await admin.drop_topic("orders", force=True)).done is True
    assert await admin.topics() == []


async def test_groups_are_made_and_dropped(admin: Any, busy: Queue) -> None:
    """A group that owes is dropped only by force."""
    await admin.create_group("orders", "mail")
    debts = {debt.group: debt for debt in await admin.groups("orders")}
    assert debts.keys() == {"billing", "mail"}
    assert (debts["billing"].owes, debts["mail"].owes) == (True, False)
    assert await admin.drop_group("orders", "mail") == DroppedGroup(done=True, ended=0)
    for force in (False, True):
        with pytest.raises(UnknownGroup):
            await admin.drop_group("orders", "mail", force=force)
    assert await admin.drop_group("orders", "billing") == DroppedGroup(done=False, ended=0)
    assert (await admin.drop_group("orders", "billing", force=True)).ended == 4
    assert busy.contents().records.keys() == {"waiting"}


@pytest.mark.parametrize("rejected", [False, True], ids=["retry", "garbage"])
async def test_a_group_that_owes_only_what_has_failed_stays(admin: Any, orders: Queue, *, rejected: bool) -> None:
    """No entry of the stream is left of it then."""
    orders.join("billing")
    orders.send("precious")
    orders.nack(*orders.read("billing"), rejected=rejected, delay_ms=60_000)
    before = orders.contents()
    assert await admin.drop_group("orders", "billing") == DroppedGroup(done=False, ended=0)
    assert orders.contents() == before
    assert await admin.drop_group("orders", "billing", force=True) == DroppedGroup(done=True, ended=1)


async def test_check_finds_and_repairs(admin: Any, busy: Queue, client: redis.Redis) -> None:
    """A topic that cannot be read is a finding among the others."""
    client.zrem(busy.keys.of("waiting"), "waiting")
    await admin.create_topic("mails")
    client.set(f"{busy.keys.prefix}:{{mails}}:waiting", "no set")
    report = await admin.check()
    assert (report.topics, report.messages, report.is_clean) == (2, 5, False)
    assert [(f.topic, f.problem.kind, f.problem.id) for f in report.findings] == [
        ("mails", "damaged", ""),
        ("orders", "lost", "waiting"),
    ]
    steps: list[tuple[int, int]] = []
    repaired = await admin.check(repair=True, on_progress=lambda done, total: steps.append((done, total)))
    assert (repaired.is_clean, steps) == (True, [(1, 2), (2, 2)])
    assert (await admin.check("orders")).findings == ()


async def test_the_server_is_examined(admin: Any) -> None:
    """What `lisa-manager doctor` says; and scripts are loaded."""
    health = await admin.doctor()
    assert all(isinstance(line, str) for line in health.findings)
    assert await admin.load_scripts() >= 1


async def test_a_blocking_client_works_beside_a_running_loop(redis_url: str, prefix: str) -> None:
    """As a notebook uses it."""
    with Admin(redis_url, settings=ManagerSettings(redis_url=redis_url, prefix=prefix)) as admin:
        assert admin.sizes() == []
        assert admin.load_scripts() >= 1


async def test_an_absent_server_is_named_at_once(prefix: str) -> None:
    """Without patience, as for the commands."""
    settings = ManagerSettings(redis_url="redis://localhost:1", prefix=prefix)
    with Admin(settings=settings) as admin, pytest.raises(Unreachable):
        admin.sizes()
    async with AsyncAdmin(settings=settings) as asyncio_admin:
        with pytest.raises(Unreachable):
            await asyncio_admin.sizes()
