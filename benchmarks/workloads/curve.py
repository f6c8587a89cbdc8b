"""Lag over load: from a few messages a second to more than each queue can take."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.bench import Bench
from benchmarks.load import GENTLE, Case
from benchmarks.measurements import percentile
from benchmarks.peers import PEERS
from benchmarks.peers.environments import prepare
from benchmarks.running_peer import noted, running_peer
from benchmarks.workloads.lags import run_case

__all__ = ["RATES", "curve"]

RATES = (10, 100, 250, 1_000, 2_500, 5_000, 10_000)
"""Messages a second."""

_LATE_MS = 100.0
"""Beyond this p50 a queue has more than it can take: it is not measured at higher rates."""

_BESIDE = ("beanstalkd", "rabbitmq", "bullmq", "docket", "arq", "celery")
"""The peers with the lowest lags at 250 messages/s."""


def curve(bench: Bench) -> None:
    """Lag at 10 to 10,000 messages a second, of Lisa and the peers that are late least, until they cannot keep up."""
    with bench.host() as host:
        host.manager()
        host.worker(["orders"])
        _climb(bench, "lisa", lambda case: run_case(host, case, ["orders"]))
    for peer in map(PEERS.__getitem__, _BESIDE):
        with noted(bench, peer), running_peer(bench, peer, prepare(peer)) as running:
            running.start_workers()
            _climb(bench, peer.name, running.steady)


def _climb(bench: Bench, subject: str, run: Callable[[Case], Sequence[float]]) -> None:
    """Measures one rate after another."""
    for rate in RATES:
        case = replace(GENTLE, messages=int(rate * GENTLE.sending_s)).scaled(bench.scale)
        lags = run(case)
        if len(lags) < case.messages:
            bench.note(subject, f"at {rate:,} messages/s, {len(lags):,} of {case.messages:,} came")
            return
        bench.add(f"{subject} at {rate}/s, lag p50", "ms", percentile(lags, 50))
        bench.add(f"{subject} at {rate}/s, lag p99", "ms", percentile(lags, 99))
        if percentile(lags, 50) > _LATE_MS:
            return
