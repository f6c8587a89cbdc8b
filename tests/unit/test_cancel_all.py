"""Tasks that are hard to cancel."""

import asyncio
from contextlib import suppress

from lisa_common.client.async_progress import hardened
from lisa_common.client.async_tasks import cancel_all


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


class _WritesAtOnce:
    """A connection that writes as the client does in Python 3.11: a cancellation beside the success is lost."""

    async def send_packed_command(self, writer: "asyncio.Task[None]") -> None:
        writer.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)


async def test_a_cancellation_beside_a_write_is_not_lost() -> None:
    """A task that lost it would go on for ever in a task group, which cancels its tasks once."""
    connection = hardened(_WritesAtOnce)()

    async def write() -> None:
        await connection.send_packed_command(asyncio.current_task())
        await asyncio.Event().wait()

    task = asyncio.create_task(write())
    await asyncio.wait({task}, timeout=1)
    assert task.cancelled()
