"""While a server is away: calls say at once that they try again, and in the end for how long they tried."""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import pytest

from lisa_common.errors import InvalidInput, Unreachable
from lisa_consumer import AsyncConsumer, Consumer, ConsumerSettings
from lisa_producer import AsyncProducer, Message, Producer, SendOutcome
from lisa_producer.settings import ProducerSettings
from support import Server, wait_until

LOGGER = "lisa_common.client.retry"


@pytest.mark.parametrize(
    "options",
    [
        {"delay": -1},
        {"at": datetime(2030, 1, 1)},  # noqa: DTZ001 - without a zone, which is the mistake
        {"at_local": "2030-01-01T12:00"},
        {"tz": "Europe/Berlin"},
        {"id": ""},
        {"id": "a~"},
        {"ttl": 0},
        {"max_retries": -1},
        {"priority": 256},
        {"headers": {1: 2}},
        {"key": ""},
        {"body": {1, 2}},
    ],
    ids=str,
)
def test_what_needs_no_policy_is_judged_without_a_server(
    reserve_port: Callable[[], int], options: dict[str, Any]
) -> None:
    """The error is that of the argument, by both producers."""
    settings = ProducerSettings(redis_url=f"redis://127.0.0.1:{reserve_port()}", patience_s=0)
    arguments = {"body": "x"} | options
    with Producer(settings=settings) as producer, pytest.raises(InvalidInput):
        producer.send("mails", **arguments)

    async def send() -> None:
        async with AsyncProducer(settings=settings) as asynchronous:
            await asynchronous.send("mails", **arguments)

    with pytest.raises(InvalidInput):
        asyncio.run(send())


@pytest.mark.parametrize(
    "call",
    [
        lambda url: Producer(settings=ProducerSettings(redis_url=url, patience_s=2)).send("mails", "x"),
        lambda url: Producer(settings=ProducerSettings(redis_url=url, patience_s=2)).find("mails", "x"),
        lambda url: Producer(settings=ProducerSettings(redis_url=url, patience_s=2)).send_many(
            "mails", [Message(body="x")]
        ),
        lambda url: Consumer("mails", "billing", settings=ConsumerSettings(redis_url=url, patience_s=2)).read(),
        lambda url: asyncio.run(_send(url)),
        lambda url: asyncio.run(_read(url)),
    ],
    ids=["send", "find", "send_many", "read", "async send", "async read"],
)
def test_a_call_says_that_it_tries_again(
    reserve_port: Callable[[], int], caplog: pytest.LogCaptureFixture, call: Callable[[str], object]
) -> None:
    """One warning, and an error that says for how long."""
    with pytest.raises(Unreachable, match=r"; tried for \d+(\.\d)? s$"):
        call(f"redis://127.0.0.1:{reserve_port()}")
    [said] = [record for record in caplog.records if record.name == LOGGER]
    assert said.levelno == logging.WARNING
    assert "trying again for 2 s" in said.getMessage()


async def _send(url: str) -> None:
    async with AsyncProducer(settings=ProducerSettings(redis_url=url, patience_s=2)) as producer:
        await producer.send("mails", "x")


async def _read(url: str) -> None:
    settings = ConsumerSettings(redis_url=url, patience_s=2)
    async with AsyncConsumer("mails", "billing", settings=settings) as consumer:
        await consumer.read()


def test_an_outage_is_told_once(own_server: Callable[..., Server], caplog: pytest.LogCaptureFixture) -> None:
    """However many callers wait; and that the server is back, too."""
    caplog.set_level(logging.INFO, LOGGER)
    server = own_server()
    with Producer(server.url) as producer, ThreadPoolExecutor(8) as threads:
        producer.send("mails", "x")
        for outage in (1, 2):
            server.stop()
            began = threading.Barrier(9)

            def send(began: threading.Barrier = began) -> SendOutcome:
                began.wait()
                return producer.send("mails", "x").outcome

            sending = [threads.submit(send) for _ in range(8)]
            began.wait()
            wait_until(lambda n=outage: len(_told(caplog)) == 2 * n - 1)  # type: ignore[misc]
            server.start()
            assert {each.result() for each in sending} == {SendOutcome.SENT}
    assert [record.levelname for record in _told(caplog)] == ["WARNING", "INFO"] * 2


def test_answers_to_other_calls_end_no_outage(
    own_server: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    """A server without memory refuses sends, and finds messages: it is not back at each find."""
    caplog.set_level(logging.INFO, LOGGER)
    server = own_server()
    with Producer(server.url) as producer, ThreadPoolExecutor(1) as threads, server.client() as client:
        producer.send("mails", "x", id="a", delay=600)
        client.config_set("maxmemory", "1")
        sending = threads.submit(producer.send, "mails", "y")

        def is_tried_often() -> bool:
            producer.find("mails", "a")
            return _refused(client) > 5

        wait_until(is_tried_often)
        client.config_set("maxmemory", "0")
        assert sending.result().outcome is SendOutcome.SENT
    assert [record.levelname for record in _told(caplog)] == ["WARNING", "INFO"]


def test_the_first_read_of_a_group_waits_for_room(own_server: Callable[..., Server]) -> None:
    """A full server makes no group: a consumer tries again as long as its patience lasts."""
    server = own_server()
    with (
        Producer(server.url) as producer,
        Consumer("mails", "billing", url=server.url) as consumer,
        ThreadPoolExecutor(1) as threads,
        server.client() as client,
    ):
        producer.send("mails", "x", id="a")
        client.config_set("maxmemory", "1")
        reading = threads.submit(consumer.read)
        wait_until(lambda: reading.done() or _refused(client) > 2)
        client.config_set("maxmemory", "0")
        assert [delivery.id for delivery in reading.result()] == ["a"]


def _refused(client: Any) -> int:
    return int(client.info("errorstats").get("errorstat_OOM", {"count": 0})["count"])


def _told(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == LOGGER]
