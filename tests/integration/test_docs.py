"""The examples in the docs run as printed."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import Server, wait_until
from support.documents import Page

ROOT = Path(__file__).parents[2]


@pytest.fixture
def environment(own_server: Callable[..., Server], tmp_path: Path) -> Iterator[dict[str, str]]:
    """A server, a manager, and what a shell needs to find both."""
    server = own_server(appendonly="yes", save="")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    settings = {**os.environ, "PATH": path, "LISA_REDIS_URL": server.url, "LISA_LOG_LEVEL": "warning"}
    with subprocess.Popen(["lisa-manager", "run"], env=settings, cwd=tmp_path) as manager:
        with server.client() as client:
            wait_until(lambda: client.pubsub_numsub("lisa:wake")[0][1] == 1, 10, what="the manager listens")
        yield settings
        manager.send_signal(signal.SIGTERM)
        assert manager.wait(10) == 0


@pytest.mark.parametrize("page", ["README.md", "docs/how-to.md"])
def test_examples_run_as_printed(
    page: str, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every example of the page runs, and prints what the page says."""
    monkeypatch.chdir(tmp_path)
    # The pages say where a server is by default; here it is elsewhere.
    text = (ROOT / page).read_text("utf-8").replace("redis://localhost:6379", environment["LISA_REDIS_URL"])
    copy = tmp_path / Path(page).name
    copy.write_text(text, "utf-8")
    assert Page(copy, tmp_path, environment).run() > 3
