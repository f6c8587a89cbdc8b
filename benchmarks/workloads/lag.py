"""Camellia's published case: by Lisa, by bare programs, and by the peer on Redis that comes nearest."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.bench import Bench, Host
from benchmarks.load import CAMELLIA, Case
from benchmarks.peers import PEERS
from benchmarks.peers.environments import prepare
from benchmarks.running_peer import noted, running_peer
from benchmarks.workloads.lags import add_lags, run_bare_case, run_case
from support.processes import Process

__all__ = ["lag"]

_RIVAL = PEERS["bullmq"]
"""The only peer on Redis whose rates of scheduling and draining exceed those of the case."""


_SHORTER = 0.25
"""The part of the case, at the same rate, that is measured of others than Lisa."""

_BARE = {"bare programs": False, "bare programs that gather": True}
"""Each kind, and whether it lets messages gather."""


def lag(bench: Bench) -> None:
    """Camellia's published case: in full by Lisa, and a quarter of it by bare programs and by BullMQ.

    In full: 100 topics with 1,000 messages, delays of 10 to 70 s, sent in 41 s. Bare programs that act at once are
    quick; those that let messages gather take less of the processor.
    """
    case = CAMELLIA.scaled(bench.scale)
    topics = [f"topic-{number}" for number in range(case.topics)]
    with bench.host() as host:
        programs = [host.manager(), host.worker(topics)]
        with _counting_cpu(bench, "lisa", host, programs, messages=case.messages):
            add_lags(bench, "lisa", run_case(host, case, topics), case.messages)
    case = CAMELLIA.scaled(bench.scale * _SHORTER)
    for subject, gathers in _BARE.items():
        with bench.host() as host:
            programs = host.bare_programs(topics, gathers=gathers)
            with _counting_cpu(bench, subject, host, programs, messages=case.messages):
                add_lags(bench, subject, run_bare_case(host, case, topics), case.messages)
    _rival(bench, case)


@contextmanager
def _counting_cpu(
    bench: Bench, subject: str, host: Host, programs: Sequence[Process], *, messages: int
) -> Iterator[None]:
    """Adds the processor time that the programs and the server take in the block."""

    def cpu_s() -> float:
        return sum(program.cpu_s() for program in programs) + host.cpu_s()

    used_s = cpu_s()
    yield
    bench.add(f"{subject}, CPU of programs and server", "µs/message", (cpu_s() - used_s) / messages * 1e6)


def _rival(bench: Bench, case: Case) -> None:
    with noted(bench, _RIVAL), running_peer(bench, _RIVAL, prepare(_RIVAL), topics=case.topics) as running:
        running.start_workers()
        add_lags(bench, _RIVAL.name, running.steady(case), case.messages)
