"""The peers: scheduling, draining, lag, and what they take of Redis' memory; each on a server of its own."""

import json
import math
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.baselines import yardstick
from benchmarks.bench import Bench, Host
from benchmarks.load import GENTLE, Case
from benchmarks.peers import PEERS, Peer
from benchmarks.peers.environments import Environment, NotHere, broker_command, prepare
from benchmarks.workloads.lags import LATEST_S, add_lags, lags_of, run_case
from benchmarks.workloads.sending import HOUR_S

__all__ = ["Stage", "peers", "staged"]

_SCHEDULED = 2_000
_WARM_UP = 100
"""Messages after which everything has been done that is done once."""
_START_S = 60.0
_DRAIN_S = 60.0


def peers(bench: Bench) -> None:
    """Scheduling and draining by the peers, and their lag under a load that none should feel."""
    _lisa(bench)
    for peer in PEERS.values():
        bench.note(peer.name, peer.about)
        try:
            environment = prepare(peer)
        except NotHere as why:
            bench.note(peer.name, f"not run: {why}")
            continue
        try:
            _schedule(bench, peer, environment)
            _deliver(bench, peer, environment)
        except (AssertionError, RuntimeError, OSError) as error:
            bench.note(peer.name, f"{peer.about}; failed: {str(error)[-500:]}")


def _lisa(bench: Bench) -> None:
    case = GENTLE.scaled(bench.scale)
    with bench.host() as host:
        host.manager()
        host.worker(["orders"])
        add_lags(bench, "lisa", run_case(host, case, ["orders"]), case.messages)


@dataclass(frozen=True, slots=True)
class Stage:
    """A peer with its broker, and a process that sends through it."""

    peer: Peer
    environment: Environment
    host: Host
    variables: dict[str, str]
    producer: "subprocess.Popen[str]"

    def start_workers(self) -> None:
        """Starts its programs; they are ready when a few messages have come through."""
        for program in self.peer.programs:
            words = [word.format(url=self.host.url) for word in program]
            self.host.start(self.environment.command(words), says="", environment=self.variables)
        due_s = math.ceil(time.time() + 1)
        self.order(messages=_WARM_UP, due_s=due_s)
        if len(self.host.take_stamps(_WARM_UP, timeout=_START_S)) < _WARM_UP:
            raise RuntimeError(f"its first {_WARM_UP} messages did not come within {_START_S:.0f} s")

    def order(self, **order: Any) -> float:
        """Has the producer do something, and returns its answer."""
        assert self.producer.stdin  # noqa: S101 - it is a pipe
        self.producer.stdin.write(json.dumps(order) + "\n")
        self.producer.stdin.flush()
        return float(self.answer())

    def answer(self) -> Any:
        """What the producer says next."""
        assert self.producer.stdout  # noqa: S101 - it is a pipe
        if line := self.producer.stdout.readline():
            return json.loads(line)
        raise RuntimeError("its producer has ended; its error is above")

    def steady(self, case: Case) -> list[float]:
        """Sends a steady load. Result: lags in ms."""
        self.order(**asdict(case))
        return lags_of(self.host.take_stamps(case.messages, timeout=case.delay_s[1] + LATEST_S))


@contextmanager
def staged(bench: Bench, peer: Peer, environment: Environment, *, topics: int = 1) -> Iterator[Stage]:
    """A peer on a server of its own, without workers; all of it ends with the block."""
    with bench.host() as host:
        port = host.port
        if peer.debian:
            port = 1 + host.port
            command, own = broker_command(peer.debian, port, host.directory)
            host.start(command, says="", environment=own)
            host.wait_for_port(port)
        variables = {
            **environment.variables,
            "BENCH_URL": host.url,
            "BENCH_HOST": "127.0.0.1",
            "BENCH_PORT": str(port),
            "BENCH_TOPICS": str(topics),
        }
        words = peer.producer or ("python", "-m", "benchmarks.peers", peer.name, "send")
        producer = subprocess.Popen(
            environment.command(words),
            env=host.environment(variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            stage = Stage(peer, environment, host, variables, producer)
            stage.answer()
            yield stage
        finally:
            with suppress(ProcessLookupError):
                os.killpg(producer.pid, signal.SIGKILL)
            producer.communicate()


def _schedule(bench: Bench, peer: Peer, environment: Environment) -> None:
    messages = bench.size(_SCHEDULED)
    bodies = bench.bodies(bench.size(20_000))
    with staged(bench, peer, environment) as stage:
        stage.order(messages=_WARM_UP, due_s=time.time() + HOUR_S)
        before = stage.host.memory()
        rounds = 0
        for _ in bench.laps(within_s=12, most=3):
            rounds += 1
            bench.add(f"{peer.name}, yardstick", "messages/s", yardstick(stage.host.aside, bodies))
            rate = stage.order(messages=messages, due_s=time.time() + HOUR_S)
            bench.add(f"{peer.name}, schedule", "messages/s", rate)
        if peer.on_redis:
            taken = stage.host.memory() - before
            bench.add(f"{peer.name}, memory", "bytes/message", taken / messages / rounds)


def _deliver(bench: Bench, peer: Peer, environment: Environment) -> None:
    messages = bench.size(peer.drained)
    rate = bench.measurements()[f"{peer.name}, schedule"].low
    with staged(bench, peer, environment) as stage:
        stage.start_workers()
        for _ in bench.laps(within_s=25, most=2):
            # Its workers may take of the same cores while it schedules.
            due_s = math.ceil(time.time() + 1 + 2 * messages / rate)
            stage.order(messages=messages, due_s=due_s)
            if time.time() > due_s:
                bench.note(f"{peer.name}, drain", "some were scheduled when they were due already")
            stamps = stage.host.take_stamps(messages, timeout=due_s - time.time() + _DRAIN_S)
            if len(stamps) < messages:
                bench.note(f"{peer.name}, drain", f"{len(stamps):,} of {messages:,} came within {_DRAIN_S:.0f} s")
            if stamps:
                bench.add(f"{peer.name}, drain", "messages/s", len(stamps) / (max(at for _, at in stamps) - due_s))
        case = replace(GENTLE.scaled(bench.scale), topics=1)
        add_lags(bench, peer.name, stage.steady(case), case.messages)
