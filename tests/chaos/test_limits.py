"""Limits hold while managers and workers are killed: judged by every entry that ever became ready."""

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from lisa_common.model.keys import ShardKeys
from lisa_manager import Admin, ManagerSettings
from lisa_producer import Message, Producer, ProducerSettings
from support import wait_until
from support.in_flight import InFlight
from support.processes import Process, Programs

pytestmark = pytest.mark.slow

SECONDS = float(os.environ.get("LISA_LIMITS_SECONDS", "5"))
"""How long each story is told; `LISA_LIMITS_SECONDS=600` for ten minutes."""


@pytest.fixture
def admin(redis_url: str, prefix: str) -> Iterator[Admin]:
    """An operator."""
    with Admin(settings=ManagerSettings(redis_url=redis_url, prefix=prefix)) as opened:
        yield opened


@pytest.fixture
def producer(redis_url: str, prefix: str) -> Iterator[Producer]:
    """A producer in the test's own process."""
    with Producer(settings=ProducerSettings(redis_url=redis_url, prefix=prefix)) as opened:
        yield opened


@pytest.fixture
def programs(redis_url: str, prefix: str, tmp_path: Path) -> Iterator[Programs]:
    """Starts managers and workers."""
    started = Programs(redis_url, prefix, tmp_path)
    yield started
    started.close()


class Crew:
    """Two managers and four workers, of which one after another is killed, and replaced."""

    def __init__(self, programs: Programs) -> None:
        self._starts: list[Callable[[], Process]] = [programs.manager, *[programs.worker] * 2] * 2
        self._members = [start() for start in self._starts]
        self._turn = itertools.cycle(range(len(self._members)))
        self.killed = 0

    def kill_one(self) -> None:
        """Kills the next one. Returns once another has taken its place."""
        at = next(self._turn)
        self._members[at].kill()
        self._members[at] = self._starts[at]()
        self.killed += 1


def _send(producer: Producer, count: int) -> None:
    producer.send_many("orders", (Message(body=b"x") for _ in range(count)))


@contextmanager
def _sampled(sample: Callable[[], Any]) -> Iterator[list[Any]]:
    """Takes samples in a thread, as often as it can."""
    samples: list[Any] = []
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            samples.append(sample())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()


def test_rate(admin: Admin, producer: Producer, programs: Programs, client: redis.Redis, prefix: str) -> None:
    """Never more than the bucket holds and gets; nothing of the rate is lost while a manager looks in time."""
    rate, burst = 100, 300  # 3 s, in which even a busy machine has a manager look
    admin.set_policy("orders", rate=f"{rate}/s", burst=burst, visibility_ms=1_000, backoff_base_ms=100)
    # Nobody reads for this group, so no entry is ever trimmed.
    admin.create_group("orders", "observer")
    crew = Crew(programs)
    _send(producer, int(rate * SECONDS * 4) + burst)
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        crew.kill_one()
    assert admin.sizes("orders")[0].waiting, "there must be work until the end"
    entries: Any = client.xrange(ShardKeys(prefix, "orders").of("ready"))
    moments = [int(entry.partition(b"-")[0]) for entry, _ in entries]
    # Of any two entries: how many there are from one to the other, but for what the bucket got meanwhile.
    above = [number - rate * (moment - moments[0]) / 1_000 for number, moment in enumerate(moments)]
    most = max(level - least for level, least in zip(above, itertools.accumulate(above, min), strict=True))
    assert most <= burst + 1, f"{crew.killed} killed"
    due = burst + rate * (moments[-1] - moments[0]) / 1_000
    assert len(moments) >= 0.98 * due, f"{len(moments)} of {due:.0f}, {crew.killed} killed"


def test_max_in_flight(admin: Admin, producer: Producer, programs: Programs, client: redis.Redis, prefix: str) -> None:
    """Never more are ready or delivered, and the places are used."""
    admin.set_policy("orders", max_in_flight=7, visibility_ms=1_000, backoff_base_ms=100)
    ready = ShardKeys(prefix, "orders").of("ready")
    crew = Crew(programs)
    _send(producer, int(2_000 * SECONDS))
    with _sampled(InFlight(client, ready).count) as samples:
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            crew.kill_one()
    assert max(samples) == 7
    # Handlers take no time: a manager that heard of no ack would promote 7 messages in 20 ms at best.
    assert len(programs.journal.ended()) > 30 * SECONDS


def test_pause(admin: Admin, producer: Producer, programs: Programs, client: redis.Redis, prefix: str) -> None:
    """Nothing becomes ready from the moment when the pause is acknowledged until it ends; then all does."""
    admin.set_policy("orders", visibility_ms=500, backoff_base_ms=50)
    ready = ShardKeys(prefix, "orders").of("ready")
    crew = Crew(programs)
    total = 0
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        _send(producer, 500)
        producer.send_many("orders", (Message(body=b"x", delay=0.3) for _ in range(500)))
        total += 1_000
        admin.set_policy("orders", paused=True)
        last = client.xinfo_stream(ready)["last-generated-id"]
        _send(producer, 500)
        total += 500
        crew.kill_one()
        assert client.xinfo_stream(ready)["last-generated-id"] == last
        [status] = admin.status("orders")
        assert (status.paused, status.late_ms) == (True, 0)
        admin.set_policy("orders", paused=False)
    wait_until(lambda: admin.sizes("orders")[0].stored == 0, 60, what="an empty topic")
    assert len(programs.journal.ended()) >= total


def test_keys(admin: Admin, producer: Producer, programs: Programs, client: redis.Redis, prefix: str) -> None:
    """Messages of a key begin in the order of their due times, and none is left behind."""
    admin.set_policy("orders", max_in_flight_per_key=1, visibility_ms=500, backoff_base_ms=50, max_retries=100)
    crew = Crew(programs)
    keys, count = 20, 0
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        messages = [Message(body=b"x", id=f"{n % keys:02}-{count + n:06}", key=f"{n % keys}") for n in range(200)]
        producer.send_many("orders", messages)
        count += 200
        crew.kill_one()
    wait_until(lambda: admin.sizes("orders")[0].stored == 0, 60, what="an empty topic")
    begun = list(dict.fromkeys(line.id for line in programs.journal.begun()))
    assert len(begun) == count
    for key in range(keys):
        of_key = [id for id in begun if id.startswith(f"{key:02}-")]
        assert of_key == sorted(of_key), f"{crew.killed} killed"
    shard = ShardKeys(prefix, "orders")
    assert not client.exists(*map(shard.of, ("busy", "slots", "parked")))
    assert admin.check("orders").is_clean
