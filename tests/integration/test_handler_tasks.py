"""Calls of handlers: each has a task and context variables of its own."""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from lisa_common.model.policy import Policy
from lisa_consumer import Delivery
from lisa_producer import AsyncProducer, Message
from support import wait_until_async
from support.running import Handled, new_worker, working

seen: ContextVar[object] = ContextVar("seen", default=None)


def _current() -> "asyncio.Task[Any]":
    task = asyncio.current_task()
    assert task
    return task


@pytest.mark.parametrize("waits", [False, True])
async def test_no_call_sees_what_another_has_left(
    redis_url: str, prefix: str, sender: AsyncProducer, *, waits: bool
) -> None:
    """Neither context variables nor what a library keeps on the task, of calls that begin together."""
    worker, met, tasks = new_worker(redis_url, prefix), list[object](), list["asyncio.Task[Any]"]()

    @worker.on("orders")
    async def handle(delivery: Delivery) -> None:
        task: Any = _current()
        met.append((seen.get(), getattr(task, "tenant", None), task.get_name()))
        seen.set(delivery.id)
        task.tenant = delivery.id
        tasks.append(task)
        if waits:
            await asyncio.sleep(0)
            assert seen.get() == delivery.id

    await sender.send_many("orders", [Message(body=b"x") for _ in range(20)])
    async with working(worker):
        await wait_until_async(lambda: len(met) == 20)
    assert set(met) == {(None, None, "lisa-handler")}
    assert len(set(map(id, tasks))) == 20


async def test_a_call_that_cancels_its_own_task_reaches_no_other(
    redis_url: str, prefix: str, sender: AsyncProducer
) -> None:
    """The cancellation comes at its next wait, of which it has none."""
    worker, handled = new_worker(redis_url, prefix), Handled()

    @worker.on("orders")
    async def handle(delivery: Delivery) -> None:
        if delivery.id == "first":
            _current().cancel()
            return
        await asyncio.sleep(0)
        handled.append(delivery)

    await sender.send_many("orders", [Message(body=b"x", id=id) for id in ("first", "second", "third")])
    async with working(worker):
        await wait_until_async(lambda: len(handled) == 2)


async def test_calls_whose_tasks_are_cancelled_before_they_begin_come_again(
    redis_url: str, prefix: str, sender: AsyncProducer, declare: Callable[..., Policy]
) -> None:
    """As by a supervisor that cancels all handlers but its own: their slots come free, and they spend no attempt."""
    declare(visibility_ms=300)
    worker, handled = new_worker(redis_url, prefix, concurrency=4), Handled()

    @worker.on("orders")
    async def handle(delivery: Delivery) -> None:
        handled.append(delivery)
        if len(handled) == 1:
            for task in asyncio.all_tasks() - {_current()}:
                if task.get_name() == _current().get_name():
                    task.cancel()

    await sender.send_many("orders", [Message(body=b"x", id=f"m{n}") for n in range(8)])
    async with working(worker):
        await wait_until_async(lambda: {*handled.ids} == {f"m{n}" for n in range(8)})
    assert {delivery.attempt for delivery in handled} == {1}
    assert len(handled) == 8


async def test_a_task_factory_creates_the_tasks_of_handlers(redis_url: str, prefix: str, sender: AsyncProducer) -> None:
    """What is kept for a task, such as a span, is of one call then."""
    worker, created, loop = new_worker(redis_url, prefix), list["asyncio.Task[Any]"](), asyncio.get_running_loop()
    handled = Handled()

    def create(_: object, coro: Any, **options: Any) -> "asyncio.Task[Any]":
        created.append(task := asyncio.Task(coro, loop=loop, **options))
        return task

    @worker.on("orders")
    async def handle(delivery: Delivery) -> None:
        assert _current() in created
        handled.append(delivery)

    await sender.send_many("orders", [Message(body=b"x") for _ in range(4)])
    loop.set_task_factory(create)
    async with working(worker):
        await wait_until_async(lambda: len(handled) == 4)
