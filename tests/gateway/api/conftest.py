"""Fixtures: one gateway and one manager for the tests of a file, each of which has topics of its own."""

from collections.abc import Iterator

import httpx
import pytest
import redis

from support.gateways import Gateways
from support.plain import plain_client


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
def raw(redis_url: str) -> Iterator[redis.Redis]:
    """A plain client of the server."""
    with plain_client(redis_url) as client:
        yield client
