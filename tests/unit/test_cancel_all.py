"""Tasks that are hard to cancel."""

import asyncio
from contextlib import suppress

from lisa_common.aio import cancel_all


async def test_a_lost_cancellation_is_repeated() -> None:
    """A task that swallows a cancellation, as `wait_for` does in Python 3.11, is cancelled until it ends."""
    lost = []

    async def stubborn() -> None:
        for _ in range(2):
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            lost.append("one")
        await asyncio.Event().wait()

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await cancel_all(task)
    assert task.cancelled()
    assert lost == ["one", "one"]


async def test_tasks_that_have_ended_are_no_matter() -> None:
    """Neither a result nor an error of a task is raised, or told of later as never retrieved."""

    async def fail() -> None:
        raise ValueError("boom")

    ended, failed = asyncio.create_task(asyncio.sleep(0)), asyncio.create_task(fail())
    await asyncio.sleep(0)
    await cancel_all(ended, failed)
    await cancel_all()
    assert ended.done()
    assert failed.done()
