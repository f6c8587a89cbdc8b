"""The page on the outbox."""

from collections.abc import Callable
from pathlib import Path

import pytest

from support import Server
from support.documents import run_page

ROOT = Path(__file__).parents[2]


def test_the_page_runs_as_printed(
    own_server: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its example runs in this process."""
    monkeypatch.chdir(tmp_path)
    assert run_page(ROOT / "docs/outbox.md", tmp_path, own_server())
