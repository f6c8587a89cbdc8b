"""Checks the Lua scripts as the server gets them, and the blocking clients. The exit code is 1 if it found anything."""

import sys

from lint.blocking import outdated
from lint.lua import check
from lisa_common.protocol.scripts import SCRIPT_NAMES, load


def main() -> int:
    """Prints a line for each problem. Returns the exit code."""
    found = 0
    for name in SCRIPT_NAMES:
        for problem in check(load(name).text):
            print(f"{name}, line {problem.line} of the rendered script: {problem.text}: {problem.code}")
            found += 1
    for path in outdated():
        print(f"{path} is not what its asyncio client makes: run `make format`")
        found += 1
    checked = f"{len(SCRIPT_NAMES)} Lua scripts and the blocking clients checked"
    print(f"Found {found} problems." if found else f"{checked}: no problems.")
    return min(found, 1)


sys.exit(main())
