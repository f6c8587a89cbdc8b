"""Watches the server: samples its clock, and audits that every message is in one place."""

import contextlib
from threading import Event, Thread

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from chaos.arena import PREFIX, SHAKY, Arena
from chaos.draining import audit
from chaos.history import Clock, Problem, now
from chaos.programs.setting import TOPICS
from chaos.topics import METERED, POLICIES
from lisa_common.client.connection import Connection
from lisa_common.errors import LisaError
from lisa_common.model.keys import ShardKeys
from support.in_flight import InFlight

__all__ = ["Observer"]

_SAMPLE_S = 0.1
_AUDIT_S = 10.0
_COUNT_S = 0.02


class Observer:
    """Three threads that write into the history."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._stopping = Event()
        self._threads = [Thread(target=run) for run in (self._watch_clock, self._audit, self._count_in_flight)]
        self.audited = 0
        """Messages that were audited so far."""
        self.counted = 0
        """How often messages in flight were counted."""

    def start(self) -> "Observer":
        """Starts the threads."""
        for thread in self._threads:
            thread.start()
        return self

    def close(self) -> None:
        """Ends the threads."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _watch_clock(self) -> None:
        port = self._arena.server.port
        with redis.Redis(port=port, protocol=2, socket_timeout=2, retry=Retry(NoBackoff(), 0)) as client:
            while not self._stopping.wait(_SAMPLE_S):
                since = now()
                with contextlib.suppress(redis.RedisError):
                    seconds, microseconds = client.time()
                    self._arena.recorder.write(Clock(now(), since, seconds * 1000 + microseconds / 1000))

    def _count_in_flight(self) -> None:
        """Promise 15: never more than `max_in_flight` are ready or delivered."""
        most = POLICIES[METERED].max_in_flight or 0
        port = self._arena.server.port
        with redis.Redis(port=port, protocol=2, socket_timeout=2, retry=Retry(NoBackoff(), 0)) as client:
            in_flight = InFlight(client, ShardKeys(PREFIX, METERED).of("ready"))
            while not self._stopping.wait(_COUNT_S):
                with contextlib.suppress(redis.RedisError):
                    count = in_flight.count()
                    self.counted += 1
                    if count > most:
                        text = f"{METERED}: {count} in flight, {most} allowed: {in_flight.told}"
                        self._arena.recorder.write(Problem(now(), 15, text))

    def _audit(self) -> None:
        with Connection(self._arena.server.url, name="audit", timeout_s=5) as connection:
            while not self._stopping.wait(_AUDIT_S):
                for topic in TOPICS:
                    if topic != SHAKY:
                        with contextlib.suppress(LisaError):
                            self.audit(connection, topic)

    def audit(self, connection: Connection, topic: str) -> None:
        """Audits one topic; each finding is a problem."""
        self.audited += audit(self._arena, connection, topic)
