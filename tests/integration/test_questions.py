"""Commands that ask first do what they asked about, and leave what came while the question was open."""

import asyncio
import os
import pty
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from lisa_manager import AsyncAdmin, GarbageFilter, WaitingFilter
from lisa_producer import AsyncProducer
from support.site import Site


@asynccontextmanager
async def _asked(url: str, prefix: str, question: bytes, *words: str) -> AsyncIterator[None]:
    """Runs `lisa-manager` at a terminal, and says yes to its question after the block."""
    terminal, its_end = pty.openpty()
    env = {**os.environ, "LISA_REDIS_URL": url, "LISA_PREFIX": prefix}
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "lisa_manager", *words), stdin=its_end, stderr=asyncio.subprocess.PIPE, env=env
    )
    os.close(its_end)
    assert program.stderr
    async with asyncio.timeout(30):
        told = await program.stderr.readuntil(b"[y/N]")
    assert question in told
    yield
    os.write(terminal, b"y\n")
    async with asyncio.timeout(30):
        assert await program.wait() == 0
    os.close(terminal)


async def _bury(sender: AsyncProducer, consumer: Any, *ids: str) -> None:
    for id in ids:
        await sender.send("orders", "x", id=id)
    left = len(ids)
    while left:
        deliveries = await consumer.read(wait=30)
        await consumer.reject(*deliveries, error="e")
        left -= len(deliveries)


async def test_what_dies_while_a_purge_asks_stays(
    *, redis_url: str, prefix: str, sender: AsyncProducer, admin: AsyncAdmin, reading: Any
) -> None:
    """Whatever the filters are."""
    await admin.create_topic("orders")
    consumer = reading("orders")
    await consumer.read()
    for options in ((), ("--since", "1h")):
        await _bury(sender, consumer, "a", "b", "c")
        words = ("garbage", "purge", "orders", "--all", *options)
        async with _asked(redis_url, prefix, b"Delete 3 dead letters", *words):
            await _bury(sender, consumer, "d", "e")
        assert {letter.id for letter in (await admin.garbage("orders")).letters} == {"d", "e"}
        assert (await admin.purge_all("orders")).done == 2


async def test_what_is_sent_while_a_cancel_asks_stays(
    redis_url: str, prefix: str, sender: AsyncProducer, site: Site
) -> None:
    """It was not counted."""
    await sender.send("orders", "x", id="a", delay=3_600)
    async with _asked(redis_url, prefix, b"Cancel 1 waiting messages", "cancel", "orders", "--all"):
        await sender.send("orders", "x", id="b", delay=3_600)
    assert site.ids("orders") == {"b"}


async def test_a_filter_of_a_moment_selects_the_same_later(
    sender: AsyncProducer, admin: AsyncAdmin, reading: Any
) -> None:
    """In counts, lists, replays and cancels."""
    await admin.create_topic("orders")
    consumer = reading("orders")
    await consumer.read()
    await _bury(sender, consumer, "a")
    await sender.send("orders", "x", id="waits", delay=3_600)
    last = await admin.server_time()
    while (as_of := await admin.server_time()) == last:
        continue
    where = GarbageFilter(older_than=0, since=3_600, as_of=as_of)
    await _bury(sender, consumer, "b")
    await sender.send("orders", "x", id="later", delay=3_600)
    assert (await admin.count_garbage("orders"), await admin.count_garbage("orders", where)) == (2, 1)
    assert [letter.id for letter in (await admin.garbage("orders", where)).letters] == ["a"]
    assert (await admin.replay_all("orders", where)).done == 1
    assert (await admin.cancel_many("orders", WaitingFilter(as_of=as_of))).done == 1
    assert [message.id for message in (await admin.messages("orders", "waiting")).messages] == ["later"]
