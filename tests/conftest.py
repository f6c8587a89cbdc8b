"""Fixtures for all tests: a real server, clients, and a key prefix which no other test has."""

import itertools
import os
import secrets
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
import redis.asyncio
from hypothesis import HealthCheck, settings

from demo.spark.java import JAVA, java_version
from support import Server, remove_keys
from support.engines import chosen, own_binary, own_kind, running
from support.grouping import pytest_xdist_make_scheduler
from support.plain import plain_client, plain_url
from support.ports import reserved_port
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
    "pytest_xdist_make_scheduler",
]

_ROOT = Path(__file__).parents[1]
_SERVER_FIXTURES = {"redis_url"} | ({"own_server"} if chosen() in (own_kind(), "cluster") else set())
"""A test with one of these uses a server of the kind that was chosen, or of the kind that a Cluster is made of."""


def pytest_configure() -> None:
    """Let Ctrl-C reach what the tests start: a shell's background jobs ignore it, and so would their children.

    Examples may take as long as they need, as on a busy machine.
    """
    settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("busy")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use the server of the run, and those of topologies.

    Long tests come first: no process is left with one at the end.
    """
    items.sort(key=lambda item: [not item.get_closest_marker(mark) for mark in ("long", "slow")])
    for item in items:
        if not _SERVER_FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker("server")
        if "topologies" in item.path.parts:
            item.add_marker("topologies")
    shared = [id for id, count in Counter(item.nodeid for item in items).items() if count > 1]
    if shared:
        # pytest-xdist would run one of them, and drop the others.
        raise pytest.UsageError(f"tests must have ids of their own; got several of {shared[:5]}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs Spark where there is no Java for it."""
    if item.get_closest_marker("spark") and java_version() < JAVA:
        pytest.skip(f"no Java {JAVA} for Spark")


def _settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("LISA_")}


@pytest.fixture(autouse=True)
def _no_settings_left() -> Iterator[None]:
    """No test leaves settings in the environment: the programs of later tests would follow them."""
    before = _settings()
    yield
    assert _settings() == before


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the server of this run. It may be shared: keep to your prefix."""
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
    """A key prefix for one test; its keys are removed afterwards."""
    own = f"t{secrets.token_hex(4)}"
    yield own
    remove_keys(client, own)


@pytest.fixture
def reserve_port() -> Iterator[Callable[[], int]]:
    """Reserve ports for servers which the test starts by itself: `reserve_port()`."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(reserved_port())


@pytest.fixture(scope="session")
def uv() -> Callable[..., None]:
    """Run uv, the one that runs the tests if there is one, with settings of the environment; it shows why it fails."""
    program = os.environ.get("UV") or shutil.which("uv") or shutil.which(_ROOT / ".tools/bin/uv")
    if program is None:
        pytest.skip("no uv on this machine; `make test` brings one")
    # Else uv would take the environment of the tests for the one to install into.
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}

    def run(*arguments: str | Path, **settings: str) -> None:
        settings = environment | settings
        done = subprocess.run([program, *arguments], cwd=_ROOT, env=settings, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    return run


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
