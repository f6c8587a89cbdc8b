"""Events that are counted together: none is lost, none is counted twice, from any thread."""

import threading
from collections import Counter
from collections.abc import Sequence

from lisa_common.observing.gathered import Gathered


def test_no_event_is_lost_or_counted_twice() -> None:
    """While threads add, and others flush."""
    counted: Counter[int] = Counter()
    gathered = Gathered[int](counted.update)
    gathered.begin()
    ending = threading.Event()

    def add(first: int) -> None:
        for number in range(first, first + 20_000):
            gathered.add(number)

    def flush() -> None:
        while not ending.is_set():
            gathered.flush()

    adding = [threading.Thread(target=add, args=(first,)) for first in range(0, 80_000, 20_000)]
    flushing = [threading.Thread(target=flush) for _ in range(2)]
    for thread in adding + flushing:
        thread.start()
    for thread in adding:
        thread.join()
    ending.set()
    for thread in flushing:
        thread.join()
    gathered.end()
    assert len(counted) == 80_000
    assert set(counted.values()) == {1}


def test_events_wait_until_they_are_asked_for() -> None:
    """Or until they are many; after the end of all who gather, whoever has an event counts it."""
    taken: list[Sequence[str]] = []
    gathered = Gathered[str](taken.append)
    assert not gathered.on
    gathered.begin()
    gathered.begin()
    gathered.add("one")
    gathered.add("two")
    assert taken == []
    gathered.flush()
    gathered.flush()
    assert taken == [["one", "two"]]
    gathered.add("three")
    gathered.end()
    assert gathered.on
    assert taken[1:] == [["three"]]
    gathered.end()
    assert not gathered.on
    gathered.begin()
    for _ in range(1_000):
        gathered.add("many")
    assert len(taken[2]) == 1_000
