"""Fixtures for all tests: a real server, clients, and a key prefix which no other test has."""

import itertools
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import redis
import redis.asyncio

from demo.spark.java import JAVA, java_version
from support import Server, remove_keys
from support.engines import chosen, own_binary, own_kind, running
from support.plain import plain_client, plain_url
from support.reporting import (
    pytest_deselected,
    pytest_report_header,
    pytest_runtest_makereport,
    pytest_sessionfinish,
    pytest_terminal_summary,
    pytest_testnodedown,
)

__all__ = [
    "pytest_deselected",
    "pytest_report_header",
    "pytest_runtest_makereport",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
    "pytest_testnodedown",
]

_SERVER_FIXTURES = {"redis_url"} | ({"own_server"} if own_kind() == chosen() else set())
"""A test with one of these uses a server of the kind that was chosen."""

_ONE_PROCESS = ("packaging", "spark")
"""Directories whose tests share an expensive set-up: wheels, a Spark session."""

_UNDER_LOAD = ("test_cluster_changes", "test_cluster_failover", "test_cluster_hung", "test_failover")
"""Tests of topologies that measure while a load runs: one at a time has the machine's cores."""


def pytest_configure() -> None:
    """Let Ctrl-C reach what the tests start: a shell's background jobs ignore it, and so would their children."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use the server of the run, and those that must share a process.

    Each process has a server of its own, where its tests run one after another. So a test may flush scripts or count
    commands without a mark; only a server that was named is shared, and all its tests share a process, too.
    """
    for item in items:
        if not _SERVER_FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker("server")
        if group := _group_of(item):
            item.add_marker(pytest.mark.xdist_group(group))


def _group_of(item: pytest.Item) -> str | None:
    directory = item.path.parent.name
    if "://" in chosen():
        return "one server"
    if item.get_closest_marker("spark") and directory not in _ONE_PROCESS:
        return "spark"  # one Java at a time
    if directory == "topologies":
        return "under load" if item.path.stem in _UNDER_LOAD else "topologies"
    return directory if directory in _ONE_PROCESS else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs Spark where there is no Java for it."""
    if item.get_closest_marker("spark") and java_version() < JAVA:
        pytest.skip(f"no Java {JAVA} for Spark")


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the server of this run is. It is shared, perhaps not ours: keep to your prefix."""
    with running(chosen(), tmp_path_factory.mktemp("server")) as url:
        yield url


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    """A plain client: RESP2, bytes."""
    with plain_client(redis_url) as connected:
        yield connected


@pytest.fixture
async def async_client(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    """The asyncio twin of `client`."""
    connected = redis.asyncio.Redis.from_url(plain_url(redis_url), protocol=2, socket_timeout=10)
    async with connected:
        yield connected


@pytest.fixture
def prefix(client: redis.Redis) -> Iterator[str]:
    """A key prefix of the test's own; what it wrote there is removed afterwards."""
    own = f"t{secrets.token_hex(4)}"
    yield own
    remove_keys(client, own)


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Start servers of the test's own, to kill and restart: `own_server(appendonly="yes")`.

    Options are those of redis.conf, with underscores for hyphens.
    """
    servers: list[Server] = []
    numbers = itertools.count(1)

    def start(**options: str) -> Server:
        config = {name.replace("_", "-"): value for name, value in options.items()}
        server = Server(own_binary(), tmp_path / f"server-{next(numbers)}", config=config)
        servers.append(server)
        return server.start()

    yield start
    for server in servers:
        server.close()
