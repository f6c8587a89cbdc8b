"""Runs the demo as a user does, without a terminal and in less time."""

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["ROOT", "assert_balanced", "play"]

ROOT = Path(__file__).parents[2]


def play(environment: Mapping[str, str], *options: str) -> str:
    """Plays a day in eight seconds. Returns the output of the demo."""
    command = [sys.executable, "-m", "demo", "--seconds", "8", *options]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def assert_balanced(output: str) -> None:
    """Makes sure that the ledger balances and is not empty."""
    found = re.search(r"sent +(\d+) = (\d+) acked \+ (\d+) cancelled \+ (\d+) garbage; (\d+) were resch", output)
    assert found, output
    sent, acked, cancelled, garbage, _ = map(int, found.groups())
    assert sent == 979
    assert acked + cancelled + garbage == sent
    assert min(acked, cancelled, garbage) > 0
    assert "of them early: 0\n" in output
    assert "its worker was killed: reclaimed after the visibility timeout" in output
    assert output.splitlines()[-1].strip() == "balanced"
