"""The cost of an idle Lisa: processor time of its programs, and commands that the server carries out."""

import time
from collections.abc import Sequence

from benchmarks.bench import Bench, Host
from benchmarks.workloads.sending import HOUR_S
from lisa_producer import Message, Producer
from support.processes import Process

__all__ = ["Idle", "idle"]

_SETTLE_S = 3.0
_MINUTE_S = 60.0


class Idle:
    """Watches a host and idle processes for a while."""

    def __init__(self, host: Host, processes: Sequence[Process], seconds: float) -> None:
        time.sleep(_SETTLE_S)
        cpu_s, server_cpu_s, commands = sum(p.cpu_s() for p in processes), host.cpu_s(), host.commands()
        time.sleep(seconds)
        self.cpu_s_per_minute = (sum(p.cpu_s() for p in processes) - cpu_s) * _MINUTE_S / seconds
        self.server_cpu_s_per_minute = (host.cpu_s() - server_cpu_s) * _MINUTE_S / seconds
        self.commands_per_s = (host.commands() - commands) / seconds


def idle(bench: Bench) -> None:
    """100 topics with 1,000 messages an hour away, served by a manager and a worker; 10,000 topics, by a manager."""
    with bench.host() as host:
        topics = [f"topic-{number}" for number in range(100)]
        _send_to_each(host, topics, messages=10)
        programs = [host.manager(), host.worker(topics)]
        _add(bench, "100 topics", Idle(host, programs, bench.seconds(60)))
    with bench.host() as host:
        count = bench.size(10_000)
        _send_to_each(host, [f"topic-{number}" for number in range(count)], messages=1)
        watched = Idle(host, [host.manager()], bench.seconds(30))
        _add(bench, "10,000 topics", watched)
        bench.add("10,000 topics: manager, share of a core", "%", watched.cpu_s_per_minute / _MINUTE_S * 100)


def _send_to_each(host: Host, topics: Sequence[str], *, messages: int) -> None:
    with Producer(host.url) as producer:
        for topic in topics:
            producer.send_many(topic, [Message(body="x" * 200, delay=HOUR_S)] * messages)


def _add(bench: Bench, what: str, watched: Idle) -> None:
    bench.add(f"{what}: programs' CPU", "s/min", watched.cpu_s_per_minute)
    bench.add(f"{what}: server's CPU", "s/min", watched.server_cpu_s_per_minute)
    bench.add(f"{what}: commands", "1/s", watched.commands_per_s)
