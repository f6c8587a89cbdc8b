"""The users of `lisa-manager acl`: their work runs, and nothing else does."""

import asyncio
import itertools
import json
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

import pytest
import redis

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.connection import Connection
from lisa_common.errors import AccessDenied, LisaError, QueueFull
from lisa_common.model.keys import (
    ShardKeys,
    activity_key,
    dropped_key,
    events_channel,
    history_key,
    idle_key,
    managers_key,
    operations_key,
    schedules_key,
    topics_key,
    wishes_key,
    workers_key,
)
from lisa_common.model.policy import Policy
from lisa_common.model.schedule import Schedule
from lisa_common.model.sharding import Layout
from lisa_common.protocol import consuming, jobs, managing, paging, producing, workers
from lisa_common.protocol.call import Flow, command
from lisa_common.protocol.managers import find_absence
from lisa_common.protocol.marking import StartMark
from lisa_common.protocol.producing import State
from lisa_common.protocol.registry import Topics
from lisa_common.protocol.scheduling import declare
from lisa_common.settings import Settings
from lisa_consumer import AsyncLender, Consumer, ConsumerSettings, Delivery, Note, Worker
from lisa_manager import (
    DEFAULT,
    Activity,
    Admin,
    AsyncAdmin,
    ManagerSettings,
    Operation,
    TopicEvents,
    Wish,
    WorkerState,
    WorkerStatus,
)
from lisa_manager.admin.rights import RoleName, rules
from lisa_manager.dead_lettering import move_page
from lisa_manager.jobs.history_writer import HistoryWriter
from lisa_manager.jobs.presence import Presence
from lisa_manager.jobs.reporter import Reporter
from lisa_manager.resharding import close_former
from lisa_manager.schedule_migration import migrate_schedules
from lisa_producer import AsyncProducer, Confirm, Message, NotConfirmed, Producer, ProducerSettings
from lisa_producer.spark.batch_sizes import BatchSizes
from lisa_producer.spark.ready_messages import list_entries, read_groups, split_entries
from support import Server, wait_until, wait_until_async
from support.commands import Commands
from support.engines import own_binary
from support.queue import Queue, outgoing
from support.roles import OURS, PASSWORD, Deed, Rights, Roles, is_old, key_name, make_users, user_url, watched
from support.running import managed, working
from support.stepping import Stepped

DAY = 86_400_000


PREFIX = "acl"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the users, a topic that is none of theirs, and data of others."""
    server = Server(own_binary(), tmp_path_factory.mktemp("guarded"), config={"appendonly": "yes"})
    with closing(server.start()), Connection(server.url) as admin:
        make_users(admin, PREFIX)
        for topic, id in ((OURS, "ours"), ("other", "theirs")):
            queue = Queue(admin, ShardKeys(PREFIX, topic))
            queue.join("billing")
            queue.send(id)
        admin.call(command("SET", "foreign", "x"))
        yield server


def _producer(server: Server) -> Producer:
    url = user_url(server, RoleName.PRODUCER, PREFIX)
    return Producer(settings=ProducerSettings(redis_url=url, prefix=PREFIX))


def _consumer(server: Server, *topics: str) -> Consumer:
    url = user_url(server, RoleName.CONSUMER, PREFIX)
    return Consumer(topics or OURS, "billing", settings=ConsumerSettings(redis_url=url, prefix=PREFIX))


def _declare_by_patterns(server: Server, admin: Connection) -> None:
    """A topic that has limits from its declaration on, by an operator and by a producer."""
    url = user_url(server, RoleName.MANAGER, PREFIX)
    with Admin(settings=ManagerSettings(redis_url=url, prefix=PREFIX)) as operator, _producer(server) as producer:
        operator.set_pattern_policy("*", {"max_messages": 1_000})
        operator.create_topic(OURS)
        admin.call(command("HDEL", topics_key(PREFIX), OURS))
        producer.send(OURS, "x")
        operator.drop_pattern_policy("*")


def _produce_and_consume(server: Server) -> None:
    """With the real clients, which ask for the server's time, declare, and wait."""
    with _producer(server) as producer, _consumer(server) as consumer:
        with suppress(NotConfirmed):
            producer.send(OURS, "x", confirm=Confirm(replicas=1, timeout=0.01))
        with Connection(server.url) as admin:
            if not is_old(admin):
                producer.send(OURS, "x", id="a", confirm=Confirm(fsync=True))
        producer.send_many(OURS, [Message(body="x", delay=60, id="b"), Message(body="x", id="c", ttl=60)])
        producer.send_many(OURS, [Message(body="x", delay=60), Message(body="x", delay=60)])
        producer.reschedule(OURS, "b", delay=90)
        assert producer.find(OURS, "b")
        producer.cancel(OURS, "b")
        taken = consumer.read(wait=30)
        consumer.extend(*taken)
        consumer.ack(*taken[:-2])
        consumer.nack(taken[-2], delay=60)
        consumer.release(taken[-1])
        consumer.ack(*consumer.read(wait=30))


def _live_all_lives(queue: Queue) -> None:
    """Messages of one group and of two, in each state, and out of it on each way."""
    for round_of_groups, on_expire in ((["billing"], "garbage"), (["billing", "mail"], "drop")):
        queue.policy = Policy.of({"backoff_jitter": 0, "on_expire": on_expire, "visibility_ms": 1_000})
        queue.connection.execute([command("DEL", *queue.keys.all())])
        queue.send("before")
        queue.join(*round_of_groups)
        queue.ack(*queue.read("billing"))
        for some in (_deliver, _follow, _replace, _lose_writes, _give_up, _cancel, _keep_house, _limit, _limit_keys):
            some(queue, round_of_groups)
            queue.advance(600_000)  # beyond the dedup window


def _deliver(queue: Queue, groups: list[str]) -> None:
    queue.send("later", due="+100", priority=7, ttl_ms=DAY)
    queue.send("a", ttl_ms=DAY)
    queue.send("a")
    queue.reschedule(("later", "+50"), ("a", "+1"), ("unknown", "+1"))
    queue.advance(50)
    queue.promote()
    for group in groups:
        taken = queue.read(group)
        queue.extend("c", *taken)
        queue.connection.call(consuming.attend([queue.keys], group, "worker~"))
        queue.connection.call(consuming.deregister(queue.keys, group, "worker~"))
        queue.connection.call(consuming.list_pending(queue.keys, group, "c", limit=1))
        queue.connection.call(consuming.find_aborted(queue.keys, group, [taken[0].entry]))
        queue.connection.call(command("XREVRANGE", queue.keys.of("ready"), "+", "-", "COUNT", 1))  # as Spark's reader
        queue.release(taken[0])
        queue.ack(*taken[1:], *queue.read(group))
    queue.find("a")
    queue.reschedule(("a", "+1"))
    queue.cancel("a")


def _follow(queue: Queue, groups: list[str]) -> None:
    # With the same id and another, due now and later, with a ttl and without, in a full topic.
    for id in ("chain", "end"):
        queue.send(id)
    for group in groups:
        chain, end = queue.read(group)
        queue.follow(end, outgoing("next", due="+5", ttl_ms=DAY))
        queue.follow(chain, outgoing("chain"))
    queue.advance(10)
    queue.promote()
    limits = '{"messages":0}'
    queue.connection.call(managing.set_door(queue.keys, "", limits))
    for group in groups:
        for delivery in queue.read(group):
            queue.follow(delivery, outgoing("other", due="+5"))
            queue.ack(delivery)
    queue.connection.call(managing.set_door(queue.keys, limits, ""))
    queue.cancel("other")


def _replace(queue: Queue, groups: list[str]) -> None:
    # What waits and what is to be retried, in a topic of limits and without.
    queue.replace("a", due="+5", ttl_ms=DAY)
    queue.replace("a", due="+7", tried_ms=1)
    queue.replace("a")
    for group in groups:
        queue.nack(*queue.read(group), delay_ms=100)
    queue.replace("a")
    for group in groups:
        queue.ack(*queue.read(group))
    queue.replace("a")


def _limit_keys(queue: Queue, groups: list[str]) -> None:
    # Slots pass on by an ack, a nack, a cancel and a reschedule; to messages, and to replayed copies.
    queue.limit(max_in_flight_per_key=1)
    for position, id in enumerate(("dead", "replayed", "cancelled", "moved", "acked", "last")):
        queue.send(id, key="k", due=f"+{position}")
    queue.advance(5)
    for _ in range(2):
        queue.promote()
        for group in groups:
            queue.nack(*queue.read(group), rejected=True)
    for group in groups:
        queue.replay(f"{group}/dead", f"{group}/replayed")
    queue.promote()
    queue.cancel("cancelled")
    queue.reschedule(("moved", "+1"))
    queue.advance(1)
    for _ in range(6):
        queue.promote()
        for group in groups:
            if taken := queue.read(group):
                queue.ack(*taken)
    queue.send("expired", key="k", ttl_ms=1_000)
    queue.promote()
    queue.advance(1_000)
    queue.sweep()
    queue.send("a", key="k")
    queue.send("b", key="k")
    queue.promote()
    queue.connection.call(command("DEL", queue.keys.of("slots")))
    queue.tidy()
    queue.connection.call(command("DEL", queue.keys.of("busy")))
    queue.tidy()
    for name in ("slots", "parked"):
        queue.connection.call(command("ZADD", queue.keys.of(name), 1, "of another program"))
    queue.tidy()
    queue.limit()
    queue.tidy()
    queue.promote()
    queue.cancel("a", "b")


def _lose_writes(queue: Queue, groups: list[str]) -> None:
    # A server that was killed has lost a read, or also the promotion before it.
    queue.send("a")
    queue.send("lost", due="+1")
    dumps = queue.dump()
    queue.advance(1)
    queue.promote()
    taken = {group: queue.read(group) for group in groups}
    queue.restore(dumps)
    for group in groups:
        queue.ack(*taken[group])


def _give_up(queue: Queue, groups: list[str]) -> None:
    # Retried, reclaimed, withdrawn by a late ack, dead, replayed, purged.
    for id in ("retry", "dead", "late", "later", "purged"):
        queue.send(id, ttl_ms=DAY)
    for group in groups:
        taken = {delivery.id: delivery for delivery in queue.read(group)}
        queue.nack(taken["retry"], delay_ms=100)
        queue.nack(taken["dead"], taken["purged"], rejected=True)
        queue.advance(2_000)
        queue.reclaim(group)
        queue.ack(taken["late"])  # from the retry set
        queue.advance(2_000)
        queue.promote()
        queue.ack(taken["later"])  # from the stream
        for delivery in queue.read(group):
            queue.nack(delivery, delay_ms=100)
        queue.find("retry")
        queue.reschedule(("retry", "+200"))
        queue.replay(f"{group}/dead", f"{group}/unknown")
        queue.ack(*queue.read(group))
        queue.purge(f"{group}/purged")


def _cancel(queue: Queue, groups: list[str]) -> None:
    # Where it waits, is ready, is delivered, is to be retried, is dead; and what expires in each of these places.
    for id in ("to wait", "to expire"):
        queue.send(id, due="+1000", ttl_ms=1)
    queue.cancel("to wait")
    queue.send("to be ready")
    queue.cancel("to be ready")
    for id in ("to be handled", "to fail", "to be retried", "to die", "to expire at last"):
        queue.send(id, ttl_ms=5_000)
    for group in groups:
        taken = {delivery.id: delivery for delivery in queue.read(group)}
        queue.nack(taken["to be retried"], delay_ms=100)
        queue.nack(taken["to die"], rejected=True)
    queue.cancel("to be retried", "to die", "to be handled", "to fail")
    queue.nack(taken["to fail"])
    queue.advance(6_000)
    queue.sweep()
    for group in groups:
        queue.reclaim(group)


def _limit(queue: Queue, groups: list[str]) -> None:
    # By each limit, from where it begins to where messages pass again.
    queue.limit(rate="1/s", burst=5, max_messages=1_000)
    queue.send_all([outgoing(f"limited-{number}") for number in range(7)])
    queue.promote()
    queue.limit(max_in_flight=1)
    for group in groups:
        acked, nacked, released = queue.read(group)[-3:]
        queue.promote()
        queue.ack(acked)
        queue.promote()
        queue.nack(nacked, rejected=True)
        queue.release(released, shut_ms=10)
        queue.replay(f"{group}/{nacked.id}")
    limits = '{"messages":0}'
    queue.limit()
    queue.connection.call(managing.set_door(queue.keys, "", limits))
    with suppress(QueueFull):
        queue.send("refused")
    queue.connection.call(managing.set_door(queue.keys, limits, ""))
    queue.shut(20)
    queue.advance(20)
    queue.sweep()
    queue.limit()
    queue.promote()
    for group in groups:
        queue.ack(*queue.read(group))
    queue.shut(10)
    queue.advance(10)
    queue.send("after", due="+1")
    queue.advance(1)
    queue.promote()


def _keep_house(queue: Queue, groups: list[str]) -> None:
    queue.send("expires when read", ttl_ms=10)
    queue.send("expires before", ttl_ms=10)
    for group in groups:
        entries = queue.take(group)
        queue.advance(20)
        queue.judge(group, entries)
    queue.sweep()
    queue.advance(8 * DAY)
    queue.promote()
    for group in groups:
        for delivery in queue.read(group):
            queue.ack(delivery)
    queue.sweep()
    queue.send("abandoned")
    for group in groups:
        queue.read(group)
        queue.advance(2_000)
        queue.reclaim(group)
    _pass_a_mark_on(queue, groups[0])
    queue.send("aborted")
    for group in groups:
        queue.read(group)
    queue.abort("aborted")
    queue.trim(spent_ms=0)


def _pass_a_mark_on(queue: Queue, group: str) -> None:
    """The mark of a worker's delivery whose lease ends before that of an earlier one."""
    queue.send("begun")
    queue.send("marked")
    begun, *_, marked = queue.read(group, "worker~")
    queue.mark(StartMark.YES, marked)
    queue.advance(500)
    queue.extend("worker~", begun)
    queue.advance(500)
    queue.reclaim(group)


def _move_dead_letters(server: Server, queue: Queue, commands: Commands, admin: Connection) -> None:
    """To the same topic, which is ours; operators follow them."""
    words = ("--dead-letter-topic", "shop.dead", "--expire-idle", "1h")
    assert commands.manager("topic", "set", OURS, *words).code == 0
    queue.send("moved")
    queue.nack(*queue.read("billing"), rejected=True)
    policy = Policy(dead_letter_topic=OURS)
    with Connection(user_url(server, RoleName.MANAGER, PREFIX), name="manager") as connection:
        crashed = Stepped(connection, move_page(queue.keys, policy, Topics(PREFIX), paging.START))
        while not (letters := queue.read("billing")):
            crashed.step()
        queue.ack(*letters)
        # By the server's clock, too, so that the repeated send meets a known id.
        admin.call(command("ZADD", queue.keys.of("finished"), 10**14, letters[0].id))
        assert connection.run(move_page(queue.keys, policy, Topics(PREFIX), paging.START)).moved
    for line in (["show", OURS, "moved"], ["status"], ["topic", "set", OURS, "--dead-letter-topic", "none"]):
        assert commands.manager(*line).code == 0, line


def _reshard(server: Server, commands: Commands, admin: Connection) -> None:
    """To shards of which each role must learn."""
    closed = ShardKeys(PREFIX, OURS).of("closed")
    admin.call(command("SET", closed, "1,2"))
    assert commands.manager("check", OURS, "--repair").code == 0
    admin.call(command("DEL", closed))  # as if the reshard had not come to it
    with _producer(server) as producer, _consumer(server) as consumer:
        producer.send(OURS, "x", id="after a reshard")
        consumer.ack(*consumer.read(wait=30))
    for role, name in ((RoleName.CONSUMER, "lisa-consumer"), (RoleName.READER, "reader")):
        with Connection(user_url(server, role, PREFIX), name=name) as connection:
            connection.run(Topics(PREFIX).resolve_each([OURS, "missing"]))


def _operate(server: Server, queue: Queue, commands: Commands, admin: Connection) -> None:
    """All that operators type."""
    of = queue.keys.of
    reader = user_url(server, RoleName.READER, PREFIX)
    queue.send("w", due="+1000")
    for id in ("d", "r"):
        queue.send(id)
    taken = {delivery.id: delivery for delivery in queue.read("billing")}
    queue.nack(taken["d"], rejected=True)
    queue.nack(taken["r"], delay_ms=DAY)
    with Connection(reader, name="reader") as connection:
        for state in (State.WAITING, State.RETRY, State.GARBAGE):
            connection.run(paging.split(queue.keys, state, paging.START, paging.END, 1))
            assert connection.call(paging.list_messages(queue.keys, state, paging.START, paging.END)).messages
    for words in (
        ["topic", "create", OURS],
        *(["topic", "set", OURS, "--paused", "yes"], ["topic", "set", OURS, "--paused", "no"]),
        *(["topic", "set", OURS, "--max-retries", "3"], ["topic", "list"], ["status"], ["show", OURS, "w"]),
        *(["doctor"], ["group", "list", OURS], ["garbage", "list", OURS], ["garbage", "replay", OURS, "d"]),
        *(["garbage", "replay", OURS, "--all"], ["garbage", "purge", OURS, "--all", "--yes"], ["cancel", OURS, "w"]),
        ["abort", OURS, "w"],
    ):
        assert commands.manager(*words).code in (0, 1), words
    _look(server)
    _move_dead_letters(server, queue, commands, admin)
    # Damage of each kind that is mended.
    for id in ("x", "y", "z"):
        queue.send(id, due="+1000", ttl_ms=DAY)
    queue.send("lost")
    queue.send("lost before its time", due=str(10**13))
    for words in (
        *(["HDEL", of("messages"), "x"], ["ZADD", of("finished"), "inf", "y"], ["ZREM", of("expiring"), "z"]),
        *(["ZADD", of("retry"), "1", "billing/none"], ["ZADD", of("garbage"), "1", "billing/none"]),
        *(["HSET", of("failures"), "billing/none", "x"], ["HSET", of("owed"), "none", "billing,mail"]),
        *(["XTRIM", of("ready"), "MAXLEN", "0"], ["ZREM", of("waiting"), "lost before its time"]),
        ["XADD", of("ready"), "*", "id", "no record", "due", 1, "n", 1],
    ):
        admin.call(command(*words))
    assert commands.manager("check", "--repair").code in (0, 1)
    assert "lost before its time" in queue.contents().waiting
    _reshard(server, commands, admin)
    assert commands.manager("status").code == 0
    assert commands.manager("group", "drop", OURS, "mail", "--force", "--yes").code == 0
    assert commands.manager("group", "drop", OURS, "billing", "--force", "--yes").code == 0
    assert commands.manager("topic", "drop", OURS, "--force", "--yes").code == 0


def _look(server: Server) -> None:
    """What the dashboard reads and notes beside messages."""
    settings = Settings(redis_url=user_url(server, RoleName.MANAGER, PREFIX), prefix=PREFIX)
    with Admin(settings=settings) as operator:
        assert operator.history([OURS])[OURS] == []
        assert operator.memory([OURS])[OURS] > 0
        assert operator.due_counts(OURS).now_ms
        assert operator.consumers(OURS)
        assert operator.server_facts().nodes
        operator.note_activity(Activity("olaf", "replay", OURS))
        assert operator.activity()[0].who == "olaf"
        operations = [Operation(f"o{number}", "olaf", "replay", OURS, "state=garbage", 1) for number in range(101)]
        assert not any(map(operator.save_operation, operations))
        assert operator.stop_operation("o100")
        assert operator.save_operation(replace(operations[-1], status="done"))
        assert len(operator.operations()) == 100


def _oversee(server: Server) -> None:
    """A worker says what it does, and asks what is wanted of it; an operator pauses it. It is silent for long then."""
    state = WorkerState(
        group="billing",
        name="w",
        has_chosen_name=True,
        host="h",
        pid=1,
        version="1",
        release="",
        topics=(OURS,),
        concurrency=1,
        status=WorkerStatus.RUNNING,
        status_since_ms=1,
        began_ms=1,
        seen_ms=1,
        held=0,
        running=0,
    )
    settings = Settings(redis_url=user_url(server, RoleName.MANAGER, PREFIX), prefix=PREFIX)
    url = user_url(server, RoleName.CONSUMER, PREFIX)
    with Connection(url, name="lisa-consumer") as worker, Admin(settings=settings) as operator:
        worker.call(workers.register(PREFIX, state))
        assert operator.pause_worker("w").status is WorkerStatus.SILENT
        assert worker.call(workers.read_wish(PREFIX, "billing", "w", 1)) is Wish.PAUSE
        assert operator.resume_worker("w")
        worker.call(workers.register(PREFIX, state.model_copy(update={"name": "ended"})))
        worker.call(workers.leave(PREFIX, "billing", "ended"))


async def _write_history(server: Server, admin: Connection) -> None:
    """What a manager does once a minute, and what it tells operators once a second."""
    settings = ManagerSettings(redis_url=user_url(server, RoleName.MANAGER, PREFIX), prefix=PREFIX)
    layout = Layout(PREFIX, OURS, Policy())
    async with AsyncConnection.of(settings, name="lisa-manager") as connection:
        await HistoryWriter(connection, settings, lambda: {OURS: layout}).turn()
        presence = Presence(connection, PREFIX)
        await presence.turn()
        await presence.end()
        async with AsyncAdmin(settings=settings) as operator:
            assert (await operator.history([OURS]))[OURS]
            heard = asyncio.ensure_future(anext(operator.events()))
            listeners = command("PUBSUB", "NUMSUB", events_channel(PREFIX))
            await wait_until_async(lambda: admin.call(listeners)[1])
            reporter = Reporter(connection, PREFIX)
            reporter.note_ended(OURS, ended=1)
            await reporter.turn()
            assert await heard == {OURS: TopicEvents(ended=1)}


def _schedule(server: Server, admin: Connection) -> None:
    """A worker declares a schedule; operators change, move and delete it; a manager moves old ones."""
    schedule = Schedule.of({"name": "s", "topic": OURS, "every_ms": 1_000, "overlap": "skip", "ttl_ms": DAY})
    with Connection(user_url(server, RoleName.CONSUMER, PREFIX), name="lisa-consumer") as connection:
        connection.run(declare(Topics(PREFIX), schedule))
        connection.run(declare(Topics(PREFIX), schedule.model_copy(update={"overlap": "allow"})))
    url = user_url(server, RoleName.MANAGER, PREFIX)
    keys = ShardKeys(PREFIX, OURS)
    with Admin(settings=ManagerSettings(redis_url=url, prefix=PREFIX)) as operator:
        operator.set_schedule(OURS, "s", ttl=60, every=3600)
        operator.skip_tick(OURS, "s")
        operator.set_schedule(OURS, "s", every=7200)
        operator.set_schedule(OURS, "s", overlap="skip", every=1)
        wait_until(lambda: operator.schedule(OURS, "s").next_ms and operator.schedule(OURS, "s").is_overdue)
        operator.set_schedule(OURS, "s", body="x")
        assert [state.name for state in operator.list_schedules()] == ["s"]
        operator.check(repair=True)
        operator.run_now(OURS, "s")
        operator.reshard(OURS, 2)
        with Connection(url, name="lisa-manager") as connection:
            for _ in range(2):
                connection.run(close_former(PREFIX, OURS))
        operator.delete_schedule(OURS, "s")
    admin.call(command("HSET", schedules_key(PREFIX), "s", json.dumps({"version": 1, "left": {OURS: 1}})))
    with Connection(url, name="lisa-manager") as connection:
        connection.run(migrate_schedules(Topics(PREFIX)))
    new = [key for shard in ("0.1", "1.1") for key in ShardKeys(PREFIX, OURS, shard).all()]
    admin.call(command("DEL", keys.of("ticks"), keys.of("closed"), topics_key(PREFIX), *new))


async def _manage(server: Server, admin: Connection) -> None:
    """The daemon: it listens, adopts a topic that is sent to, and retires those that were dropped."""
    keys = ShardKeys(PREFIX, OURS)
    admin.call(command("HSET", topics_key(PREFIX), OURS, "{}"))
    await _write_history(server, admin)
    admin.call(command("HDEL", topics_key(PREFIX), OURS))
    admin.call(command("HSET", dropped_key(PREFIX), OURS, 1, "gone", 1))
    admin.call(command("ZADD", keys.of("waiting"), 1, "x"))
    async with managed(user_url(server, RoleName.MANAGER, PREFIX), PREFIX):
        await wait_until_async(lambda: not admin.call(command("EXISTS", dropped_key(PREFIX))))
        await wait_until_async(lambda: not admin.call(command("EXISTS", keys.of("waiting"))))
        admin.call(command("HSET", idle_key(PREFIX), "gone", 1))
        admin.call(command("HSET", topics_key(PREFIX), OURS, '{"expire_idle_ms":1}'))
        await wait_until_async(lambda: not admin.call(command("HEXISTS", topics_key(PREFIX), OURS)))


async def _lend(server: Server) -> None:
    """What a gateway does by itself; all else it does as the others do."""
    settings = ConsumerSettings(redis_url=user_url(server, RoleName.GATEWAY, PREFIX), prefix=PREFIX)
    sending = ProducerSettings(redis_url=settings.redis_url, prefix=PREFIX)
    async with AsyncLender("billing", settings=settings) as lender, AsyncProducer(settings=sending) as producer:
        await lender.read(topics=OURS)
        for id in ("lent", "lent again"):
            await producer.send(OURS, "x", id=id, delay=0.01)
            with Connection(server.url) as admin:
                admin.run(_promote())
            assert await lender.lend(*[(delivery, 60) for delivery in await lender.read(wait=5, topics=OURS)])
        note = Note(lambda lent: lent.delivery.body, 60_000)
        assert await lender.ack_lent(OURS, "lent", note=note) == "acked"
        assert await lender.nack_lent(OURS, "lent again", rejected=True) == "garbage"
        assert await lender.note(OURS, "lent") == b"x"
        assert await lender.drop_note(OURS, "lent")
        await lender.release(*await lender.read(topics=OURS))


def _promote() -> Flow[None]:
    yield managing.promote(ShardKeys(PREFIX, OURS), limit=10, now_ms=10**13)


def _work_as_spark(server: Server) -> None:
    """What tasks and drivers of Spark do beside what producers, consumers and readers do."""
    keys = ShardKeys(PREFIX, OURS)
    with Connection(user_url(server, RoleName.PRODUCER, PREFIX), name="lisa-producer") as producer:
        producer.call(jobs.reserve(keys, "job", rate=100, count=1))
        producer.run(jobs.keep_written(keys, "query", {"0/0": "x"}, 1_000))
        producer.run(jobs.claim_part(keys, "query", "0", "owner", 1_000))
        producer.execute([jobs.forget_written(keys, "query")])
        producer.call(producing.update(keys, [outgoing("nothing")]))
        producer.run(find_absence(PREFIX))
    with Connection(user_url(server, RoleName.CONSUMER, PREFIX), name="lisa-consumer") as consumer:
        sizes = BatchSizes(keys, "spark~")
        consumer.run(find_absence(PREFIX))
        consumer.run(sizes.begin(10, alone=False, again=False))
        consumer.run(sizes.succeed(10))
    with Connection(user_url(server, RoleName.READER, PREFIX), name=str(RoleName.READER)) as reader:
        for state in (State.READY, State.DELIVERED):
            for span in reader.run(split_entries([keys], state, 10)):
                for part in reader.run(read_groups(keys, span)):
                    reader.run(list_entries(OURS, part, part.after))


def _done(server: Server) -> set[Deed]:
    """What the users do when they do all that they are for."""
    with watched(server, PREFIX) as deeds, closing(Roles(server, PREFIX)) as roles, Connection(server.url) as admin:
        roles_topic: Any = roles
        queue = Queue(roles_topic, ShardKeys(PREFIX, OURS))
        _declare_by_patterns(server, admin)
        _produce_and_consume(server)
        _schedule(server, admin)
        _live_all_lives(queue)
        _operate(server, queue, Commands(user_url(server, RoleName.MANAGER, PREFIX), PREFIX), admin)
        _oversee(server)
        asyncio.run(_manage(server, admin))
        asyncio.run(_lend(server))
        _work_as_spark(server)
    # A gateway sends, reads and operates by the same flows, with the names of those clients. It runs no Spark, and says
    # nothing for managers.
    shared = {deed for deed in deeds if deed[0] is not RoleName.READER and deed[2] not in OF_SPARK}
    shared.discard((RoleName.MANAGER, "publish", "events"))
    return deeds | {(RoleName.GATEWAY, verb, name) for _, verb, name in shared}


@pytest.fixture(scope="module")
def done(guarded: Server) -> set[Deed]:
    """What the users do when they do all that they are for."""
    return _done(guarded)


@pytest.fixture(scope="module")
def rights(guarded: Server) -> Iterator[Rights]:
    """Asks for the rights of users on every key of ours, and on some of others."""
    ours = [*ShardKeys(PREFIX, OURS).all(), *ShardKeys(PREFIX, OURS, "1.2").all()]
    ours += _lent_keys(PREFIX)
    ours += [history_key(PREFIX, OURS), activity_key(PREFIX), operations_key(PREFIX), managers_key(PREFIX)]
    ours += [workers_key(PREFIX), wishes_key(PREFIX)]
    ours += [*(f"{PREFIX}:{name}" for name in ("topics", "dropped", "idle", "schedules", "wake", "events"))]
    with Connection(guarded.url) as admin:
        yield Rights(admin, [*ours, *THEIRS, *FOREIGN])


def _lent_keys(prefix: str) -> list[str]:
    keys = ShardKeys(prefix, OURS)
    return [keys.loan("billing", "a"), keys.note("a"), keys.query("q"), keys.of("pace")]


OF_SPARK = ("pace", "query")
THEIRS = ShardKeys(PREFIX, "other").all()
FOREIGN = [
    "foreign",
    *ShardKeys("other", OURS).all(),
    *_lent_keys("other"),
    history_key("other", OURS),
    activity_key("other"),
    operations_key("other"),
    managers_key("other"),
    workers_key("other"),
    wishes_key("other"),
    *(f"other:{name}" for name in ("topics", "dropped", "idle", "schedules", "wake", "events")),
]


def _differences(role: RoleName, allowed: set[tuple[str, str]], done: set[Deed]) -> list[str]:
    needed = {(verb, name) for who, verb, name in done if who is role}
    told = {(verb, key_name(PREFIX, key)) for verb, key in allowed}
    strayed = {key for _, key in allowed if key in FOREIGN or (key in THEIRS and role is not RoleName.MANAGER)}
    kinds = {"not needed": told - needed, "lacking": needed - told, "strayed": strayed}
    return [f"{kind}: {sorted(found)}" for kind, found in kinds.items() if found]


@pytest.mark.parametrize("role", RoleName)
def test_users_may_do_their_work_and_nothing_else(role: RoleName, rights: Rights, done: set[Deed]) -> None:
    """Of all commands of the server, on all keys and channels, allowed is what was done, and only there."""
    assert _differences(role, rights.of(f"{PREFIX}-{role}"), done) == []


def _widened(rule: str, way: int) -> str:
    """In one of three ways: by commands, to all keys, to those of another prefix."""
    words = rule.strip("()").split()
    patterns = [word for word in words if word[0] in "~&"]
    elsewhere = [pattern.replace(PREFIX, "other", 1) for pattern in patterns]
    return f"({' '.join([*words, *(['+@read'], [patterns[0][0] + '*'], elsewhere)[way]])})"


@pytest.mark.slow
@pytest.mark.parametrize("role", RoleName)
def test_no_rule_could_be_wider(role: RoleName, guarded: Server, rights: Rights, done: set[Deed]) -> None:
    """Each rule is widened, by turns in its commands and in its keys: the test above would tell."""
    with Connection(guarded.url) as admin:
        topics = ["*"] if role is RoleName.MANAGER else [OURS]
        found = rules(role, PREFIX, topics, before_7_2=is_old(admin))
        turns = itertools.cycle(range(3))
        widened = [(at, _widened(rule, next(turns))) for at, rule in enumerate(found) if rule.startswith("(")]
        for at, wider in [*widened, (len(found), "+flushall")]:
            admin.call(command("ACL", "SETUSER", "probe", *found[:at], wider, *found[at + 1 :]))
            assert _differences(role, rights.of("probe"), done), wider


async def test_programs_with_the_rules_of_an_earlier_release_work(
    guarded: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """With a topic that is not declared yet. The worker says once what is lost."""
    new = {RoleName.PRODUCER: 1, RoleName.CONSUMER: 3, RoleName.READER: 1}
    keys = (workers_key(PREFIX), wishes_key(PREFIX), dropped_key(PREFIX))
    with Connection(guarded.url) as admin:
        admin.call(command("HDEL", topics_key(PREFIX), OURS))
        for role, count in new.items():
            found = rules(role, PREFIX, [OURS], before_7_2=is_old(admin))
            earlier = [rule for rule in found if not any(f"~{key})" in rule for key in keys)]
            assert len(earlier) == len(found) - count
            admin.call(command("ACL", "SETUSER", f"earlier-{role}", f">{PASSWORD}", *earlier))
    urls = {role: user_url(guarded, role, "earlier") for role in new}
    with Connection(urls[RoleName.READER]) as reader:
        assert [*reader.run(Topics(PREFIX).resolve_each([OURS]))] == [OURS]
    handled = []
    worker = Worker("earlier", settings=ConsumerSettings(redis_url=urls[RoleName.CONSUMER], prefix=PREFIX))
    worker.on(OURS)(handled.append)
    await worker.serve(burst=True)
    settings = ProducerSettings(redis_url=urls[RoleName.PRODUCER], prefix=PREFIX)
    async with AsyncProducer(settings=settings) as producer:
        await producer.send(OURS, "x")
    await worker.serve(burst=True)
    assert handled
    said = [record.getMessage() for record in caplog.records if getattr(record, "event", "") == "server_refuses"]
    assert [text.partition(":")[0] for text in said] == [
        "the server refuses the marks of dropped topics",
        "the server refuses the hashes of workers",
    ]


def test_a_gateway_shows_and_changes_topics_that_expire(guarded: Server) -> None:
    """The time for which such a topic was unused begins again with each change of that."""
    settings = ManagerSettings(redis_url=user_url(guarded, RoleName.GATEWAY, PREFIX), prefix=PREFIX)
    with Connection(guarded.url) as admin, Admin(settings=settings) as operator:
        operator.set_policy(OURS, expire_idle_ms=60_000)
        admin.call(command("HSET", idle_key(PREFIX), OURS, 1))
        assert operator.status(OURS)[0].unused_ms
        operator.set_policy(OURS, expire_idle_ms=120_000)
        assert operator.status(OURS)[0].unused_ms is None
        operator.set_policy(OURS, expire_idle_ms=DEFAULT)


async def test_a_worker_of_a_pattern_finds_its_topics(guarded: Server) -> None:
    """With the rules for a pattern of topics; the rules for one topic do not list the others."""
    with Connection(guarded.url) as admin:
        made = rules(RoleName.CONSUMER, PREFIX, ["ord*"], before_7_2=is_old(admin))
        admin.call(command("ACL", "SETUSER", "wide", ">pass", *made))
        assert "hgetall" not in " ".join(rules(RoleName.CONSUMER, PREFIX, [OURS]))
    handled = set[str]()
    settings = ConsumerSettings(redis_url=f"redis://wide:pass@127.0.0.1:{guarded.port}", prefix=PREFIX)
    worker = Worker("pattern", settings=settings)

    @worker.on("ord*")
    async def handle(delivery: Delivery) -> None:
        handled.add(delivery.id)

    with _producer(guarded) as producer:
        producer.send(OURS, "x")
        async with working(worker):
            await wait_until_async(lambda: producer.send(OURS, "x") and handled)


def test_a_producer_sends_and_does_not_read(guarded: Server) -> None:
    """It sends to its topics, finds what it sent, and neither reads a group's messages nor acks them."""
    with _producer(guarded) as producer:
        assert producer.send(OURS, "x", id="p1", delay=60).outcome == "sent"
        assert producer.find(OURS, "p1")
        with pytest.raises(AccessDenied):
            producer.send("other", "x")
        with pytest.raises(AccessDenied):
            producer.find("other", "theirs")
    url = user_url(guarded, RoleName.PRODUCER, PREFIX)
    nosy = Consumer(OURS, "billing", settings=ConsumerSettings(redis_url=url, prefix=PREFIX))
    with nosy, pytest.raises(AccessDenied):
        nosy.read()


def test_a_consumer_reads_and_does_not_send(guarded: Server) -> None:
    """It reads its topics, settles what it read, and neither sends nor looks at other topics."""
    with _producer(guarded) as producer:
        sent = producer.send(OURS, "x")
    with _consumer(guarded) as consumer:
        taken = consumer.read(limit=1_000, wait=30)
        assert sent.id in [delivery.id for delivery in taken]
        assert set(consumer.ack(*taken)) == {"acked"}
    with _consumer(guarded, "other") as nosy, pytest.raises(AccessDenied):
        nosy.read()
    url = user_url(guarded, RoleName.CONSUMER, PREFIX)
    with Producer(settings=ProducerSettings(redis_url=url, prefix=PREFIX)) as producer, pytest.raises(AccessDenied):
        producer.send(OURS, "x")


@pytest.mark.parametrize("role", [role for role in RoleName if role is not RoleName.MANAGER])
def test_only_managers_publish_events(guarded: Server, role: RoleName) -> None:
    """Gateways count them, so nobody who may send can make them up."""
    with Connection(user_url(guarded, role, PREFIX), name="forger") as forger, pytest.raises(AccessDenied):
        forger.call(command("PUBLISH", events_channel(PREFIX), b"{}"))


@pytest.mark.parametrize("role", RoleName)
@pytest.mark.parametrize(
    "words",
    [
        "FLUSHALL",
        "FLUSHDB",
        "KEYS *",
        "SCAN 0",
        "CONFIG GET *",
        "ACL LIST",
        "SHUTDOWN",
        "GET foreign",
        "DEL foreign",
    ],
)
def test_nobody_may_do_what_administrators_do(guarded: Server, role: RoleName, words: str) -> None:
    """Neither by a command nor by a script of their own, which they may load and run."""
    body = ",".join(f"'{word}'" for word in words.split())
    sha = redis.Redis(port=guarded.port).script_load(f"return redis.call({body})")
    with Connection(user_url(guarded, role, PREFIX)) as connection:
        for attempt in (words.split(), ["EVALSHA", sha, 0]):
            with pytest.raises(LisaError):
                connection.call(command(*attempt))
    with guarded.client() as client:
        assert client.get("foreign") == b"x"


def test_the_users_can_be_made_by_redis_cli(commands: Commands, prefix: str) -> None:
    """Each line is a command; a user's password, which no line holds, stays when they are made again."""
    with Connection(commands.url) as admin:
        for times in (1, 2):
            lines = commands.manager("acl", "--topic", OURS, "--topic", "shop.*").out.splitlines()
            for line in lines:
                admin.call(command(*line.split()))
            user = f"{prefix}-producer"
            if times == 1:
                admin.call(command("ACL", "SETUSER", user, f">{PASSWORD}"))
        try:
            login = commands.url.replace("://", f"://{user}:{PASSWORD}@")
            with Producer(settings=ProducerSettings(redis_url=login, prefix=prefix)) as producer:
                producer.send("shop.shoes", "x")
                with pytest.raises(AccessDenied):
                    producer.send("other", "x")
        finally:
            admin.call(command("ACL", "DELUSER", *(line.split()[2] for line in lines)))
    assert [line.split()[2] for line in lines] == [f"{prefix}-{role}" for role in RoleName]


def test_users_are_told_as_asked(commands: Commands, redis_url: str) -> None:
    """One role under a name of its own, for programs too; a database of the URL; and what cannot be."""
    ran = commands.manager("acl", "consumer", "--topic", "a", "--user", "jo", "--json")
    with Connection(redis_url) as admin:
        told = rules(RoleName.CONSUMER, commands.prefix, ["a"], before_7_2=is_old(admin))
    assert ran.document == [{"user": "jo", "rules": told}]
    assert " +select " in commands.manager("acl", "reader", "--redis-url", "redis://h/3").out
    assert "+select" not in commands.manager("acl", "reader", "--redis-url", "redis://h/0").out
    assert " +asking +cluster|slots " in commands.manager("acl", "reader", "--redis-url", "redis+cluster://h").out
    assert "+cluster" not in commands.manager("acl", "reader", "--redis-url", "redis://h").out
    for name in ("a b", "a\nACL SETUSER b", "", "\x1b"):
        assert commands.manager("acl", "reader", "--user", name).code == 2, name
    for words in (["--user", "jo"], ["--topic", "a b"], ["--topic", "*a"], ["cook"]):
        assert commands.manager("acl", *words).code == 2, words
