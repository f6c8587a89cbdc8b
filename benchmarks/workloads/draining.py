"""Draining: 100,000 messages are due at one instant; the clock runs from that instant until the last is done."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from benchmarks.baselines import Bare, yardstick
from benchmarks.bench import GROUP, Bench, Host
from benchmarks.stamps import body_of
from lisa_common.model.keys import ShardKeys
from lisa_consumer import Consumer
from lisa_producer import Message, Producer
from support.waiting import wait_until

__all__ = ["Drain", "drain"]

_PATIENCE_S = 120.0
_READ = 500
_TRIES = 3
_KEYS = ShardKeys("lisa", "orders")


@dataclass(slots=True)
class Drain:
    """Rounds of one number of messages on one host, where a manager runs."""

    host: Host
    messages: int
    rate: float = 5_000.0
    """Lowest expected rate of scheduling: it decides how far ahead the instant lies."""
    server_cpu_us: float = 0.0
    """The server's processor time for each message's whole life, in the latest round."""
    server_share: float = 0.0
    """The server's processor time from the instant to the end, over that time, in the latest round of workers."""

    def plain(self) -> float:
        """By the plain consumer, in this process. Returns messages per second."""

        def consume(_: float) -> float:
            done = 0
            with Consumer(_KEYS.topic, GROUP, url=self.host.url) as consumer:
                while done < self.messages:
                    deliveries = consumer.read(_READ, wait=_PATIENCE_S)
                    assert deliveries, f"{done} of {self.messages} messages came"  # noqa: S101
                    consumer.ack(*deliveries)
                    done += len(deliveries)
            return time.time()

        return self._timed(consume)

    def by_workers(self) -> float:
        """By workers that run. Returns messages per second."""

        def wait(due_s: float) -> float:
            wait_until(lambda: time.time() >= due_s, _PATIENCE_S)
            used_s = self.host.cpu_s()
            # A record is there until its message is acked; also that of a message that became garbage.
            wait_until(lambda: not self.host.client.hlen(_KEYS.of("messages")), _PATIENCE_S)
            ended_s = time.time()
            self.server_share = (self.host.cpu_s() - used_s) / (ended_s - due_s)
            return ended_s

        return self._timed(wait)

    def _timed(self, drained: Callable[[float], float]) -> float:
        for _ in range(_TRIES):
            used_s = self.host.cpu_s()
            due_s = self._schedule()
            in_time = time.time() < due_s
            ended_s = drained(due_s)
            self._settled()
            self.server_cpu_us = (self.host.cpu_s() - used_s) / self.messages * 1e6
            # If scheduling took longer than expected, there was no instant at which all were due.
            if in_time:
                return self.messages / (ended_s - due_s)
        raise RuntimeError(f"in {_TRIES} tries, scheduling took longer than foreseen")

    def _schedule(self) -> float:
        """Sends all messages. Returns the instant at which all are due."""
        due_s = round(time.time() + 0.5 + 1.5 * self.messages / self.rate, 3)
        due, body = datetime.fromtimestamp(due_s, UTC), body_of(due_s)
        began = time.time()
        with Producer(self.host.url) as producer:
            report = producer.send_many(_KEYS.topic, (Message(body=body, at=due) for _ in range(self.messages)))
        assert report.sent == self.messages  # noqa: S101 - or there is nothing to compare
        self.rate = self.messages / (time.time() - began)
        return due_s

    def _settled(self) -> None:
        """Waits until every message is acked and trimmed."""
        client = self.host.client
        wait_until(lambda: not client.hlen(_KEYS.of("messages")) and not client.xlen(_KEYS.of("ready")), _PATIENCE_S)


def drain(bench: Bench) -> None:
    """Draining by the plain consumer and by the worker, and the server's processor time for a message's whole life."""
    messages = bench.size(100_000)
    bodies = bench.bodies(bench.size(20_000))
    for _ in bench.laps(within_s=280):
        with bench.host() as host:
            _bare(bench, host, messages)
        with bench.host() as host:
            host.manager()
            rate = yardstick(host.aside, bodies)
            bench.add("yardstick", "messages/s", rate)
            rounds = Drain(host, messages, rate=rate / 2)
            bench.add("plain consumer", "messages/s", rounds.plain())
            bench.add("server's CPU, plain consumer", "µs/message", rounds.server_cpu_us)
            host.worker([_KEYS.topic], handler="nothing")
            bench.add("worker", "messages/s", rounds.by_workers())
            bench.add("server's CPU, worker", "µs/message", rounds.server_cpu_us)
        with bench.host() as host:
            host.manager()
            host.worker([_KEYS.topic], handler="nothing, batches")
            bench.add("worker, batches of 100", "messages/s", Drain(host, messages, rate=rate / 2).by_workers())


def _bare(bench: Bench, host: Host, messages: int) -> None:
    bare = Bare(host.client)
    used = host.cpu_s()
    bare.schedule(bench.bodies(messages), delay_ms=0)
    bench.add("bare scripts", "messages/s", bare.drain(messages))
    bench.add("server's CPU, bare scripts", "µs/message", (host.cpu_s() - used) / messages * 1e6)
