"""`redis+cluster://`: each call goes where its key is, and what goes to several nodes comes back as one."""

import asyncio
import inspect
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lisa_common.client.address import read_url
from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.cluster.fanout import Part, is_news, unblock
from lisa_common.client.connection import Connection
from lisa_common.errors import OF_A_NODE, InvalidInput, LisaError, NoGroup, OutcomeUnknown, ServerError, Unreachable
from lisa_common.model.keys import ShardKeys, topics_key, wake_channel
from lisa_common.model.message import Outgoing
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_common.protocol import consuming, producing
from lisa_common.protocol.call import Call, command
from lisa_common.tls import NO_TLS
from lisa_consumer import AsyncConsumer, ConsumerSettings, Delivery
from lisa_manager import AsyncAdmin, ManagerSettings
from lisa_producer import AsyncProducer, Message, ProducerSettings
from support import Server, wait_until_async
from support.cluster import Cluster, spread
from support.commands import Commands
from support.processes import Programs
from support.running import Handled, managed, new_worker, working

pytestmark = [pytest.mark.slow, pytest.mark.long]

Connect = Callable[..., Any]


def send(keys: ShardKeys, *ids: str) -> Call[list[int]]:
    """Sends messages that are due at once."""
    return producing.send(keys, [Outgoing(id, "+0", b"x") for id in ids], repeatable=True)


def read(topics: list[ShardKeys], *, block_ms: int | None = None) -> Call[Any]:
    """Reads topics for a group."""
    return consuming.read(topics, "g", "c", limit=10, block_ms=block_ms)


def ids_of(batches: list[tuple[ShardKeys, list[Any]]]) -> list[str | None]:
    """The messages of a read."""
    return sorted(entry.id for _, entries in batches for entry in entries)


async def bury(cluster: Cluster, topic: str) -> None:
    """Makes a dead letter of a topic, in a group of its own."""
    settings = ConsumerSettings(redis_url=cluster.url)
    async with (
        AsyncProducer(settings=ProducerSettings(redis_url=cluster.url)) as producer,
        AsyncConsumer([topic], "other", settings=settings) as consumer,
    ):
        await consumer.read()
        await producer.send(topic, "x", id="dead")
        while not (found := [each for each in await consumer.read(wait=5) if each.id == "dead"]):
            pass
        await consumer.reject(found[0], error="no money")


async def test_the_programs_serve_topics_on_all_nodes(shared_cluster: Cluster, tmp_path: Path) -> None:
    """Sent, promoted, handled and acked; cancelled, found, listed: as on one server."""
    topics = [keys.topic for keys in spread(shared_cluster, "lisa", of_each=2)]
    programs = Programs(shared_cluster.url, "lisa", tmp_path, topics)
    commands = Commands(shared_cluster.url, "lisa")
    try:
        programs.manager()
        programs.worker()
        async with AsyncProducer(settings=ProducerSettings(redis_url=shared_cluster.url)) as producer:
            for topic in topics:
                await producer.send(topic, "async", id=f"async-{topic}", delay=0.2)
                assert commands.producer("send", topic, "cli", "--id", f"cli-{topic}").code == 0
                await producer.send(topic, "never", id="never", delay=60)
                assert str(await producer.cancel(topic, "never")) == "cancelled"
        wanted = {f"{how}-{topic}": 1 for topic in topics for how in ("async", "cli")}
        await wait_until_async(lambda: programs.journal.ended() == wanted, 20)
        shown = {row["topic"]: row["waiting"] for row in commands.manager("status", "--json").document}
        assert shown == dict.fromkeys(topics, 0)
        assert commands.manager("check").code == 0
        [worker] = commands.manager("worker", "list", "--json").document
        assert (worker["status"], sorted(worker["topics"])) == ("running", sorted(topics))
        assert commands.manager("worker", "list").rows[1][:3] == [worker["name"], "billing", "running"]
        for topic in topics:
            await bury(shared_cluster, topic)
            summary = commands.manager("garbage", "summary", topic)
            assert summary.rows[1][:2] == ["1", "rejected"], summary
    finally:
        programs.close()


async def test_a_node_that_is_slow_is_not_taken_for_one_that_hangs(
    shared_cluster: Cluster, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round trip that opens the connection of a PING waits for a call to end. No call is abandoned."""
    slow = "for _ = 1, 80000000 do end return redis.call('INCR', KEYS[1])"  # 0.3 s or more
    with shared_cluster.master_of("slow").client() as client:
        script = client.script_load(slow)
        began = time.monotonic()
        client.evalsha(script, 1, "slow")
        # By the speed of this machine at this moment.
        patience_s = 4 * (time.monotonic() - began)
        client.delete("slow")
    monkeypatch.setattr("lisa_common.client.cluster.async_cluster.PATIENCE_S", patience_s)
    # A server that has read less than a whole command serves others before it reads on.
    calls = [command("EVALSHA", script, 1, "slow", "x" * 40_000)] * 8
    assert await connect(shared_cluster.url).execute(calls) == list(range(1, 9))


async def test_a_pipeline_over_all_nodes(shared_cluster: Cluster, connect: Connect, prefix: str) -> None:
    """Results come in the order of calls; each node is given the scripts that it lacks."""
    opened = connect(shared_cluster.url)
    topics = spread(shared_cluster, prefix, of_each=2)
    for _ in range(2):
        joins = [consuming.join(keys, "g") for keys in topics]
        sizes = [command("XLEN", keys.of("ready")) for keys in reversed(topics)]
        results = await opened.execute([*joins, command("PING"), *sizes])
        assert (results[len(joins)], results[len(joins) + 1 :]) == (b"PONG", [0] * len(topics))
        for node in shared_cluster.nodes:
            with node.client() as client:
                client.script_flush()
    assert results[: len(joins)] == [False] * len(joins)


async def test_a_wait_follows_its_send(own_cluster: Callable[..., Cluster], connect: Connect) -> None:
    """WAIT asks about what its own connection wrote."""
    cluster = own_cluster(replicas=1)
    opened = connect(cluster.url)
    for keys in spread(cluster, "lisa"):
        assert (await opened.execute([send(keys, "m"), command("WAIT", 1, 2_000)]))[1] == 1


async def test_a_wait_that_began_in_a_pause(own_server: Callable[..., Server]) -> None:
    """It is ended after the pause; servers of some versions would crash if asked before."""
    server = own_server()
    with server.client() as admin, server.client() as reader, Connection(server.url) as opened:
        admin.xgroup_create("stream", "g", mkstream=True)
        client = reader.client_id()
        admin.client_pause(60_000, all=False)
        waiting = asyncio.create_task(asyncio.to_thread(reader.xreadgroup, "g", "c", {"stream": ">"}, block=8_000))
        await wait_until_async(lambda: "b" in of_client(admin, client)["flags"], what="the reader to be held back")
        ending = asyncio.create_task(asyncio.to_thread(opened.execute, unblock(client)))
        await wait_until_async(lambda: admin.info("clients")["blocked_clients"] == 2, what="its end to be put off")
        admin.client_unpause()
        assert ((await ending)[-1], await waiting) == (1, [])


async def test_a_wait_at_a_server_without_memory(own_server: Callable[..., Server]) -> None:
    """It is ended all the same."""
    server = own_server()
    with server.client() as admin, server.client() as reader, Connection(server.url) as opened:
        admin.xgroup_create("stream", "g", mkstream=True)
        client = reader.client_id()
        waiting = asyncio.create_task(asyncio.to_thread(reader.xreadgroup, "g", "c", {"stream": ">"}, block=8_000))
        await wait_until_async(lambda: "b" in of_client(admin, client)["flags"], what="the reader to wait")
        admin.config_set("maxmemory", "1")
        assert (opened.execute(unblock(client))[-1], await waiting) == (1, [])


def of_client(admin: Any, client: int) -> dict[str, Any]:
    """What a server knows of a client of its own."""
    [known] = admin.client_list(client_id=[client])
    found: dict[str, Any] = known
    return found


async def test_a_read_of_more_shards_than_connections(shared_cluster: Cluster, connect: Connect, prefix: str) -> None:
    """Two wait beside each other, on no more connections than there may be, and calls pass."""
    opened, other = connect(shared_cluster.url, max_connections=4), connect(shared_cluster.url)
    topics = spread(shared_cluster, prefix, of_each=10)
    await opened.execute([consuming.join(keys, "g") for keys in topics])
    halves = topics[::2], topics[1::2]
    for keys in topics[:4]:
        reading = [asyncio.create_task(opened.call(read(list(half), block_ms=20_000))) for half in halves]
        # Three of four connections to each node wait.
        await wait_until_async(lambda: shared_cluster.count_waiting() > 3)
        assert shared_cluster.count_waiting() <= 3 * 3 + 1
        assert await opened.call(command("XLEN", keys.of("ready"))) == 0
        await opened.call(send(keys, "b"))
        done, _ = await asyncio.wait(reading, timeout=10, return_when=asyncio.FIRST_COMPLETED)
        assert [ids_of(one.result()) for one in done] == [["b"]]
        for at, one in enumerate(reading):
            if one not in done:
                await other.call(send(halves[at][-1], f"after-{keys.topic}"))
                assert ids_of(await one) == [f"after-{keys.topic}"]
        await other.execute([command("XTRIM", one.of("ready"), "MAXLEN", 0) for one in topics])


async def test_a_read_of_several_nodes(shared_cluster: Cluster, connect: Connect, prefix: str) -> None:
    """It brings what there is of all; it waits while there is nothing, and no longer; nothing of it is left pending."""
    opened, other = connect(shared_cluster.url), connect(shared_cluster.url)
    topics = spread(shared_cluster, prefix, of_each=2)
    await opened.execute([consuming.join(keys, "g") for keys in topics])
    await opened.execute([send(keys, f"{keys.topic}-a") for keys in topics])
    assert ids_of(await opened.call(read(topics, block_ms=5_000))) == sorted(f"{keys.topic}-a" for keys in topics)
    assert await opened.call(read(topics)) == []
    unblocked = shared_cluster.count_calls("client|unblock")
    for keys in topics:
        reading = asyncio.create_task(opened.call(read(topics, block_ms=20_000)))
        await wait_until_async(lambda: shared_cluster.count_waiting() == len(topics))
        async with asyncio.timeout(15):
            await other.call(send(keys, "b"))
            assert ids_of(await reading) == ["b"]
    assert shared_cluster.count_calls("client|unblock") > unblocked
    began = time.monotonic()
    assert await opened.call(read(topics, block_ms=100)) == []
    assert time.monotonic() - began >= 0.1
    pending = await opened.execute([command("XPENDING", keys.of("ready"), "g", "-", "+", 10) for keys in topics])
    assert [len(entries) for entries in pending] == [2] * len(topics)


async def test_what_comes_as_a_read_begins_to_wait(shared_cluster: Cluster, connect: Connect, prefix: str) -> None:
    """It ends the wait at once, as what comes later does; in the least of a moment it is there with the client's id."""
    opened = connect(shared_cluster.url, timeout_s=30)
    topics = spread(shared_cluster, prefix)
    await opened.execute([call for keys in topics for call in (consuming.join(keys, "g"), send(keys, "m"))])
    client: Call[int] = command("CLIENT", "ID")
    parts = [
        Part(("127.0.0.1", node.port), [client, read([keys], block_ms=20_000)])
        for node, keys in zip(shared_cluster.nodes, topics, strict=True)
    ]
    began = time.monotonic()
    racing = opened._server._race(parts)
    answers = await racing if inspect.isawaitable(racing) else racing
    assert (all(map(is_news, answers)), time.monotonic() - began < 15) == (True, True)


async def test_a_topic_without_the_group(shared_cluster: Cluster, connect: Connect, prefix: str) -> None:
    """It does not keep back what others brought; the next read says what is wrong."""
    opened = connect(shared_cluster.url)
    one, other, _ = topics = spread(shared_cluster, prefix)
    await opened.call(consuming.join(one, "g"))
    for block_ms in (None, 5_000):
        await opened.call(send(one, f"m-{block_ms}"))
        assert ids_of(await opened.call(read([other, one], block_ms=block_ms))) == [f"m-{block_ms}"]
        with pytest.raises(NoGroup):
            await opened.call(read(topics, block_ms=block_ms))


async def test_a_node_that_is_away(own_cluster: Callable[..., Cluster], connect: Connect) -> None:
    """Its calls have errors, others their results; with all away the whole fails. All comes back with them."""
    cluster = own_cluster(cluster_require_full_coverage="no", appendonly="yes")
    opened = connect(cluster.url, timeout_s=5)
    topics = spread(cluster, "lisa")
    joins = [consuming.join(keys, "g") for keys in topics]
    assert await opened.execute(joins) == [True] * 3
    await opened.call(send(topics[0], "m"))
    cluster.nodes[2].kill()
    *done, failed = await opened.execute_each(joins)
    assert (done, isinstance(failed, OutcomeUnknown | Unreachable)) == ([False, False], True)
    *done, failed = await opened.execute_each(joins)
    assert (done, type(failed)) == ([False, False], Unreachable)
    assert f":{cluster.nodes[2].port}" in str(failed)
    assert ids_of(await opened.call(read(topics, block_ms=1_000))) == ["m"]
    with pytest.raises(Unreachable):
        await opened.call(read(topics, block_ms=1_000))
    for node in cluster.nodes[:2]:
        node.kill()
    with pytest.raises(LisaError):
        await opened.execute_each(joins)
    with pytest.raises(Unreachable, match=r"no node of the Cluster answers \(.*:\d+: cannot reach Redis .*; .*; .*\)"):
        await opened.call(command("PING"), patience_s=0.2)
    for node in cluster.nodes:
        node.start()
    called = asyncio.create_task(opened.call(joins[2], patience_s=30))
    assert await called is False


async def test_consumers_that_start_while_a_node_is_away(own_cluster: Callable[..., Cluster]) -> None:
    """They read what the other nodes have, also of a topic with a shard there; and that node once it is back."""
    cluster = own_cluster(cluster_require_full_coverage="no", appendonly="yes")
    victim = next(node for node in cluster.nodes if node is not cluster.master_of(topics_key("lisa")))
    lost, *others = sorted(spread(cluster, "lisa"), key=lambda keys: cluster.master_of(keys.of("ready")) is not victim)
    topics = ["wide", *(keys.topic for keys in (lost, *others))]
    settings = ConsumerSettings(redis_url=cluster.url, patience_s=0)
    wide = Layout("lisa", "wide", Policy(shards=16))
    away = {f"m-{n}" for n in range(64) if cluster.master_of(wide.home(f"m-{n}").of("ready")) is victim}

    async def send_and_read(consumer: AsyncConsumer, sent: dict[str, Sequence[str]]) -> None:
        for topic, ids in sent.items():
            await producer.send_many(topic, [Message(body="x", id=id) for id in ids])
        left = {id for ids in sent.values() for id in ids}
        async with asyncio.timeout(30):
            while left:
                with suppress(*OF_A_NODE):
                    left -= {delivery.id for delivery in await consumer.read(wait=0.2)}

    async with (
        AsyncAdmin(url=cluster.url) as admin,
        AsyncProducer(settings=ProducerSettings(redis_url=cluster.url)) as producer,
    ):
        await admin.create_topic("wide", shards=16)
        async with AsyncConsumer(topics, "known", settings=settings) as before:
            await before.read()
        victim.kill()
        handled, worker = Handled(), new_worker(cluster.url, "lisa", "lone")

        @worker.on(lost.topic)
        async def handle(delivery: Delivery) -> None:
            handled.append(delivery)

        async with (
            working(worker),
            AsyncConsumer(topics, "known", settings=settings) as known,
            AsyncConsumer(topics, "new", settings=settings) as new,
        ):
            with suppress(*OF_A_NODE):
                await new.read()
            there = {keys.topic: [keys.topic] for keys in others}
            await send_and_read(known, there | {"wide": [f"m-{n}" for n in range(64) if f"m-{n}" not in away]})
            await send_and_read(new, there)
            victim.start()
            await send_and_read(known, {"wide": [*away], lost.topic: ["back"]})
            while len(await admin.groups(lost.topic)) < 3:
                await new.read(wait=0.2)
            await send_and_read(new, {lost.topic: ["later"]})
            await wait_until_async(lambda: "later" in handled.ids, 20)


async def test_a_caller_may_have_less_patience_than_a_node_has_time(own_cluster: Callable[..., Cluster]) -> None:
    """Who gives up a call, as its node is frozen, learns by the next one that another has taken over."""
    cluster = own_cluster(replicas=1, cluster_require_full_coverage="no")
    keys, *_ = spread(cluster, "lisa")
    master = cluster.master_of(keys.of("ready"))
    async with AsyncConnection(cluster.url, timeout_s=60) as opened:
        await opened.call(send(keys, "before"))
        master.freeze()
        await asyncio.to_thread(cluster.wait_for_another_master, keys.of("ready"), master)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await opened.call(send(keys, "given up"))
        async with asyncio.timeout(20):
            assert await opened.call(send(keys, "after"))


async def test_patience_repeats_only_what_was_not_done(own_cluster: Callable[..., Cluster], connect: Connect) -> None:
    """A call that was made is not made again because another of the same pipeline was refused."""
    cluster = own_cluster(cluster_require_full_coverage="no")
    opened = connect(cluster.url)
    topics = spread(cluster, "lisa")
    bump = [command("INCR", keys.of("ready"), repeatable=False) for keys in topics]
    assert await opened.run(flow_of(bump)) == [1, 1, 1]
    with cluster.nodes[2].client() as client:
        client.config_set("maxmemory", "1")
    bumping = asyncio.create_task(opened.run(flow_of(bump), patience_s=30))
    with cluster.nodes[0].client() as client:
        await wait_until_async(lambda: client.get(topics[0].of("ready")) == b"2")
    with cluster.nodes[2].client() as client:
        await wait_until_async(lambda: client.info("errorstats").get("errorstat_OOM"))
        client.config_set("maxmemory", "0")
    assert await bumping == [2, 2, 2]


def flow_of(calls: list[Call[Any]]) -> Any:
    """A flow of one pipeline."""
    return (yield calls)


async def test_wakes_are_heard_from_all_nodes(own_cluster: Callable[..., Cluster]) -> None:
    """Whichever node is published at; and when the one that is listened at has died, another is found."""
    cluster = own_cluster(cluster_require_full_coverage="no")
    channel = wake_channel("lisa")
    async with AsyncConnection(cluster.url) as opened:
        listening = opened.listen(channel)
        assert await anext(listening) is None
        for node in cluster.nodes:
            with node.client() as client:
                client.publish(channel, str(node.port))
            assert await next_heard(listening) == str(node.port).encode()
        home = next(node for node in cluster.nodes if listens(node, channel))
        home.kill()
        with pytest.raises(LisaError):
            await next_heard(listening)
        listening = opened.listen(channel)
        assert await anext(listening) is None
        await listening.aclose()


async def next_heard(listening: Any) -> bytes:
    """The next message."""
    async for heard in listening:
        if heard is not None:
            return bytes(heard)
    raise AssertionError


def listens(node: Any, channel: str) -> bool:
    """Whether anybody is subscribed at a node."""
    with node.client() as client:
        return dict(client.pubsub_numsub(channel))[channel.encode()] == 1


async def test_passwords(own_cluster: Callable[..., Cluster], connect: Connect) -> None:
    """The URL's are given to every node, and told to nobody."""
    cluster = own_cluster(requirepass="secret", masterauth="secret")
    topics = spread(cluster, "lisa")
    joins = [consuming.join(keys, "g") for keys in topics]
    assert await connect(cluster.url_of(":secret@")).execute(joins) == [True] * 3
    with pytest.raises(ServerError, match="Redis denies access") as caught:
        await connect(cluster.url_of(":guessed@")).execute(joins)
    assert "guessed" not in str(caught.value)


async def test_a_url_of_one_node_alone(shared_cluster: Cluster, connect: Connect, prefix: str) -> None:
    """One node of a Cluster is no server: the error says which URL is right."""
    opened = connect(f"redis://127.0.0.1:{shared_cluster.nodes[0].port}")
    *_, elsewhere = spread(shared_cluster, prefix)
    with pytest.raises(ServerError, match=r"its URL begins with redis\+cluster://"):
        await opened.call(consuming.join(elsewhere, "g"))


async def test_a_server_that_is_no_cluster(own_server: Callable[..., Server], connect: Connect) -> None:
    """And the other way round."""
    opened = connect(own_server().url.replace("redis://", "redis+cluster://"))
    with pytest.raises(Unreachable, match="cluster support disabled"):
        await opened.call(command("PING"))


@pytest.mark.parametrize("kind", [Connection, AsyncConnection])
@pytest.mark.parametrize(
    ("url", "limit"),
    [
        ("redis+cluster://", "with a host for each node"),
        ("redis+cluster://host,", "with a host for each node"),
        ("redis+cluster://host,other:no", "whose port is a number"),
        ("redis+cluster://host/1", "a Cluster has no databases"),
        ("redis+cluster://host?db=2", "a Cluster has no databases"),
        ("redis+cluster://host?colour=red", "only options that the Redis client knows"),
        ("redis+cluster://u:s@cret@host,other:70000", "whose port is a number"),
    ],
)
def test_wrong_urls(kind: type[Connection], url: str, limit: str) -> None:
    """They are refused before anything is tried, without their passwords."""
    with pytest.raises(InvalidInput, match=rf"^redis_url must be .*{limit}.*; got ") as caught:
        kind(url)
    assert "cret" not in str(caught.value)


def test_all_that_a_url_may_say() -> None:
    """Ports are 6379 by default; names and passwords may be escaped; database 0 is what there is."""
    address = read_url("redis+cluster://jo%40:p%2F@[::1]:5,host/0?socket_timeout=3", NO_TLS)
    assert address.nodes == (("::1", 5), ("host", 6379))
    node = address.of(("::1", 5))
    assert (node.scheme, node.shown, node.nodes) == ("redis", "redis://[::1]:5", ())
    assert node.options == {"username": "jo@", "password": "p/", "socket_timeout": 3.0, "host": "::1", "port": 5}
    assert address.shown == "redis+cluster://jo%40:***@[::1]:5,host/0?socket_timeout=3"


async def test_dead_letters_go_to_topics_on_other_nodes(shared_cluster: Cluster) -> None:
    """From each node to each other one, and to a topic of shards on all of them."""
    sources = [keys.topic for keys in spread(shared_cluster, "letters", of_each=2)]
    targets = [*sources[1:], "sharded"]
    async with (
        AsyncAdmin(settings=ManagerSettings(redis_url=shared_cluster.url, prefix="letters")) as admin,
        AsyncProducer(settings=ProducerSettings(redis_url=shared_cluster.url, prefix="letters")) as producer,
        managed(shared_cluster.url, "letters"),
    ):
        await admin.create_topic("sharded", shards=6)
        for source, target in zip(sources, targets, strict=True):
            await admin.set_policy(source, ttl_ms=1, dead_letter_topic=target, expire_idle_ms=3_600_000)
        for number in range(20):
            await producer.send(sources[0], "x", id=f"m{number}")

        async def arrived() -> bool:
            [sizes] = await admin.sizes("sharded")
            return sizes.stored == 20

        await wait_until_async(arrived, 60)
        hops = await admin.trace(sources[0], "m7")
        assert [hop.topic for hop in hops if hop.found.record] == ["sharded"]
        [found] = [hop.found for hop in hops if hop.found.record]
        assert [death.queue for death in reversed(found.deaths)] == sources
        await wait_until_async(lambda: _all_unused(admin, sources), 60)
        assert (await admin.check()).is_clean


async def _all_unused(admin: AsyncAdmin, topics: list[str]) -> bool:
    return all(status.unused_ms is not None for status in await admin.status() if status.topic in topics)
