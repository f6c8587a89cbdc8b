"""Fixtures: a manager and a gateway with its dashboard as real processes, for the tests of a file."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack as Session

import httpx
import pytest

from lisa_common.settings import Settings
from lisa_consumer import Consumer, ConsumerSettings
from lisa_manager import Admin
from lisa_producer import Producer, ProducerSettings
from support.gateways import Gateways
from support.pages import Browser


@pytest.fixture(scope="module")
def base_url(gateways: Gateways) -> str:
    """The URL of a gateway with pages, beside a manager that writes samples each second."""
    gateways.manager("--history-s", "1")
    return gateways.gateway("--dashboard")[1]


@pytest.fixture
def browser(base_url: str) -> Iterator[Browser]:
    """Reads pages and sends their forms, without scripts."""
    with httpx.Client(base_url=f"{base_url}/dashboard/", timeout=30) as client:
        yield Browser(client)


@pytest.fixture
def producer(gateways: Gateways) -> Iterator[Producer]:
    """A producer on the same prefix."""
    with Producer(settings=ProducerSettings(redis_url=gateways.url, prefix=gateways.prefix)) as opened:
        yield opened


@pytest.fixture
def kill(gateways: Gateways) -> Iterator[Callable[..., None]]:
    """Makes ready messages of a topic dead letters of a group."""
    with Session() as stack:

        def work(
            topic: str, count: int, *, group: str = "billing", error: str | BaseException = "no such order"
        ) -> None:
            settings = ConsumerSettings(redis_url=gateways.url, prefix=gateways.prefix, release="1.4.2")
            consumer = stack.enter_context(Consumer(topic, group, settings=settings))
            left = count
            while left:
                deliveries = consumer.read(min(left, 1_000), wait=20)
                assert deliveries
                consumer.reject(*deliveries, error=error)
                left -= len(deliveries)

        yield work


@pytest.fixture
def admin(gateways: Gateways) -> Iterator[Admin]:
    """An operator's client on the same prefix."""
    with Admin(settings=Settings(redis_url=gateways.url, prefix=gateways.prefix)) as opened:
        yield opened
