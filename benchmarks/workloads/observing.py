"""What metrics and traces cost: a drain by a worker and `send_many`, without and with, in turns of one process."""

import json
import subprocess
import sys
import timeit

from benchmarks.bench import Bench
from lisa_common.model.delivery import Delivery, Entry
from lisa_consumer.delivery.core import Core
from lisa_consumer.metrics import METRICS
from lisa_consumer.worker.held import HeldDelivery
from lisa_consumer.worker.tracing import HandlerSpans

__all__ = ["observing"]


_MORE_ROUNDS = 2
"""The bars are some percent, which is what five rounds on a shared machine differ by."""


def observing(bench: Bench) -> None:
    """Processor time for each message, of `send_many` and of a draining worker: without, with metrics, with traces."""
    messages = bench.size(4_000)
    with bench.host() as host:
        command = [sys.executable, "-m", "benchmarks.programs.observed", host.url, str(messages)]
        done = subprocess.run(
            [*command, str(bench.rounds * _MORE_ROUNDS)],
            env=host.environment({"LISA_LOG_LEVEL": "error"}),
            stdout=subprocess.PIPE,
            check=True,
        )
    for line in done.stdout.splitlines():
        for variant, costs in json.loads(line).items():
            for work, cost in zip(("send", "drain"), costs, strict=True):
                bench.add(f"{work}, {variant}", "µs/message", cost)
    bench.add("drain, hooks that are off", "µs/message", _hooks_us())


def _hooks_us(times: int = 50_000) -> float:
    """What a worker looks at for each message, where nothing is registered and nothing listens."""
    core = Core("lisa", "billing")
    spans = HandlerSpans(core, 200)
    delivery = Delivery("orders", "billing", "id", b"", {}, 1, 0, 0, Entry("0-1"))
    held = HeldDelivery(delivery, 0.0)

    def call() -> None:
        span = spans.start(delivery) if spans.on else None
        METRICS.observe("lisa_handler_seconds", [0.0], "orders", "billing", "ok")
        if span is not None:
            spans.end(span, held, None)

    return min(timeit.repeat(call, number=times, repeat=3)) / times * 1e6
