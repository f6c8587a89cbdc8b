"""What pytest prints of an assertion of the kit that fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_TEST = """
def test_send(lisa):
    lisa.producer.send("orders", "hello", id="one")
    {assertion}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("assertion", "message"),
    [
        ('lisa.assert_sent("orders", id="two")', "no message sent to 'orders' with id='two'; sent were:"),
        ('lisa.assert_not_sent("orders", id="one")', "1 messages, not 0 sent to 'orders' with id='one'; sent were:"),
    ],
)
def test_a_failed_assertion_shows_the_test_alone(tmp_path: Path, assertion: str, message: str) -> None:
    """The line that failed, and the two lines that say why; nothing of the kit's own code."""
    (tmp_path / "test_it.py").write_text(_TEST.format(assertion=assertion), "utf-8")
    plugins = [word for name in ("cacheprovider", "valkey", "asyncio") for word in ("-p", f"no:{name}")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LISA_")}
    command = [sys.executable, "-m", "pytest", "-q", *plugins, "test_it.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    told = [line for line in done.stdout.splitlines() if line.startswith("E ")]
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"AssertionError: {message}" in told[0]
    assert [line.split()[1] for line in told[1:]] == ["orders:"]
    assert "kit.py" not in done.stdout
