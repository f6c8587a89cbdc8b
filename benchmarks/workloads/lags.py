"""Lag: the time from due to the begin of the handler, under a steady load."""

import time
from collections.abc import Sequence
from itertools import count

from benchmarks.baselines import load_bare
from benchmarks.bench import Bench, Host
from benchmarks.load import Case, Send, pace
from benchmarks.measurements import percentile
from benchmarks.programs.bare import CHANNEL, key
from benchmarks.stamps import Stamp, body_of
from lisa_producer import Message, Producer

__all__ = ["LATEST_S", "add_lags", "lags_of", "run_bare_case", "run_case"]

LATEST_S = 30.0
"""Seconds to wait for messages after the last due time."""


def run_case(host: Host, case: Case, topics: Sequence[str]) -> list[float]:
    """Sends through Lisa to topics that a worker reads. Returns lags in ms; negative ones are early."""
    with Producer(host.url) as producer:

        def send(topic: int, delays: Sequence[float]) -> None:
            messages = [Message(body=body_of(time.time() + delay), delay=delay) for delay in delays]
            producer.send_many(topics[topic], messages)

        return _run(host, case, send)


def run_bare_case(host: Host, case: Case, topics: Sequence[str]) -> list[float]:
    """The same by bare scripts, to topics that the programs of `benchmarks.programs.bare` serve."""
    sha, ids = load_bare(host.client)["schedule"], count()

    def send(topic: int, delays: Sequence[float]) -> None:
        now, name = time.time(), topics[topic]
        arguments: list[str | int] = []
        for delay in delays:
            arguments += (f"{next(ids):017d}", round(delay * 1000), body_of(now + delay))
        with host.client.pipeline(transaction=False) as pipe:
            pipe.evalsha(sha, 2, key("messages", name), key("waiting", name), *arguments)
            pipe.publish(CHANNEL, f"{name} {(now + min(delays)) * 1000}")
            pipe.execute()

    return _run(host, case, send)


def _run(host: Host, case: Case, send: Send) -> list[float]:
    pace(case, send)
    return lags_of(host.take_stamps(case.messages, timeout=case.delay_s[1] + LATEST_S))


def lags_of(stamps: Sequence[Stamp]) -> list[float]:
    """Lags in ms; negative ones are early."""
    return [(at - due) * 1000 for due, at in stamps]


def add_lags(bench: Bench, subject: str, lags: Sequence[float], sent: int) -> None:
    """Sums up one case."""
    bench.add(f"{subject}, delivered", "%", 100 * len(lags) / sent)
    if lags:
        bench.add(f"{subject}, lag mean", "ms", sum(lags) / len(lags))
        bench.add(f"{subject}, lag p50", "ms", percentile(lags, 50))
        bench.add(f"{subject}, lag p99", "ms", percentile(lags, 99))
        bench.add(f"{subject}, lag max", "ms", max(lags))
        bench.add(f"{subject}, early", "messages", sum(lag < 0 for lag in lags))
        bench.add(f"{subject}, earliest", "ms", max(0.0, -min(lags)))
