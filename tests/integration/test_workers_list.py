"""Operators see all workers, and pause, resume and drain one."""

import asyncio
from collections.abc import Callable

import pytest
import redis

from lisa_common.errors import InvalidInput, UnknownWorker
from lisa_common.model.keys import wishes_key, workers_key
from lisa_consumer import ConsumerSettings, Delivery, Worker
from lisa_manager import AsyncAdmin, WorkerState, WorkerStatus
from lisa_producer import AsyncProducer, State
from support.commands import Commands, Ran
from support.running import hang, new_worker, working
from support.waiting import wait_until_async


def _named(url: str, prefix: str, name: str | None, group: str = "billing", **settings: str) -> Worker:
    given = ConsumerSettings(redis_url=url, prefix=prefix, block_s=0.1, drain_s=5, **settings)
    worker = Worker(group, name=name, settings=given)

    @worker.on("orders")
    async def handle(_: Delivery) -> None:
        """Does nothing."""

    return worker


async def _status_is(admin: AsyncAdmin, name: str, status: WorkerStatus) -> WorkerState:
    async def is_so() -> bool:
        return (await admin.worker(name)).status is status

    await wait_until_async(is_so)
    return await admin.worker(name)


async def test_a_worker_says_who_it_is_and_what_it_does(
    redis_url: str, prefix: str, sender: AsyncProducer, admin: AsyncAdmin, commands: Commands
) -> None:
    """From its start; handlers that run for long with their ages, until the worker ends."""
    worker = new_worker(redis_url, prefix, release="1.4.2")
    gate = asyncio.Event()
    hang(worker, "orders", gate)
    assert await admin.workers() == []
    async with working(worker):
        await wait_until_async(admin.workers)
        [state] = await admin.workers()
        assert (state.name, state.group, state.topics, state.status) == (worker.name, "billing", ("orders",), "running")
        assert (state.release, state.held, state.handlers, state.wish) == ("1.4.2", 0, (), None)
        assert (await admin.workers(topic="orders", group="billing")) != []
        assert (await admin.workers(topic="other")) == (await admin.workers(group="mail")) == []
        await sender.send("orders", b"x", id="a")

        async def shows_handler() -> bool:
            [state] = await admin.workers()
            return bool(state.handlers)

        await wait_until_async(shows_handler)
        [state] = await admin.workers()
        [handler] = state.handlers
        assert (handler.topic, handler.id, state.running, state.held) == ("orders", "a", 1, 1)
        assert state.read_ms - handler.since_ms >= 1_000
        listed = await asyncio.to_thread(commands.manager, "worker", "list", "--json")
        assert [(each["name"], each["handlers"][0]["id"]) for each in listed.document] == [(worker.name, "a")]
        row = (await asyncio.to_thread(commands.manager, "worker", "list")).out.splitlines()[1]
        assert row.startswith(worker.name)
        assert "orders/a" in row
        shown = (await asyncio.to_thread(commands.manager, "worker", "show", worker.name)).out
        assert "release    1.4.2\n" in shown
        gate.set()
    assert await admin.workers() == []


async def test_a_pause_and_its_end_from_afar(
    redis_url: str, prefix: str, sender: AsyncProducer, admin: AsyncAdmin, commands: Commands
) -> None:
    """A paused worker begins nothing; what it has is for others."""
    worker, handled = new_worker(redis_url, prefix), asyncio.Queue[str]()

    @worker.on("orders")
    async def handle(delivery: Delivery) -> None:
        handled.put_nowait(delivery.id)

    async with working(worker):
        await wait_until_async(admin.workers)
        ran = await asyncio.to_thread(commands.manager, "worker", "pause", worker.name)
        assert ran.out == f"{worker.name} pauses within a second or two\n"
        state = await _status_is(admin, worker.name, WorkerStatus.PAUSED)
        assert state.wish == "pause"
        assert worker.is_paused
        worker.resume()
        assert worker.is_paused
        await sender.send("orders", b"x", id="a")
        other = _named(redis_url, prefix, None)
        await other.serve(burst=True)
        assert handled.empty()
        await sender.send("orders", b"x", id="b")
        ran = await asyncio.to_thread(commands.manager, "worker", "resume", worker.name)
        assert ran.out == f"{worker.name} resumes within a second or two\n"
        async with asyncio.timeout(30):
            assert await handled.get() == "b"
        assert not worker.is_paused
        assert await admin.resume_worker(worker.name) is False


async def test_a_drain_from_afar(redis_url: str, prefix: str, admin: AsyncAdmin, client: redis.Redis) -> None:
    """The worker ends; a successor of the same name does not."""
    worker = _named(redis_url, prefix, "billing-1")
    serving = asyncio.create_task(worker.serve())
    await wait_until_async(admin.workers)
    await admin.drain_worker("billing-1")
    async with asyncio.timeout(30):
        await serving
    assert client.hgetall(workers_key(prefix)) == {}
    async with working(_named(redis_url, prefix, "billing-1")):
        await wait_until_async(admin.workers)
        assert (await admin.worker("billing-1")).wish is None
        assert await admin.resume_worker("billing-1") is False


@pytest.mark.parametrize("name", ["billing-1", None])
async def test_a_pause_is_for_successors_of_the_same_name(
    *, redis_url: str, prefix: str, admin: AsyncAdmin, sender: AsyncProducer, client: redis.Redis, name: str | None
) -> None:
    """A worker whose code names it starts paused, before it reads anything; others have new names each time."""
    async with working(first := _named(redis_url, prefix, name)):
        await wait_until_async(admin.workers)
        await admin.pause_worker(first.name)
        await _status_is(admin, first.name, WorkerStatus.PAUSED)
    with pytest.raises(UnknownWorker):
        await admin.pause_worker(first.name)
    await sender.send("orders", b"x", id="m")
    second = _named(redis_url, prefix, name)
    async with working(second):
        await wait_until_async(admin.workers)
        assert second.is_paused is (name is not None)
        if name:
            await _status_is(admin, name, WorkerStatus.PAUSED)
            found = await sender.find("orders", "m")
            assert found
            assert (found.state, found.attempts) == (State.READY, 0)
    assert await admin.resume_worker(first.name)
    async with working(third := _named(redis_url, prefix, name)):
        await wait_until_async(admin.workers)
        assert not third.is_paused
        await admin.pause_worker(third.name)
    assert len(client.hgetall(wishes_key(prefix))) == 1


@pytest.mark.parametrize("order", ["pause, drain", "drain, pause"])
async def test_a_drain_ends_no_pause(
    *, redis_url: str, prefix: str, admin: AsyncAdmin, client: redis.Redis, order: str
) -> None:
    """The worker ends, in whatever order both are asked; its successor starts paused, until it is resumed."""
    asks = {"pause": admin.pause_worker, "drain": admin.drain_worker}
    worker = _named(redis_url, prefix, "billing-1")
    serving = asyncio.create_task(worker.serve())
    await wait_until_async(admin.workers)
    wishes = [(await asks[each]("billing-1")).wish for each in order.split(", ")]
    assert wishes[-1] == "drain"
    async with asyncio.timeout(30):
        await serving
    async with working(second := _named(redis_url, prefix, "billing-1")):
        await wait_until_async(admin.workers)
        assert second.is_paused
        assert (await _status_is(admin, "billing-1", WorkerStatus.PAUSED)).wish == "pause"
        assert await admin.resume_worker("billing-1")
        await _status_is(admin, "billing-1", WorkerStatus.RUNNING)
        assert not await admin.resume_worker("billing-1")
        await admin.pause_worker("billing-1")
    assert client.hgetall(wishes_key(prefix)) == {b"billing/billing-1": b"pause"}


async def test_a_worker_with_a_generated_name_is_paused_and_drained(
    redis_url: str, prefix: str, admin: AsyncAdmin
) -> None:
    """It ends, also if the pause is asked after the drain."""
    worker = _named(redis_url, prefix, None)
    serving = asyncio.create_task(worker.serve())
    await wait_until_async(admin.workers)
    await admin.drain_worker(worker.name)
    assert (await admin.pause_worker(worker.name)).wish == "drain"
    async with asyncio.timeout(30):
        await serving


async def test_outdated_wishes_go(redis_url: str, prefix: str, admin: AsyncAdmin, client: redis.Redis) -> None:
    """Those for workers that have ended, and have no successors."""
    for _ in range(3):
        async with working(worker := _named(redis_url, prefix, None)):
            await wait_until_async(admin.workers)
            await admin.pause_worker(worker.name)
    assert len(client.hgetall(wishes_key(prefix))) == 1


async def test_names_that_are_not_clear_are_refused(redis_url: str, prefix: str, admin: AsyncAdmin) -> None:
    """Unknown ones, and those that workers of two groups have."""
    async with working(_named(redis_url, prefix, "w"), _named(redis_url, prefix, "w", "mail")):

        async def are_two() -> bool:
            return len(await admin.workers()) == 2

        await wait_until_async(are_two)
        for method in (admin.pause_worker, admin.resume_worker, admin.drain_worker, admin.worker):
            with pytest.raises(InvalidInput, match="group must be one of billing, mail for worker w; got None"):
                await method("w")
            with pytest.raises(UnknownWorker, match="there is no worker 'v'"):
                await method("v")
            with pytest.raises(InvalidInput, match="worker must be"):
                await method("a/b")
        await admin.pause_worker("w", group="mail")
        assert {state.group: state.wish for state in await admin.workers()} == {"billing": None, "mail": "pause"}
        assert await admin.resume_worker("w", group="mail")


async def test_a_stuck_and_a_killed_worker_are_told(
    *,
    redis_url: str,
    prefix: str,
    sender: AsyncProducer,
    admin: AsyncAdmin,
    client: redis.Redis,
    declare: Callable[..., object],
) -> None:
    """The first by its own word, the second by its silence; damaged values are left out."""
    declare("orders", visibility_ms=200)
    worker, gate = new_worker(redis_url, prefix, concurrency=1), asyncio.Event()
    hang(worker, "orders", gate, concurrency=1)
    async with working(worker):
        for number in range(3):
            await sender.send("orders", b"x", id=f"m{number}")
        await wait_until_async(admin.workers)
        state = await _status_is(admin, worker.name, WorkerStatus.STUCK)
        assert "topic orders is stuck for" in state.problem
        field, value = client.hgetall(workers_key(prefix)).popitem()
        gate.set()
    old = WorkerState.model_validate_json(value).model_copy(update={"seen_ms": state.read_ms - 60_000})
    client.hset(workers_key(prefix), field, old.model_dump_json())
    client.hset(workers_key(prefix), "billing/damaged", b"{}")
    client.hset(workers_key(prefix), "billing/other", old.model_dump_json())
    [state] = await admin.workers()
    assert (state.status, state.status_since_ms) == (WorkerStatus.SILENT, old.seen_ms)


async def test_a_list_of_a_name_that_is_misspelt(
    redis_url: str, prefix: str, admin: AsyncAdmin, commands: Commands
) -> None:
    """An error with the near name; a topic or group that has no workers is none."""
    for topic in ("mails", "orders"):
        await admin.create_topic(topic)

    async def listed(*words: str) -> tuple[int, str]:
        ran = await asyncio.to_thread(commands.manager, "worker", "list", *words)
        return ran.code, ran.err or ran.out

    async with working(_named(redis_url, prefix, "worker-1")):
        await wait_until_async(admin.workers)
        assert await listed("--topic", "nosuch") == (2, "lisa-manager: there is no topic 'nosuch'\n")
        assert (await listed("--topic", "oders"))[1].endswith("'oders'; did you mean 'orders'?\n")
        assert await listed("--topic", "mails") == await listed("--group", "audit") == (0, "no workers\n")
        told = "lisa-manager: group 'biling' has no workers; did you mean 'billing'?\n"
        assert await listed("--group", "biling") == (2, told)
        assert "did you mean 'billing'" in (await listed("--topic", "orders", "--group", "biling"))[1]


async def test_one_misspelt_worker_of_several(redis_url: str, prefix: str, admin: AsyncAdmin) -> None:
    """Nothing is asked of the others where the exit code says that nothing was done; a resume says what was."""

    async def run(*words: str) -> Ran:
        return await asyncio.to_thread(Commands(redis_url, prefix).manager, "worker", *words)

    async with working(_named(redis_url, prefix, "worker-1")):
        await wait_until_async(admin.workers)
        for command in ("pause", "drain"):
            assert (await run(command, "worker-1", "wroker-1")).code == 2
            assert (await admin.worker("worker-1")).wish is None
        paused = await run("pause", "worker-1", "--json")
        assert [each["name"] for each in paused.document] == ["worker-1"]
        ran = await run("resume", "wroker-1", "worker-1", "--json")
        assert (ran.code, ran.document) == (1, [{"worker": "worker-1", "resumed": True}])
        assert "there is no worker 'wroker-1'" in ran.err


@pytest.mark.parametrize("command", ["pause", "drain", "resume", "show"])
async def test_a_worker_that_is_misspelt(redis_url: str, prefix: str, admin: AsyncAdmin, command: str) -> None:
    """Nothing is asked of any worker; the error has the near name."""
    async with working(_named(redis_url, prefix, "worker-1")):
        await wait_until_async(admin.workers)
        ran = await asyncio.to_thread(Commands(redis_url, prefix).manager, "worker", command, "wroker-1")
        assert (ran.code, ran.out) == (2, "")
        assert ran.err == "lisa-manager: there is no worker 'wroker-1'; did you mean 'worker-1'?\n"
        assert (await admin.worker("worker-1")).wish is None
