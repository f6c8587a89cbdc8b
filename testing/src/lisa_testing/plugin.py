"""The pytest plugin: `lisa`, a fixture for each test, and `lisa_server`, the server of the run."""

import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lisa_testing.kit import Lisa

__all__ = ["lisa", "lisa_server"]

# Imported where they are used, as pytest loads this plugin for tests that need nothing of it, too.


@pytest.fixture(scope="session")
def lisa_server() -> Iterator[str]:
    """The URL of an embedded server of this run; it is deleted with its data. Override it to use another server."""
    from lisa_common.client.embedded.server import embedded_server  # noqa: PLC0415

    with embedded_server() as url:
        yield url


@pytest.fixture
def lisa(lisa_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator["Lisa"]:
    """Lisa for this test alone: producers, consumers and workers that it makes use its server and its prefix."""
    from lisa_testing.kit import Lisa  # noqa: PLC0415

    kit = Lisa(lisa_server, f"test-{secrets.token_hex(6)}")
    for name, value in kit.environment.items():
        monkeypatch.setenv(name, value)
    with kit.used():
        yield kit
