"""The peers: scheduling, draining, lag, and their use of Redis' memory; each on a server of its own."""

import math
import time

from benchmarks.baselines import yardstick
from benchmarks.bench import Bench, ProcessEnded
from benchmarks.load import GENTLE
from benchmarks.peers import PEERS, Peer
from benchmarks.peers.environments import Environment, NotHere, prepare
from benchmarks.running_peer import WARM_UP, PeerFailed, running_peer
from benchmarks.workloads.lags import add_lags, run_case
from benchmarks.workloads.sending import HOUR_S

__all__ = ["peers"]

_SCHEDULED = 2_000
_DRAIN_S = 60.0


def peers(bench: Bench) -> None:
    """Scheduling and draining by the peers, and their lag under a light load."""
    _lisa(bench)
    for peer in PEERS.values():
        bench.note(peer.name, peer.about)
        try:
            environment = prepare(peer)
            _schedule(bench, peer, environment)
            _deliver(bench, peer, environment)
        except NotHere as why:
            bench.note(peer.name, f"not run: {why}")
        except (PeerFailed, ProcessEnded) as error:
            bench.note(peer.name, f"{peer.about}; failed: {str(error)[-500:]}")


def _lisa(bench: Bench) -> None:
    case = GENTLE.scaled(bench.scale)
    with bench.host() as host:
        host.manager()
        host.worker(["orders"])
        add_lags(bench, "lisa", run_case(host, case, ["orders"]), case.messages)


def _schedule(bench: Bench, peer: Peer, environment: Environment) -> None:
    messages = bench.size(_SCHEDULED)
    bodies = bench.bodies(bench.size(20_000))
    with running_peer(bench, peer, environment) as running:
        running.order(messages=WARM_UP, due_s=time.time() + HOUR_S)
        before = running.host.memory()
        rounds = 0
        for _ in bench.laps(within_s=12, most=3):
            rounds += 1
            bench.add(f"{peer.name}, yardstick", "messages/s", yardstick(running.host.aside, bodies))
            rate = running.order(messages=messages, due_s=time.time() + HOUR_S)
            bench.add(f"{peer.name}, schedule", "messages/s", rate)
        if peer.on_redis:
            taken = running.host.memory() - before
            bench.add(f"{peer.name}, memory", "bytes/message", taken / messages / rounds)


def _deliver(bench: Bench, peer: Peer, environment: Environment) -> None:
    messages = bench.size(peer.drained)
    rate = bench.measurements()[f"{peer.name}, schedule"].median
    with running_peer(bench, peer, environment) as running:
        running.start_workers()
        for _ in bench.laps(within_s=25, most=2):
            # Its workers may share the cores while it schedules.
            due_s = math.ceil(time.time() + 1 + 2 * messages / rate)
            running.order(messages=messages, due_s=due_s)
            if time.time() > due_s:
                bench.note(f"{peer.name}, drain", "some were scheduled when they were due already")
            stamps = running.host.take_stamps(messages, timeout=due_s - time.time() + _DRAIN_S)
            if len(stamps) < messages:
                bench.note(f"{peer.name}, drain", f"{len(stamps):,} of {messages:,} came within {_DRAIN_S:.0f} s")
            if stamps:
                bench.add(f"{peer.name}, drain", "messages/s", len(stamps) / (max(at for _, at in stamps) - due_s))
        case = GENTLE.scaled(bench.scale)
        add_lags(bench, peer.name, running.steady(case), case.messages)
