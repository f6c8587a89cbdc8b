"""One asyncio client in several event loops: each has connections of its own, and nothing is sent twice."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from lisa_common.errors import Closed, LisaError
from lisa_consumer import AckOutcome, AsyncConsumer, AsyncLender, AsyncSettler, ConsumerSettings, Held, Worker
from lisa_manager import Admin, AsyncAdmin, ManagerSettings
from lisa_producer import AsyncProducer, Message, SendOutcome
from lisa_producer.settings import ProducerSettings
from support import Server, wait_until


def test_a_loop_for_each_task(own_server: Callable[..., Server]) -> None:
    """As with an `asyncio.run` for each task: each message is sent once, and no connection is left."""
    server = own_server()
    producer = AsyncProducer(server.url)

    async def task(n: int) -> None:
        sent = await asyncio.gather(*(producer.send("mails", b"x", delay=60) for _ in range(3)))
        assert {each.outcome for each in sent} == {SendOutcome.SENT}
        report = await producer.send_many("mails", [Message(body=b"x", delay=60, id=f"{n}-{m}") for m in range(2)])
        assert report.sent == 2

    with server.client() as client:
        before = len(client.client_list())
        for n in range(5):
            asyncio.run(task(n))
        wait_until(lambda: len(client.client_list()) == before, what="connections to end with their loops")
    with Admin(server.url) as admin:
        assert admin.sizes()[0].waiting == 25


def test_loops_of_several_threads(own_server: Callable[..., Server]) -> None:
    """At the same time: a client is safe to share among loops that run in threads."""
    server = own_server()
    producer = AsyncProducer(server.url)

    async def task() -> int:
        return len(await asyncio.gather(*(producer.send("mails", b"x", delay=60) for _ in range(50))))

    with ThreadPoolExecutor(8) as threads:
        assert sum(each.result() for each in [threads.submit(asyncio.run, task()) for _ in range(16)]) == 800
    with Admin(server.url) as admin:
        assert admin.sizes()[0].waiting == 800


def test_a_loop_that_ended_in_the_middle(own_server: Callable[..., Server]) -> None:
    """A loop that ends while calls are under way leaves nothing that a later loop would wait for."""
    producer = AsyncProducer(own_server().url)
    tasks = []

    async def leave() -> None:
        tasks.extend(asyncio.create_task(producer.send("mails", b"x", delay=60)) for _ in range(3))
        await asyncio.sleep(0)

    asyncio.run(leave())
    assert all(task.cancelled() for task in tasks)
    assert asyncio.run(_send(producer)) is SendOutcome.SENT


async def _send(producer: AsyncProducer) -> SendOutcome:
    return (await producer.send("mails", b"x", delay=60)).outcome


def test_all_clients(redis_url: str, prefix: str) -> None:
    """Each client goes on in a second loop, and says in a third that it was closed."""
    settings = ConsumerSettings(redis_url=redis_url, prefix=prefix)
    producer = AsyncProducer(settings=ProducerSettings(redis_url=redis_url, prefix=prefix))
    consumer = AsyncConsumer("mails", "billing", settings=settings)
    lender = AsyncLender("billing", settings=settings)
    settler = AsyncSettler(settings=settings)
    admin = AsyncAdmin(settings=ManagerSettings(redis_url=redis_url, prefix=prefix))

    async def use(id: str) -> None:
        await consumer.read()
        await producer.send("mails", b"x", id=id)
        [lent] = await lender.read(topics="mails", wait=30)
        assert await lender.lend((lent, 5)) == [True]
        assert await lender.ack_lent("mails", id) is AckOutcome.ACKED
        await producer.send("mails", b"x")
        [held] = await consumer.read(wait=30)
        assert await settler.ack([Held(held, consumer.name)]) == [AckOutcome.ACKED]
        assert [sizes.topic for sizes in await admin.sizes()] == ["mails"]

    async def close() -> None:
        for each in (producer, consumer, lender, settler, admin):
            await each.close()
        with pytest.raises(Closed):
            await consumer.read()

    asyncio.run(use("first"))
    asyncio.run(use("second"))
    asyncio.run(close())


async def test_run_in_a_running_loop() -> None:
    """One error, and no warning of a coroutine that was never awaited."""
    worker = Worker("billing")
    with pytest.raises(LisaError, match=r"await worker\.serve\(\)"):
        worker.run()


def test_run_outside_the_main_thread() -> None:
    """Likewise."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            Worker("billing").run()
        except LisaError as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert [type(error) for error in failures] == [LisaError]
