"""The common half of all peers' adapters: a process that sends by orders.

Orders come as lines of JSON on the standard input, and each is answered by a line on the standard output. Peers live in
their own environments: this imports only the standard library, and modules that do so, too.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from benchmarks.load import Case, pace
from benchmarks.stamps import body_of

__all__ = ["BATCH", "HOST", "PORT", "URL", "Message", "Send", "serve"]

BATCH = 500
URL = os.environ.get("BENCH_URL", "")
HOST, PORT = os.environ.get("BENCH_HOST", ""), int(os.environ.get("BENCH_PORT", "0"))

Message = tuple[str, float]
"""A body, and its due time in seconds since the epoch."""

Send = Callable[[Sequence[Message]], Coroutine[Any, Any, None]]
"""Schedules at most `BATCH` messages, and returns once the broker has all of them."""


def serve(opened: AbstractAsyncContextManager[Send]) -> None:
    """Carries out orders until the standard input ends."""
    with asyncio.Runner() as runner:
        send = runner.run(opened.__aenter__())
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            order = json.loads(line)
            answer = _steady(runner, send, Case(**order)) if "sending_s" in order else _bulk(runner, send, **order)
            print(json.dumps(answer), flush=True)
        runner.run(opened.__aexit__(None, None, None))


def _bulk(runner: asyncio.Runner, send: Send, *, messages: int, due_s: float) -> float:
    """Sends messages that are due at one instant. Returns messages per second."""
    body = body_of(due_s)
    began = time.perf_counter()
    for at in range(0, messages, BATCH):
        runner.run(send([(body, due_s)] * min(BATCH, messages - at)))
    return messages / (time.perf_counter() - began)


def _steady(runner: asyncio.Runner, send: Send, case: Case) -> float:
    """Sends a steady load to one queue. Returns the seconds by which it was behind at the end."""

    def send_now(_: int, delays: Sequence[float]) -> None:
        dues = [time.time() + delay for delay in delays]
        runner.run(send([(body_of(due_s), due_s) for due_s in dues]))

    return pace(case, send_now)
