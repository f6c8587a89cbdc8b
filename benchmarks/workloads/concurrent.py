"""Scheduling one by one from many callers of one producer: tasks of an event loop, and threads."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

from benchmarks.baselines import yardstick
from benchmarks.bench import Bench, Host
from benchmarks.workloads.sending import HOUR_S
from lisa_producer import AsyncProducer, Producer

__all__ = ["TASKS", "THREADS", "concurrent"]

TASKS = (1, 10, 500, 2_000)
THREADS = (1, 10, 200)


def concurrent(bench: Bench) -> None:
    """`send` by many tasks of one `AsyncProducer`, and many threads of one `Producer`, beside the yardstick."""
    bodies = bench.bodies(bench.size(20_000))
    with bench.host() as host:
        for _ in bench.laps(within_s=90):
            bench.add("yardstick", "messages/s", yardstick(host.aside, bodies))
            for tasks in TASKS:
                rate = asyncio.run(_from_tasks(host, _share(bodies, tasks), tasks))
                bench.add(f"{tasks:,} tasks", "messages/s", rate)
                host.client.flushdb()
            for threads in THREADS:
                bench.add(f"{threads:,} threads", "messages/s", _from_threads(host, _share(bodies, threads), threads))
                host.client.flushdb()


def _share(bodies: list[str], callers: int) -> list[str]:
    return bodies if callers > 1 else bodies[: max(100, len(bodies) // 10)]


async def _from_tasks(host: Host, bodies: list[str], tasks: int) -> float:
    async with AsyncProducer(host.url) as producer:
        await producer.send("orders", bodies[0], delay=HOUR_S)
        waiting = iter(bodies)

        async def call() -> None:
            for body in waiting:
                await producer.send("orders", body, delay=HOUR_S)

        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(tasks):
                group.create_task(call())
        return len(bodies) / (time.perf_counter() - began)


def _from_threads(host: Host, bodies: list[str], threads: int) -> float:
    with Producer(host.url) as producer, ThreadPoolExecutor(threads) as pool:
        producer.send("orders", bodies[0], delay=HOUR_S)

        def call(part: list[str]) -> None:
            for body in part:
                producer.send("orders", body, delay=HOUR_S)

        began = time.perf_counter()
        list(pool.map(call, (bodies[at::threads] for at in range(threads))))
        return len(bodies) / (time.perf_counter() - began)
