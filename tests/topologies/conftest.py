"""Fixtures of the tests of topologies: groups behind sentinels, and connections of either kind."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.engines import own_binary
from support.sentinel import SentinelGroup, sentinel_group
from support.tls import Ping

PASSWORD, SENTINEL_PASSWORD = "of-the-server", "of-the-sentinels"


@pytest.fixture
def group(tmp_path: Path) -> Iterator[SentinelGroup]:
    """A group of the test's own, to break."""
    with sentinel_group(own_binary(), tmp_path / "group") as running:
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelGroup]:
    """A group whose servers and sentinels want passwords; it is not to be broken."""
    directory = tmp_path_factory.mktemp("guarded")
    with sentinel_group(own_binary(), directory, password=PASSWORD, sentinel_password=SENTINEL_PASSWORD) as running:
        yield running


@pytest.fixture(params=["blocking", "asyncio"])
def ping(request: pytest.FixtureRequest) -> Ping:
    """Asks a server for a PONG, with patience, over a connection of either kind."""
    return Ping(request.param)
