"""One, two and four workers, each with one message at a time, where the handler takes 1 ms."""

from benchmarks.bench import Bench
from benchmarks.workloads.draining import Drain

__all__ = ["workers"]

_ADDED = {1: 1, 2: 1, 4: 2}
"""Number of workers → how many to start in addition to those that run."""


def workers(bench: Bench) -> None:
    """Draining by several workers: where the handler waits for 1 ms, and where it keeps a core busy for 1 ms."""
    for handler, taking in (("wait", "waits"), ("burn", "computes")):
        with bench.host() as host:
            host.manager()
            for count, added in _ADDED.items():
                for _ in range(added):
                    host.worker(["orders"], handler=handler, concurrency=1)
                for _ in bench.laps(within_s=16, most=3):
                    rate = Drain(host, bench.size(2_000) * count).by_workers()
                    bench.add(f"{count}, handler {taking} 1 ms", "messages/s", rate)
    bench.note("computes", "a handler that keeps a core busy cannot scale beyond the cores, which the server shares")
