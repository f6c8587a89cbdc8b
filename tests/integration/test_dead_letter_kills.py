"""Dead letters through two hops, while managers are killed and stopped: none is lost, none arrives twice."""

import itertools
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest

from lisa_consumer import Consumer, ConsumerSettings
from lisa_manager import Admin, ManagerSettings
from lisa_producer import Message, Producer, ProducerSettings
from support import Server, idle, wait_until
from support.processes import Process, Programs

_COUNT = 3_000
_MANAGERS = 2


class _Reader:
    """Reads and acks the last topic in a thread, and counts by the first ids."""

    def __init__(self, url: str, topic: str) -> None:
        self._consumer = Consumer(topic, "g", settings=ConsumerSettings(redis_url=url))
        self._ended = Event()
        self._thread = Thread(target=self._read)
        self.arrived: Counter[str] = Counter()
        self.ways: Counter[tuple[tuple[str, str, int], ...]] = Counter()
        self._consumer.read()
        self._thread.start()

    def _read(self) -> None:
        while not self._ended.is_set():
            deliveries = self._consumer.read(limit=500, wait=0.2)
            for delivery in deliveries:
                self.arrived[delivery.headers["x-first-death-id"]] += 1
                self.ways[tuple((d.queue, d.reason, d.count) for d in delivery.deaths)] += 1
            self._consumer.ack(*deliveries)

    def close(self) -> None:
        """Ends the thread."""
        self._ended.set()
        self._thread.join()
        self._consumer.close()


def _faults(seed: int) -> Iterator[tuple[int, signal.Signals]]:
    dice = random.Random(seed)
    for number in itertools.cycle(range(_MANAGERS)):
        yield number, dice.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_letters_survive_kills(own_server: type[Server], tmp_path: Path) -> None:
    """They expire in the first topic, which nobody reads, then in the second one; a consumer acks the last one."""
    server = own_server(appendonly="yes")
    programs = Programs(server.url, "lisa", tmp_path, [])
    with Admin(settings=ManagerSettings(redis_url=server.url)) as admin:
        admin.create_topic("first", ttl_ms=1, dead_letter_topic="second")
        admin.create_topic("second", ttl_ms=1, dead_letter_topic="third", shards=2)
        admin.create_topic("third")
    reader = _Reader(server.url, "third")
    managers = [programs.manager(within_s=120) for _ in range(_MANAGERS)]
    ended = Event()

    def break_managers() -> None:
        for number, fault in _faults(7):
            if ended.wait(0.7):
                return
            managers[number] = _break(programs, managers[number], fault)

    broken = Thread(target=break_managers)
    broken.start()
    try:
        with Producer(settings=ProducerSettings(redis_url=server.url)) as producer:
            producer.send_many("first", (Message(body=b"x", id=f"m{n}") for n in range(_COUNT)))
        wait_until(lambda: len(reader.arrived) >= _COUNT, 500, what=f"{_COUNT} dead letters")
        ended.set()
        broken.join()
        with Admin(settings=ManagerSettings(redis_url=server.url)) as admin:
            wait_until(lambda: not any(sizes.stored for sizes in admin.sizes()), 60, what="all topics are empty")
            assert admin.check().is_clean
    finally:
        ended.set()
        broken.join()
        reader.close()
        programs.close()
    assert len(reader.arrived) == _COUNT
    assert reader.arrived.total() == _COUNT, "none twice"
    assert reader.ways == {(("second", "expired", 1), ("first", "expired", 1)): _COUNT}


def _break(programs: Programs, manager: Process, fault: signal.Signals) -> Process:
    """Kills a manager and starts another, or stops it for a moment."""
    if fault is signal.SIGSTOP:
        manager.freeze()
        idle(1.0)
        manager.thaw()
        return manager
    if fault is signal.SIGKILL:
        manager.kill()
    else:
        manager.stop(120)
    return programs.manager(within_s=120)
