"""Programs spare the garbage collector what lives as long as they do, and leave alone what users have set."""

import subprocess
import sys

import pytest

_ASK = """
import gc
from lisa_common.collector import spare_collector
{}
spare_collector()
print(gc.get_threshold()[0], gc.get_freeze_count() > 1_000)
"""


@pytest.mark.parametrize(
    ("before", "threshold"),
    [
        ("pass", 20_000),
        ("gc.set_threshold(5_000)", 5_000),
        ("gc.set_threshold(0)", 0),
        ("gc.set_threshold(90_000)", 90_000),
    ],
)
def test_a_collection_starts_later_unless_the_user_decided(before: str, threshold: int) -> None:
    """What is loaded is frozen in any case."""
    done = subprocess.run([sys.executable, "-c", _ASK.format(before)], capture_output=True, text=True, check=True)
    assert done.stdout == f"{threshold} True\n"


def test_garbage_in_cycles_is_still_collected() -> None:
    """Of which a handler may make any amount."""
    code = """
import gc, weakref
from lisa_common.collector import spare_collector
spare_collector()
class Node: pass
alive = []
for _ in range(50_000):
    node = Node()
    node.me = node
    alive.append(weakref.ref(node))
    del node
print(sum(each() is not None for each in alive) < 25_000)
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "True\n"
