"""Camellia's published case in full: by Lisa, and by the peer on Redis that comes nearest."""

from benchmarks.bench import Bench, ProcessEnded
from benchmarks.load import CAMELLIA, Case
from benchmarks.peers import PEERS
from benchmarks.peers.environments import NotHere, prepare
from benchmarks.running_peer import PeerFailed, running_peer
from benchmarks.workloads.lags import add_lags, run_case

__all__ = ["lag"]

_RIVAL = PEERS["bullmq"]
"""The only peer on Redis whose rates of scheduling and draining exceed those of the case."""


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
        with running_peer(bench, _RIVAL, prepare(_RIVAL), topics=case.topics) as running:
            running.start_workers()
            add_lags(bench, _RIVAL.name, running.steady(case), case.messages)
    except NotHere as why:
        bench.note(_RIVAL.name, f"not run: {why}")
    except (PeerFailed, ProcessEnded) as error:
        bench.note(_RIVAL.name, f"failed: {error}")
