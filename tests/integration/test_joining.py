"""Groups that are made while others are, and while a topic is resharded: each gets all that becomes ready since."""

from collections.abc import Callable, Iterator
from itertools import count, product
from typing import Any

import pytest
import redis

from lisa_common.client.connection import Connection
from lisa_common.model.keys import ShardKeys, topics_key
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_common.protocol import consuming, groups, producing
from lisa_common.protocol.call import Flow
from lisa_common.protocol.registry import Topics
from lisa_manager import Admin, ManagerSettings, resharding
from lisa_manager.queries import groups as groups_of
from support.commands import Commands
from support.queue import outgoing
from support.stepping import Stepped, interleavings

IDS = [f"m{number}" for number in range(12)]


@pytest.fixture
def connection(redis_url: str) -> Iterator[Connection]:
    """A blocking one."""
    with Connection(redis_url, name="test") as opened:
        yield opened


@pytest.fixture
def layout_of(client: redis.Redis, prefix: str) -> Callable[[str], Layout]:
    """The layout of a topic, as the registry has it."""

    def read(topic: str) -> Layout:
        stored: Any = client.hget(topics_key(prefix), topic)
        return Layout(prefix, topic, Policy.load(stored))

    return read


def _join(prefix: str, topic: str, group: str) -> Flow[None]:
    """What a consumer does that comes up."""
    layout = yield from Topics(prefix).resolve(topic)
    yield from groups.join([layout], group)


def _groups_in(connection: Connection, layout: Layout) -> list[set[str]]:
    return [{group.name for group in connection.call(groups_of(keys))} for keys in layout.served]


def _send(connection: Connection, layout: Layout) -> None:
    for id in IDS:
        connection.call(producing.send(layout.home(id), [outgoing(id)], repeatable=False))


def _read(connection: Connection, layout: Layout, group: str) -> list[str]:
    batches = connection.call(consuming.read(layout.served, group, "c", limit=100, block_ms=None))
    return sorted(entry.id or "" for _, entries in batches for entry in entries)


def _steps(connection: Connection, flow: Flow[Any]) -> int:
    stepped = Stepped(connection, flow)
    return next(number for number in count(1) if not stepped.step())


def test_a_group_made_while_its_topic_is_resharded_is_in_all_shards(
    connection: Connection, declare: Callable[..., Policy], prefix: str, layout_of: Callable[[str], Layout]
) -> None:
    """However the round trips of both fall: as soon as its join has returned, in all shards that there are then."""
    declare("sample")
    connection.run(_join(prefix, "sample", "old"))
    reshards = _steps(connection, resharding.reshard(prefix, "sample", 3))
    joins = _steps(connection, _join(prefix, "sample", "new")) + 3
    for number, order in enumerate(interleavings(reshards, joins)):
        topic = f"t{number}"
        declare(topic)
        connection.run(_join(prefix, topic, "old"))
        reshard = Stepped(connection, resharding.reshard(prefix, topic, 3))
        join = Stepped(connection, _join(prefix, topic, "new"))
        for is_reshard in (*order, True, True, True):
            (reshard if is_reshard else join).step()
            if join.done:
                found = _groups_in(connection, layout_of(topic))
                assert [names for names in found if "new" not in names] == [], order
        reshard.finish()
        join.finish()
        assert _groups_in(connection, layout_of(topic)) == [{"old", "new"}] * 4, order


@pytest.mark.parametrize("then", [2, 3, 5])
def test_a_reshard_that_was_killed_neither_blocks_nor_loses_groups(
    connection: Connection, declare: Callable[..., Policy], prefix: str, layout_of: Callable[[str], Layout], then: int
) -> None:
    """Killed between any two of its round trips: groups are made, messages sent, and another reshard knows them."""
    declare("sample")
    steps = _steps(connection, resharding.reshard(prefix, "sample", 3))
    for survived, begun in product(range(steps + 1), range(1, 6)):
        topic = f"t{survived}-{begun}"
        declare(topic)
        connection.run(_join(prefix, topic, "old"))
        killed = Stepped(connection, resharding.reshard(prefix, topic, 3))
        for _ in range(survived):
            killed.step()
        before = layout_of(topic)
        connection.run(_join(prefix, topic, "new"))
        second = Stepped(connection, resharding.reshard(prefix, topic, then))
        for _ in range(begun):
            second.step()
        connection.run(groups.join([before], "newer"))
        second.finish()
        layout = layout_of(topic)
        assert _groups_in(connection, layout) == [{"old", "new", "newer"}] * len(layout.served), (survived, begun)
    _send(connection, layout)
    for group in ("old", "new", "newer"):
        assert _read(connection, layout, group) == sorted(IDS)


def test_two_reshards_at_once_know_a_group_that_is_made(
    connection: Connection, declare: Callable[..., Policy], prefix: str, layout_of: Callable[[str], Layout]
) -> None:
    """To different numbers of shards, either of which may be the first to change the registry."""
    steps = 6
    for number, order in enumerate(interleavings(steps, steps)):
        topic = f"t{number}"
        declare(topic)
        first = Stepped(connection, resharding.reshard(prefix, topic, 2))
        second = Stepped(connection, resharding.reshard(prefix, topic, 5))
        join = Stepped(connection, _join(prefix, topic, "new"))
        for position, is_first in enumerate(order):
            (first if is_first else second).step()
            if position % 3 == number % 3:
                join.step()
        for stepped in (join, first, second):
            stepped.finish()
        layout = layout_of(topic)
        assert _groups_in(connection, layout) == [{"new"}] * len(layout.served), order


def test_the_first_group_is_first_in_every_shard(
    connection: Connection, declare: Callable[..., Policy], prefix: str
) -> None:
    """Of two that join a backlog at once, one gets all of it and the other nothing, whoever is quicker where."""
    policy = declare("sample", shards=3)
    steps = _steps(connection, _join(prefix, "sample", "a")) + 2
    for number, order in enumerate(interleavings(steps, steps)):
        layout = Layout(prefix, f"t{number}", policy)
        declare(layout.topic, shards=3)
        _send(connection, layout)
        a, b = (Stepped(connection, _join(prefix, layout.topic, name)) for name in ("a", "b"))
        for is_a in order:
            (a if is_a else b).step()
        a.finish()
        b.finish()
        taken = [_read(connection, layout, name) for name in ("a", "b")]
        assert sorted(map(len, taken)) == [0, len(IDS)], order


def test_a_first_group_whose_maker_died_half_way_is_first_all_the_same(
    connection: Connection, declare: Callable[..., Policy], prefix: str
) -> None:
    """Who comes next makes it where it is missing; and it finds all when it is back."""
    policy = declare("sample", shards=3)
    steps = _steps(connection, _join(prefix, "sample", "a"))
    for survived in range(2, steps):
        layout = Layout(prefix, f"t{survived}", policy)
        declare(layout.topic, shards=3)
        _send(connection, layout)
        dying = Stepped(connection, _join(prefix, layout.topic, "a"))
        for _ in range(survived):
            dying.step()
        for name in ("b", "c", "a"):
            connection.run(_join(prefix, layout.topic, name))
        taken = {name: _read(connection, layout, name) for name in ("a", "b", "c")}
        assert taken == {"a": sorted(IDS), "b": [], "c": []}, survived


def test_a_check_sees_groups_that_shards_lack(
    connection: Connection, declare: Callable[..., Policy], prefix: str, commands: Commands, client: redis.Redis
) -> None:
    """And makes them: they get what becomes ready from then on, and nothing that is owed by other groups alone."""
    layout = Layout(prefix, "orders", declare(shards=2))
    connection.run(_join(prefix, "orders", "a"))
    connection.run(_join(prefix, "orders", "b"))
    client.xgroup_destroy(layout.shards[1].of("ready"), "b")
    _send(connection, layout)
    ran = commands.manager("check", "--json")
    assert ran.code == 1
    assert ran.document["problems"] == [
        {
            "topic": layout.shards[1].tag,
            "problem": "missing group",
            "id": "",
            "group": "b",
            "detail": "other shards of the topic have it",
            "mendable": True,
            "mended": False,
        }
    ]
    assert commands.manager("check", "--repair").code == 0
    assert commands.manager("check").code == 0
    assert _groups_in(connection, layout) == [{"a", "b"}] * 2
    assert _read(connection, layout, "b") == sorted(id for id in IDS if layout.home(id) == layout.shards[0])
    assert _read(connection, layout, "a") == sorted(IDS)


def test_a_repair_that_would_make_too_many_groups_goes_on(client: redis.Redis, redis_url: str, prefix: str) -> None:
    """Another group has come meanwhile: the problem stays, and the other topics are checked."""
    with Admin(settings=ManagerSettings(redis_url=redis_url, prefix=prefix)) as admin:
        for topic in ("a", "z"):
            admin.create_topic(topic, shards=2, max_groups=2)
        for topic, group in (("a", "one"), ("a", "two"), ("z", "one")):
            admin.create_group(topic, group)
        first, second = (ShardKeys(prefix, "a", shard).of("ready") for shard in ("0", "1"))
        client.xgroup_destroy(first, "two")
        admin.create_group("a", "three")
        client.xgroup_destroy(ShardKeys(prefix, "z", "1").of("ready"), "one")
        report = admin.check(repair=True)
    assert [(each.topic, each.problem.group, each.mended) for each in report.findings] == [
        ("a/0", "two", False),
        ("z/1", "one", True),
    ]
    assert {info["name"] for info in client.xinfo_groups(second)} == {b"one", b"two", b"three"}


def test_a_repair_that_fails_is_told(
    connection: Connection, declare: Callable[..., Policy], prefix: str, client: redis.Redis, redis_url: str
) -> None:
    """A shard of a reshard that was broken off is damaged, which a join of the group meets last."""
    layout = Layout(prefix, "orders", declare(shards=2))
    for name in ("a", "b"):
        connection.run(_join(prefix, "orders", name))
    client.xgroup_destroy(layout.shards[1].of("ready"), "b")
    client.set(layout.shard(1, 0).of("ready"), "of another type")
    with Admin(settings=ManagerSettings(redis_url=redis_url, prefix=prefix)) as admin:
        report = admin.check("orders", repair=True)
    assert [(each.problem.group, each.mended) for each in report.findings] == [("b", False)]
