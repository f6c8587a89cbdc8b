"""Fixtures of the tests of topologies: groups behind sentinels, Clusters, and connections of either kind."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import pytest

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.connection import Connection
from support.cluster import Cluster, cluster
from support.engines import PATIENT_MS, binary, own_binary
from support.sentinel import SentinelGroup, sentinel_group
from support.tls import Ping
from support.twins import InThread

PASSWORD, SENTINEL_PASSWORD = "of-the-server", "of-the-sentinels"


@pytest.fixture
def group(tmp_path: Path) -> Iterator[SentinelGroup]:
    """A group of the test's own, to break."""
    with sentinel_group(own_binary(), tmp_path / "group") as running:
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelGroup]:
    """A group whose servers and sentinels demand passwords; tests must not break it."""
    directory = tmp_path_factory.mktemp("guarded")
    with sentinel_group(own_binary(), directory, password=PASSWORD, sentinel_password=SENTINEL_PASSWORD) as running:
        yield running


@pytest.fixture(params=["blocking", "asyncio"])
def ping(request: pytest.FixtureRequest) -> Ping:
    """Asks a server for a PONG, with patience, over a connection of either kind."""
    return Ping(request.param)


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three masters; tests must not break them."""
    with cluster(own_binary(), tmp_path_factory.mktemp("cluster"), cluster_node_timeout=str(PATIENT_MS)) as running:
        yield running


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Start Clusters of the test's own, to break: `own_cluster(replicas=1)`; `kind` is that of the servers."""

    def start(kind: str = "", **options: Any) -> Cluster:
        chosen = binary(kind) if kind else own_binary()
        return stack.enter_context(cluster(chosen, tmp_path / "cluster", **options))

    with ExitStack() as stack:
        yield start


@pytest.fixture(params=["blocking", "asyncio"])
async def connect(request: pytest.FixtureRequest) -> AsyncIterator[Callable[..., Any]]:
    """Makes connections of either kind, all awaitable: `connect(url, timeout_s=1)`."""
    async with AsyncExitStack() as stack:

        def make(url: str, **options: Any) -> Any:
            asynchronous = request.param == "asyncio"
            made: Any = AsyncConnection(url, **options) if asynchronous else InThread(Connection(url, **options))
            stack.push_async_callback(made.close)
            return made

        yield make
