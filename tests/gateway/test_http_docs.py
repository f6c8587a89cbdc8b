"""The examples of the pages about the gateway run as printed."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support import Server
from support.documents import run_page

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("page", ["docs/http.md", "docs/from-camellia.md", "docs/dashboard.md", "gateway/README.md"])
def test_examples_run_as_printed(
    page: str, own_server: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every example of the page runs, and prints what the page says."""
    server = own_server(appendonly="yes", save="")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LISA_REDIS_URL", server.url)
    assert run_page(ROOT / page, tmp_path, server)
