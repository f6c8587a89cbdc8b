"""Fixtures: one gateway and one manager for the tests of a file, each of which has topics of its own."""

import secrets
from collections.abc import Iterator

import httpx
import pytest
import redis

from support import remove_keys
from support.gateways import Gateways
from support.plain import plain_client


@pytest.fixture(scope="module")
def gateways(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateways]:
    """Starts programs on a prefix of the file's own."""
    own = Gateways(redis_url, tmp_path_factory.mktemp("gateways"))
    yield own
    own.close()
    with plain_client(redis_url) as client:
        remove_keys(client, own.prefix)


@pytest.fixture(scope="module")
def base_url(gateways: Gateways) -> str:
    """The URL of a gateway beside a manager."""
    gateways.manager()
    return gateways.gateway()[1]


@pytest.fixture
def http(base_url: str) -> Iterator[httpx.Client]:
    """A client of the gateway."""
    with httpx.Client(base_url=base_url, timeout=30) as client:
        yield client


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return f"t{secrets.token_hex(4)}"


@pytest.fixture
def raw(redis_url: str) -> Iterator[redis.Redis]:
    """A plain client of the server."""
    with plain_client(redis_url) as client:
        yield client
