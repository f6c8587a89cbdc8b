"""Scheduling: in bulk, one by one, and the server's memory for a waiting message."""

import time
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.baselines import HOUR_MS, Bare, yardstick
from benchmarks.bench import Bench, Host
from lisa_producer import Message, Producer

__all__ = ["HOUR_S", "bulk", "memory", "send_many", "single"]

HOUR_S = HOUR_MS / 1000
_TURN = 250


def send_many(
    host: Host, topic: str, bodies: list[str], delay_s: float = HOUR_S, *, of: Callable[[Iterable[Message]], Any] = iter
) -> float:
    """Sends bodies by one `send_many`, of an iterator or, with `of=list`, of a list. Returns messages per second."""
    with Producer(host.url) as producer:
        producer.send(
            topic, bodies[0], delay=delay_s
        )  # the work of the first send: connecting, declaring, loading the script
        messages = of(Message(body=body, delay=delay_s) for body in bodies)
        began = time.perf_counter()
        report = producer.send_many(topic, messages)
        taken = time.perf_counter() - began
    assert report.sent == len(bodies)  # noqa: S101 - or there is nothing to compare
    return len(bodies) / taken


def bulk(bench: Bench) -> None:
    """Scheduling in bulk: `send_many` from one process, beside the yardstick and the bare script."""
    bodies = bench.bodies(bench.size(50_000))
    with bench.host() as host:
        for _ in bench.laps(within_s=50):
            bench.add("yardstick", "messages/s", yardstick(host.aside, bodies))
            bench.add("send_many", "messages/s", send_many(host, "orders", bodies))
            host.client.flushdb()
            bench.add("send_many of a list", "messages/s", send_many(host, "orders", bodies, of=list))
            host.client.flushdb()
            bench.add("bare script", "messages/s", Bare(host.client).schedule(bodies, delay_ms=HOUR_MS))
            host.client.flushdb()


def single(bench: Bench) -> None:
    """Scheduling one by one: `send`, beside one bare `EVALSHA` per message."""
    bodies = bench.bodies(bench.size(5_000))
    with bench.host() as host, Producer(host.url) as producer:
        producer.send("orders", bodies[0], delay=HOUR_S)
        bare = Bare(host.client)
        for _ in bench.laps(within_s=25):
            bare_s = sending_s = 0.0
            # In turns, as the speed of a machine may change within a second.
            for at in range(0, len(bodies), _TURN):
                turn = bodies[at : at + _TURN]
                bare_s += len(turn) / bare.schedule(turn, delay_ms=HOUR_MS, batch=1)
                began = time.perf_counter()
                for body in turn:
                    producer.send("orders", body, delay=HOUR_S)
                sending_s += time.perf_counter() - began
            bench.add("bare EVALSHA", "messages/s", len(bodies) / bare_s)
            bench.add("send", "messages/s", len(bodies) / sending_s)
            host.client.flushdb()


def memory(bench: Bench) -> None:
    """Bytes of the server's memory for each waiting message with a generated id."""
    bodies = bench.bodies(bench.size(100_000))
    with bench.host() as host:
        before = host.memory()
        send_many(host, "orders", bodies)
        bench.add("waiting message", "bytes", (host.memory() - before) / len(bodies))
