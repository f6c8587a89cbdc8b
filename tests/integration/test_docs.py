"""The examples in the docs run as printed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from support import Server
from support.documents import run_page

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["README.md", "docs/how-to.md", "docs/observability.md"])
def test_examples_run_as_printed(
    page: str, own_server: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every example of the page runs, and prints what the page says."""
    monkeypatch.chdir(tmp_path)
    assert run_page(ROOT / page, tmp_path, own_server(appendonly="yes", save="")) > 3


def test_operating_from_python_runs_as_printed(
    own_server: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example of the operations page."""
    server = own_server(appendonly="yes", save="")
    monkeypatch.chdir(tmp_path)
    # The example runs in this process.
    monkeypatch.setenv("LISA_REDIS_URL", server.url)
    assert run_page(ROOT / "docs/operations.md", tmp_path, server, section="Operate from Python") == 1
