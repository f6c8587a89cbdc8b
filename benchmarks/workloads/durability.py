"""Scheduling and draining with the append-only file: synced every second, and before every reply."""

from benchmarks.baselines import yardstick
from benchmarks.bench import Bench
from benchmarks.workloads.draining import Drain
from benchmarks.workloads.sending import send_many

__all__ = ["aof"]


def aof(bench: Bench) -> None:
    """`send_many` and the plain consumer, beside the yardstick on the same server."""
    bodies = bench.bodies(bench.size(20_000))
    for policy in ("everysec", "always"):
        with bench.host({"appendonly": "yes", "appendfsync": policy}) as host:
            host.manager()
            for _ in bench.laps(within_s=40, most=3):
                bench.add(f"yardstick, {policy}", "messages/s", yardstick(host.aside, bodies))
                bench.add(f"send_many, {policy}", "messages/s", send_many(host, "later", bodies))
                bench.add(f"plain consumer, {policy}", "messages/s", Drain(host, bench.size(20_000)).plain())
