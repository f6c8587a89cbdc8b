"""Databases with an outbox, and relays."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine

from lisa_manager import Admin, ManagerSettings
from lisa_producer import Producer, ProducerSettings
from lisa_producer.outbox import Relay
from lisa_producer.outbox.table import METADATA
from support.databases import Database, NotInstalled, mariadb, postgresql

KINDS = ("postgresql", "mariadb", "sqlite")


@pytest.fixture(scope="session")
def servers() -> Iterator[Callable[[str], Database]]:
    """The database server of a kind, started when a test needs it."""
    started: dict[str, Database] = {}
    with ExitStack() as stack:

        def server(kind: str) -> Database:
            if kind not in started:
                try:
                    started[kind] = stack.enter_context({"postgresql": postgresql, "mariadb": mariadb}[kind]())
                except NotInstalled as missing:
                    pytest.skip(str(missing))
            return started[kind]

        yield server


@contextmanager
def _opened(url: str) -> Iterator[Engine]:
    engine = create_engine(url, pool_pre_ping=True)
    METADATA.drop_all(engine)
    METADATA.create_all(engine)
    try:
        yield engine
    finally:
        engine.dispose()


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest, servers: Callable[[str], Database], tmp_path: Path) -> Iterator[Engine]:
    """An empty outbox in a database of each kind."""
    url = f"sqlite:///{tmp_path}/outbox.db" if request.param == "sqlite" else servers(request.param).url
    with _opened(url) as engine:
        yield engine


@pytest.fixture
def postgres(servers: Callable[[str], Database]) -> Iterator[Engine]:
    """An empty outbox in PostgreSQL."""
    with _opened(servers("postgresql").url) as engine:
        yield engine


@pytest.fixture
def settings(redis_url: str, prefix: str) -> ProducerSettings:
    """Settings for the server and the prefix of the test."""
    return ProducerSettings(redis_url=redis_url, prefix=prefix)


@pytest.fixture
def producer(settings: ProducerSettings) -> Iterator[Producer]:
    """A producer, which does not use the outbox."""
    with Producer(settings=settings) as opened:
        yield opened


@pytest.fixture
def relays(settings: ProducerSettings) -> Iterator[Callable[..., Relay]]:
    """Makes relays: `relays(engine, lease=1)`."""
    with ExitStack() as stack:

        def make(engine: Engine, kind: type[Relay] = Relay, **options: Any) -> Relay:
            return stack.enter_context(kind(engine, **{"settings": settings} | options))

        yield make


@pytest.fixture
def declare(settings: ProducerSettings) -> Callable[..., object]:
    """Declares a topic with a policy: `declare("orders", max_messages=5)`."""

    def declare(topic: str = "orders", **fields: Any) -> None:
        with Admin(settings=ManagerSettings(redis_url=settings.redis_url, prefix=settings.prefix)) as admin:
            admin.create_topic(topic, **fields)

    return declare
