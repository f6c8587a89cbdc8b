"""The examples of the pages on tests run as printed: by pytest, with the plugin, as a user runs them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize(("page", "passed"), [("docs/testing.md", 4), ("testing/README.md", 1)])
def test_examples_pass(page: str, passed: int, tmp_path: Path) -> None:
    """And leave nothing open."""
    for name, text in _BLOCK.findall((ROOT / page).read_text("utf-8")):
        (tmp_path / name).write_text(text, "utf-8")
    plugins = [word for name in ("cacheprovider", "valkey", "asyncio") for word in ("-p", f"no:{name}")]
    command = [sys.executable, "-m", "pytest", "-q", *plugins, "-W", "error"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LISA_")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{passed} passed" in done.stdout
