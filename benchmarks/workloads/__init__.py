"""The parts of the suite, in the order of a full run."""

from collections.abc import Callable

from benchmarks.bench import Bench
from benchmarks.workloads import (
    blocking,
    concurrent,
    cores,
    curve,
    draining,
    durability,
    growth,
    http,
    idle,
    lag,
    nodes,
    observing,
    peers,
    roundtrip,
    scaling,
    sending,
)

__all__ = ["WORKLOADS"]

WORKLOADS: dict[str, Callable[[Bench], None]] = {
    "bulk": sending.bulk,
    "single": sending.single,
    "concurrent": concurrent.concurrent,
    "memory": sending.memory,
    "drain": draining.drain,
    "roundtrip": roundtrip.roundtrip,
    "aof": durability.aof,
    "workers": scaling.workers,
    "cores": cores.cores,
    "idle": idle.idle,
    "nodes": nodes.nodes,
    "blocking": blocking.blocking,
    "growth": growth.growth,
    "http": http.http,
    "lag": lag.lag,
    "curve": curve.curve,
    "observing": observing.observing,
    "peers": peers.peers,
}
