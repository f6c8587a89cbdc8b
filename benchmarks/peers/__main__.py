"""Half of a peer: `python -m benchmarks.peers arq send` carries out orders, `… work` handles due messages."""

import importlib
import sys

from benchmarks.peers.driver import serve

if __name__ == "__main__":
    name, half = sys.argv[1:]
    # By its full name: tasks are named after their module.
    adapter = importlib.import_module(f"benchmarks.peers.{name}")
    if half == "work":
        adapter.work()
    else:
        serve(adapter.producer())
