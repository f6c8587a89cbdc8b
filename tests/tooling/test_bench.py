"""The benchmark suite as a program; what it measures is another matter."""

import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]


def _run(*options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "benchmarks", *options]
    return subprocess.run(command, cwd=_ROOT, env={"PYTHONPATH": "tests"}, capture_output=True, text=True, timeout=60)


@pytest.mark.slow
def test_parts_are_measured_and_judged() -> None:
    """Every quantity of the parts that were asked for, and every target: theirs with a value, the others without."""
    done = _run("--quick", "--only", "bulk memory")
    assert done.returncode == 0, done.stderr
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert any(line.startswith("send_many ") and line.endswith(" messages/s") for line in lines)
    [bulk] = [line for line in lines if line.startswith("schedule in bulk, over the yardstick")]
    assert bulk.endswith((" holds", " MISSED"))
    [idle] = [line for line in lines if line.startswith("idle, 100 topics: commands")]
    assert idle.endswith(" - not measured")


def test_a_part_that_is_unknown_is_named() -> None:
    """With the parts that there are, before anything is measured."""
    done = _run("--only", "bulk speed")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "no such part: speed; there are bulk, single, concurrent, memory" in done.stderr
