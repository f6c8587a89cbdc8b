"""The round trip of one message on an idle server: sent due now, delivered to a consumer that waits for it, acked."""

import time

from benchmarks.bench import Bench
from benchmarks.measurements import percentile
from benchmarks.stamps import body_of
from lisa_producer import Producer

__all__ = ["roundtrip"]

_GAP_S = 0.005
"""Seconds until all programs are idle again."""


def roundtrip(bench: Bench) -> None:
    """From the call of `send` until `ack` has returned in a consumer's process, beside a bare `PING`."""
    messages = bench.size(400)
    with bench.host() as host, Producer(host.url) as producer:
        host.manager()
        host.echo("orders")
        for _ in bench.laps(within_s=40):
            pings = []
            for _ in range(messages):
                time.sleep(_GAP_S)
                began = time.perf_counter()
                host.client.ping()
                pings.append(time.perf_counter() - began)
                time.sleep(_GAP_S)
                producer.send("orders", body_of(time.time()))
            took = [at - began for began, at in host.take_stamps(messages, timeout=30)]
            bench.add("PING, p50", "ms", percentile(pings, 50) * 1000)
            bench.add("send → deliver → ack, p50", "ms", percentile(took, 50) * 1000)
            bench.add("send → deliver → ack, p99", "ms", percentile(took, 99) * 1000)
