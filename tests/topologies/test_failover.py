"""A master that dies, hangs or is demoted under load: the programs go on, and nothing that was confirmed is lost."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.connection import Connection
from lisa_common.errors import LisaError
from lisa_common.protocol.call import command
from lisa_producer import AsyncProducer, Confirm, Producer, ProducerSettings
from support import Server, wait_until_async
from support.processes import Programs
from support.proxy import Proxy
from support.sentinel import SentinelGroup
from support.twins import InThread

pytestmark = [pytest.mark.slow, pytest.mark.long]

CONFIRM = Confirm(replicas=1, timeout=2)


class _Load:
    """Sends one message after the other, and keeps what was confirmed and what was not."""

    def __init__(self, name: str, producer: Any) -> None:
        self._name = name
        self._producer = producer
        self._stopping = False
        self.confirmed: list[str] = []
        self.told: Counter[str] = Counter()

    async def run(self) -> None:
        number = 0
        while not self._stopping:
            number += 1
            id = f"{self._name}-{number}"
            try:
                await self._producer.send("orders", b"x", id=id, delay=0.1)
            except LisaError as error:
                self.told[type(error).__name__] += 1
            else:
                self.confirmed.append(id)
        await self._producer.close()

    def stop(self) -> None:
        self._stopping = True


async def test_a_fail_over_under_load(group: SentinelGroup, tmp_path: Path) -> None:
    """The master is killed: sends, a manager and a worker go on by themselves; what was confirmed is handled."""
    programs = Programs(group.url, "lisa", tmp_path)
    settings = ProducerSettings(redis_url=group.url)
    loads = [
        _Load("blocking", InThread(Producer(settings=settings, confirm=CONFIRM))),
        _Load("asyncio", AsyncProducer(settings=settings, confirm=CONFIRM)),
    ]
    running = [asyncio.create_task(load.run()) for load in loads]
    try:
        started = await asyncio.to_thread(lambda: [programs.manager(), programs.worker()])
        await wait_until_async(programs.journal.ended, 60)
        master = group.master
        master.kill()
        await asyncio.to_thread(group.wait_for_another_master, master)
        for load in loads:
            before = len(load.confirmed)
            await wait_until_async(lambda load=load, before=before: len(load.confirmed) > before + 50, 60)
    finally:
        for load in loads:
            load.stop()
        await asyncio.gather(*running)
    try:
        confirmed = {id for load in loads for id in load.confirmed}
        await wait_until_async(lambda: confirmed <= programs.journal.ended().keys(), 60)
        assert [program.code for program in started] == [None, None]
    finally:
        programs.close()
    # Between the two, a new master may have no replica yet.
    assert all(load.told.keys() <= {"NotConfirmed"} for load in loads)


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
async def test_a_master_that_hangs_holds_up_one_call_only(group: SentinelGroup, kind: str) -> None:
    """Once a call has waited in vain, none is made over the connections that lead where it was made."""
    width, timeout_s = 4, 15
    opened: Any = (
        InThread(Connection(group.url, timeout_s=timeout_s))
        if kind == "blocking"
        else AsyncConnection(group.url, timeout_s=timeout_s)
    )
    try:
        await asyncio.gather(*(opened.call(command("BLPOP", "nothing", "0.3")) for _ in range(width)))
        master = group.master
        master.freeze()
        await asyncio.to_thread(group.wait_for_another_master, master)
        assert await opened.call(command("SET", "key", "1"), patience_s=60) == b"OK"
        # One that was made over such a connection would wait for the whole timeout.
        async with asyncio.timeout(timeout_s - 3):
            told = await asyncio.gather(*(opened.call(command("BLPOP", "nothing", "0.3")) for _ in range(width)))
        assert told == [None] * width
    finally:
        await opened.close()


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
async def test_a_demoted_master_is_left(own_server: Callable[..., Server], kind: str) -> None:
    """READONLY means that nothing was done here, and that the same address may lead to the master by now."""
    master, other = own_server(), own_server()
    async with Proxy(master.port) as proxy:
        opened: Any = InThread(Connection(proxy.url)) if kind == "blocking" else AsyncConnection(proxy.url)
        write = command("INCR", "writes", repeatable=False)
        try:
            assert await opened.call(write) == 1
            with master.client() as client:
                client.replicaof("127.0.0.1", other.port)
            proxy.lead_to(other.port)
            assert await opened.call(write, patience_s=20) == 1
        finally:
            await opened.close()
    with other.client() as client:
        assert client.get("writes") == b"1"
