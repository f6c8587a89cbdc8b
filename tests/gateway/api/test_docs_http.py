"""The examples of the HTTP page run as printed."""

import os
import sys
from pathlib import Path

from lisa_common.client.embedded.server import free_port
from support.documents import Page
from support.gateways import Gateways

PAGE = Path(__file__).parents[3] / "docs" / "http.md"


def test_examples_run_as_printed(gateways: Gateways, tmp_path: Path) -> None:
    """With curl, at a gateway that the page starts, beside a manager."""
    gateways.manager()
    address = f"127.0.0.1:{free_port()}"
    copy = tmp_path / PAGE.name
    copy.write_text(PAGE.read_text("utf-8").replace("127.0.0.1:8080", address), "utf-8")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "LISA_REDIS_URL": gateways.url,
        "LISA_PREFIX": gateways.prefix,
        "LISA_LISTEN": address,
    }
    assert Page(copy, tmp_path, environment).run() > 10
