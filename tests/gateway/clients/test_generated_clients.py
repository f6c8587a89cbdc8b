"""Clients that others' generators make of the OpenAPI document do all that most programs need."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lisa_gateway.v1 import openapi
from support.gateways import Gateways

HERE = Path(__file__).parent

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def _run(directory: Path, *command: str | Path) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def base_url(gateways: Gateways) -> str:
    """The URL of a gateway beside a manager."""
    gateways.manager()
    return gateways.gateway()[1]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with the programs of this one, and the document."""
    shutil.copytree(HERE, tmp_path, dirs_exist_ok=True)
    (tmp_path / "openapi.json").write_text(json.dumps(openapi()))
    return tmp_path


def test_a_client_in_python(directory: Path, base_url: str, uv: Callable[..., None]) -> None:
    """By openapi-python-client: send, put, find, list, read, ack and nack; a problem is told."""
    uv("venv", directory / "tools")
    tools = directory / "tools" / "bin"
    uv("pip", "install", "--python", tools / "python", "-r", directory / "requirements.txt")
    made = ("--path", "openapi.json", "--meta", "none", "--output-path", "lisa_client")
    _run(directory, tools / "openapi-python-client", "generate", *made)
    _run(directory, tools / "python", "-W", "error", "client.py", base_url, "python")


@pytest.mark.skipif(shutil.which("npm") is None, reason="needs Node and npm")
def test_a_client_in_typescript(directory: Path, base_url: str) -> None:
    """By openapi-typescript, with the strictest tsc: the same calls; members with a default are left out."""
    _run(directory, "npm", "ci", "--no-audit", "--no-fund")
    tools = directory / "node_modules" / ".bin"
    _run(directory, tools / "openapi-typescript", "openapi.json", "--output", "schema.d.ts")
    _run(directory, tools / "tsc", "--project", ".")
    _run(directory, "node", "out/client.js", base_url, "typescript")
