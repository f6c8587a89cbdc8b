"""Managers and gateways as real processes, for all tests of a file; each test has a topic of its own."""

import secrets
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

import pytest

from lisa_common.settings import Settings
from lisa_manager import AsyncAdmin
from lisa_producer import AsyncProducer, ProducerSettings
from support import remove_keys
from support.gateways import Gateways
from support.plain import plain_client
from support.processes import Programs
from support.wire import Wire


class Stage(NamedTuple):
    """What runs."""

    url: str
    prefix: str
    programs: Programs
    first: Wire
    second: Wire


@pytest.fixture(scope="module")
def gateways(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateways]:
    """Starts programs on a prefix of the file's own."""
    own = Gateways(redis_url, tmp_path_factory.mktemp("gateways"))
    yield own
    own.close()
    with plain_client(redis_url) as client:
        remove_keys(client, own.prefix)


@pytest.fixture(scope="module")
def stage(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A manager, and two gateways."""
    prefix = f"t{secrets.token_hex(4)}"
    programs = Programs(redis_url, prefix, tmp_path_factory.mktemp("programs"))
    try:
        programs.manager()
        gateways = [programs.gateway("--monitor-s", "1") for _ in range(2)]
        yield Stage(redis_url, prefix, programs, *(Wire(gateway.listens_at) for gateway in gateways))
    finally:
        programs.close()
        with plain_client(redis_url) as client:
            remove_keys(client, prefix)


@pytest.fixture
def wire(stage: Stage) -> Wire:
    """A client of the first gateway."""
    return stage.first


@pytest.fixture
def other(stage: Stage) -> Wire:
    """A client of the second gateway."""
    return stage.second


@pytest.fixture
def topic() -> str:
    """A topic of the test's own."""
    return f"topic-{secrets.token_hex(4)}"


@pytest.fixture
async def producer(stage: Stage) -> AsyncIterator[AsyncProducer]:
    """A producer in Python, beside the gateways."""
    async with AsyncProducer(settings=ProducerSettings(redis_url=stage.url, prefix=stage.prefix)) as opened:
        yield opened


@pytest.fixture
async def admin(stage: Stage) -> AsyncIterator[AsyncAdmin]:
    """An operator's client, beside the gateways."""
    async with AsyncAdmin(settings=Settings(redis_url=stage.url, prefix=stage.prefix)) as opened:
        yield opened
