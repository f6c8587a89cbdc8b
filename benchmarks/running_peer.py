"""A peer on a server of its own: its broker, a process that sends through it, and its workers."""

import json
import math
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.bench import Bench, Host, ProcessEnded, uninterrupted
from benchmarks.load import Case
from benchmarks.peers import Peer
from benchmarks.peers.environments import Environment, NotHere, broker_command
from benchmarks.workloads.lags import LATEST_S, lags_of

__all__ = ["WARM_UP", "PeerFailed", "RunningPeer", "noted", "running_peer"]

WARM_UP = 100
"""Messages of the warm-up: after them, all that happens only once has happened."""
_START_S = 60.0


class PeerFailed(Exception):
    """A peer failed to carry out an order."""


@dataclass(frozen=True, slots=True)
class RunningPeer:
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
        self.order(messages=WARM_UP, due_s=due_s)
        if len(self.host.take_stamps(WARM_UP, timeout=_START_S)) < WARM_UP:
            raise PeerFailed(f"its first {WARM_UP} messages did not come within {_START_S:.0f} s")

    def order(self, **order: Any) -> float:
        """Sends an order to the producer, and returns its answer."""
        assert self.producer.stdin  # noqa: S101 - it is a pipe
        self.producer.stdin.write(json.dumps(order) + "\n")
        self.producer.stdin.flush()
        return float(self.answer())

    def answer(self) -> Any:
        """The next answer of the producer."""
        assert self.producer.stdout  # noqa: S101 - it is a pipe
        if line := self.producer.stdout.readline():
            return json.loads(line)
        raise PeerFailed("its producer has ended; its error is above")

    def steady(self, case: Case) -> list[float]:
        """Sends a steady load. Returns lags in ms."""
        self.order(**asdict(case))
        return lags_of(self.host.take_stamps(case.messages, timeout=case.delay_s[1] + LATEST_S))


@contextmanager
def noted(bench: Bench, peer: Peer) -> Iterator[None]:
    """Notes why a peer cannot be measured, and goes on after the block."""
    try:
        yield
    except NotHere as why:
        bench.note(peer.name, f"not run: {why}")
    except (PeerFailed, ProcessEnded) as error:
        bench.note(peer.name, f"failed: {str(error)[-500:]}")


@contextmanager
def running_peer(bench: Bench, peer: Peer, environment: Environment, *, topics: int = 1) -> Iterator[RunningPeer]:
    """Starts a peer on a new server, without workers; all its processes end with the block."""
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
        with uninterrupted():
            producer = subprocess.Popen(
                environment.command(words),
                env=host.environment(variables),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        try:
            running = RunningPeer(peer, environment, host, variables, producer)
            running.answer()
            yield running
        finally:
            with suppress(ProcessLookupError):
                os.killpg(producer.pid, signal.SIGKILL)
            producer.communicate()
