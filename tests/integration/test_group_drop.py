"""A group is dropped while managers work, and whatever is interrupted: nothing is left without a place (promise 9)."""

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from lisa_common.client.connection import Connection
from lisa_common.model.keys import ShardKeys
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_common.protocol.call import command
from lisa_manager.admin.audit.check import check, check_topics
from lisa_manager.queries import require_topic
from lisa_manager.resharding import reshard
from lisa_manager.shard_groups import drop_group
from support.queue import Queue
from support.stepping import Stepped, interleavings

MESSAGES = 450


@pytest.fixture
def connection(redis_url: str) -> Iterator[Connection]:
    """A blocking one."""
    with Connection(redis_url, name="test") as opened:
        yield opened


def _fill(queue: Queue) -> None:
    """A topic in which one group alone owes much, in every state, and another one shares the rest."""
    queue.join("doomed")
    for number in range(MESSAGES):
        queue.send(f"alone-{number}")
    held = queue.read("doomed", limit=250)
    queue.nack(*held[:20], delay_ms=0)
    queue.nack(*held[20:25], delay_ms=60_000)
    queue.nack(*held[25:30], rejected=True)
    queue.join("other")
    for number in range(50):
        queue.send(f"both-{number}")
    queue.read("other", limit=10)
    queue.nack(*queue.read("doomed", limit=30), delay_ms=0)


def _housekeeping(queue: Queue) -> None:
    queue.trim()
    queue.promote()
    queue.sweep()


def _found(queue: Queue) -> set[str]:
    report = queue.connection.run(check(queue.keys, mend=False))
    return {finding.problem.kind for finding in report.findings}


def _queue(connection: Connection, keys: ShardKeys, now_ms: int) -> Queue:
    return Queue(connection, keys, now_ms=now_ms)


def _joined(connection: Connection, layout: Layout) -> list[Queue]:
    """The shards of a topic, each with two groups."""
    queues = [_queue(connection, keys, 0) for keys in layout.served]
    for queue in queues:
        queue.join("doomed", "other")
    return queues


def test_a_drop_that_was_killed_is_resumed_by_another(
    connection: Connection, declare: Callable[..., Policy], prefix: str
) -> None:
    """Killed between any two of its round trips, while a manager trims, promotes and sweeps between all of them."""
    seconds, _ = connection.call(command("TIME"))
    for survived in count():
        layout = Layout(prefix, f"t{survived}", declare(f"t{survived}"))
        queue = _queue(connection, layout.shards[0], int(seconds) * 1000)
        _fill(queue)
        killed = Stepped(connection, drop_group(layout, "doomed", force=True))
        for _ in range(survived):
            killed.step()
            _housekeeping(queue)
            assert _found(queue) <= {"dead group", "dangling"}
        again = Stepped(connection, drop_group(layout, "doomed", force=True))
        while again.step():
            _housekeeping(queue)
        assert _found(queue) == set()
        contents = queue.contents()
        assert contents.records.keys() == {f"both-{number}" for number in range(50)}
        assert {failed.partition("/")[0] for failed in contents.failures} <= {"other"}
        assert len(queue.read("other")) == 40
        queue.connection.call(command("DEL", *queue.keys.all()))
        if killed.done:
            return


def test_consumers_that_make_the_group_again_lose_nothing_new(
    connection: Connection, declare: Callable[..., Policy], prefix: str
) -> None:
    """What became ready since the group was made again is its own, whatever of the drop is still to come."""
    seconds, _ = connection.call(command("TIME"))
    layout = Layout(prefix, "orders", declare())
    queue = _queue(connection, layout.shards[0], int(seconds) * 1000)
    _fill(queue)
    drop = Stepped(connection, drop_group(layout, "doomed", force=True))
    while "doomed" in queue.contents().groups:
        drop.step()
    queue.join("doomed")
    queue.send("new")
    drop.finish()
    assert [delivery.id for delivery in queue.read("doomed")] == ["new"]
    assert _found(queue) == set()


def test_shards_of_a_reshard_meanwhile_are_not_left_out(
    connection: Connection, declare: Callable[..., Policy], prefix: str
) -> None:
    """The reshard knew the group, and made it there."""
    layout = Layout(prefix, "orders", declare())
    _joined(connection, layout)
    drop = Stepped(connection, drop_group(layout, "doomed", force=False))
    connection.run(reshard(prefix, "orders", 3))
    drop.finish()
    connection.run(reshard(prefix, "orders", 3))
    after = connection.run(require_topic(prefix, "orders"))
    assert [_queue(connection, keys, 0).contents().groups.keys() for keys in after.served] == [{"other"}] * 4


def test_a_repair_meanwhile_does_not_bring_the_group_back(
    connection: Connection, declare: Callable[..., Policy], prefix: str
) -> None:
    """One shard of the topic takes longer than the other; the repair comes between any two round trips."""
    for trips in count():
        layout = Layout(prefix, f"t{trips}", declare(f"t{trips}", shards=2))
        queues = _joined(connection, layout)
        for number in range(MESSAGES):
            queues[1].send(f"{number}")
        drop = Stepped(connection, drop_group(layout, "doomed", force=True))
        for _ in range(trips):
            drop.step()
        connection.run(check_topics(prefix, layout.topic, mend=True))
        if drop.done:
            return
        assert drop.finish() == MESSAGES
        assert [queue.contents().groups.keys() for queue in queues] == [{"other"}] * 2


def test_consumers_that_read_on_do_not_hold_up_a_drop(
    connection: Connection, declare: Callable[..., Policy], prefix: str
) -> None:
    """At any time, one of the shards has a message that one of them has just read."""
    layout = Layout(prefix, "orders", declare(shards=3))
    queues = _joined(connection, layout)
    drop = Stepped(connection, drop_group(layout, "doomed", force=True))
    sent = 0
    while sent < 30 and "doomed" in queues[0].contents().groups:
        queues[sent % 3].send(f"{sent}")
        queues[sent % 3].read("doomed")
        drop.step()
        sent += 1
    assert sent < 30
    assert drop.finish() == sent
    assert [queue.contents().groups.keys() for queue in queues] == [{"other"}] * 3


def test_a_message_that_comes_at_last_keeps_the_group_in_all_shards(
    connection: Connection, declare: Callable[..., Policy], prefix: str
) -> None:
    """Without force, the drop is refused; and the group misses nothing that comes to the other shards then."""
    layout = Layout(prefix, "orders", declare(shards=3))
    queues = _joined(connection, layout)
    drop = Stepped(connection, drop_group(layout, "doomed", force=False))
    drop.step()
    queues[1].send("owed")
    assert drop.finish() is None
    queues[0].send("next")
    assert [[delivery.id for delivery in queue.read("doomed")] for queue in queues] == [["next"], ["owed"], []]


def _round_trips(stepped: Stepped) -> int:
    return next(number for number in count(1) if not stepped.step())


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True], ids=["finished", "killed"])
def test_a_reshard_meanwhile_does_not_bring_the_group_back(
    connection: Connection, declare: Callable[..., Policy], prefix: str, *, killed: bool
) -> None:
    """It has read that the group is there, and then that is dropped; the reshard may be killed, and done again."""

    def begin(topic: str) -> tuple[Stepped, Stepped]:
        layout = Layout(prefix, topic, declare(topic))
        _queue(connection, layout.shards[0], 0).join("doomed", "other")
        drop = Stepped(connection, drop_group(layout, "doomed", force=True))
        return Stepped(connection, reshard(prefix, topic, 2)), drop

    reshards, drops = (_round_trips(flow) for flow in begin("sample"))
    for number, order in enumerate(interleavings(reshards, drops)):
        topic = f"t{number}"
        resharding, drop = begin(topic)
        for is_reshard in order:
            (resharding if is_reshard else drop).step()
            if killed and drop.done:
                break
        drop.finish()
        if not killed:
            resharding.finish()
        connection.run(reshard(prefix, topic, 3))
        connection.run(reshard(prefix, topic, 3))
        after = connection.run(require_topic(prefix, topic))
        found = [set(_queue(connection, keys, 0).contents().groups) for keys in after.served]
        assert found == [{"other"}] * len(after.served), order
