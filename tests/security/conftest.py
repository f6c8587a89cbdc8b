"""Fixtures of the security tests: an authority, and servers that it certifies."""

from collections.abc import Iterator

import pytest

from support.commands import Commands
from support.tls import Certificates, Ping, tls_server


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates of the trusted authority."""
    return Certificates.of(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates of an unknown authority."""
    return Certificates.of(tmp_path_factory.mktemp("foreign"))


@pytest.fixture(scope="session")
def tls_url(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[str]:
    """A server that speaks TLS and accepts all clients."""
    directory = tmp_path_factory.mktemp("tls-server")
    with tls_server(directory, certificates, mutual=False) as url:
        yield url


@pytest.fixture(scope="session")
def mutual_url(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[str]:
    """A server that speaks TLS and demands a certificate of its clients."""
    directory = tmp_path_factory.mktemp("mutual-server")
    with tls_server(directory, certificates, mutual=True) as url:
        yield url


@pytest.fixture
def commands(redis_url: str, prefix: str) -> Commands:
    """Runs command lines as operators type them."""
    return Commands(redis_url, prefix)


@pytest.fixture(params=["blocking", "asyncio"])
def ping(request: pytest.FixtureRequest) -> Ping:
    """Asks a server for a PONG, with patience, over a connection of either kind."""
    return Ping(request.param)
