"""Camellia's published case in full: by Lisa, and by the peer on Redis that comes nearest."""

from benchmarks.bench import Bench
from benchmarks.load import CAMELLIA, Case
from benchmarks.peers import PEERS
from benchmarks.peers.environments import NotHere, prepare
from benchmarks.workloads.lags import add_lags, run_case
from benchmarks.workloads.peers import staged

__all__ = ["lag"]

_RIVAL = PEERS["bullmq"]
"""The one peer on Redis whose rates of scheduling and draining are beyond those of the case."""


def lag(bench: Bench) -> None:
    """Camellia's published case in full: 100 topics with 1,000 messages, delays of 10 to 70 s, sent in 41 s."""
    case = CAMELLIA.scaled(bench.scale)
    topics = [f"topic-{number}" for number in range(case.topics)]
    with bench.host() as host:
        host.manager()
        host.worker(topics)
        add_lags(bench, "lisa", run_case(host, case, topics), case.messages)
    _rival(bench, case)


def _rival(bench: Bench, case: Case) -> None:
    try:
        environment = prepare(_RIVAL)
    except NotHere as why:
        bench.note(_RIVAL.name, f"not run: {why}")
        return
    with staged(bench, _RIVAL, environment, topics=case.topics) as stage:
        stage.start_workers()
        add_lags(bench, _RIVAL.name, stage.steady(case), case.messages)
