"""The targets of Lisa, as ratios in one run. Pure."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.measurements import Ratios
from benchmarks.peers import PEERS
from benchmarks.workloads.growth import LEVELS
from benchmarks.workloads.nodes import SHARDS

__all__ = ["TARGETS", "Target", "Verdict", "judge"]

_LEAST, *_, _MOST = LEVELS
_BARE_SEND, _BARE_DRAIN = "bulk: bare script", "drain: bare scripts"
_PLAIN_DRAIN, _PLAIN_SEND = "observing: drain, without", "observing: send, without"


@dataclass(frozen=True, slots=True)
class Target:
    """One figure and its limit."""

    what: str
    sense: str
    """">=" or "<="."""
    limit: float
    unit: str
    measure: Callable[[Ratios], float]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target with its measured value; None if it was not measured."""

    target: Target
    value: float | None

    @property
    def holds(self) -> bool | None:
        """Whether the target is reached; None if it was not measured."""
        if self.value is None:
            return None
        return self.value >= self.target.limit if self.target.sense == ">=" else self.value <= self.target.limit


def judge(ratios: Ratios) -> list[Verdict]:
    """The verdicts on all targets."""
    return [Verdict(target, _value(target, ratios)) for target in TARGETS]


def _value(target: Target, ratios: Ratios) -> float | None:
    try:
        return target.measure(ratios)
    except (KeyError, ZeroDivisionError):  # not measured, or for too short a time
        return None


def _ratio(name: str, other: str) -> Callable[[Ratios], float]:
    return lambda ratios: ratios.ratio(name, other)


def _median(name: str) -> Callable[[Ratios], float]:
    return lambda ratios: ratios.median(name)


def _longest_block(ratios: Ratios) -> float:
    """Of all cases."""
    return max(
        ratios.median(f"blocking: longest block, {case}") for case in ("1 MiB bodies", "100 groups", "1M messages")
    )


def _grown(quantity: str, over: str | None = None) -> Callable[[Ratios], float]:
    """A quantity with the most waiting over the same with the least; each over its yardstick first, if it has one."""

    def at(ratios: Ratios, level: str) -> float:
        name = f"growth: {level}, {quantity}"
        return ratios.median(name) if over is None else ratios.ratio(name, f"growth: {level}, {over}")

    return lambda ratios: at(ratios, _MOST) / at(ratios, _LEAST)


def _over_peers(name: str, yardstick: str, quantity: str) -> Callable[[Ratios], float]:
    """A quantity over that of the fastest peer, each in terms of the yardstick beside it."""

    def measure(ratios: Ratios) -> float:
        rates = ratios.over_yardstick("peers", quantity).values()
        return ratios.ratio(name, yardstick) / max(rates, default=0)

    return measure


def _lag_over_peers(quantity: str) -> Callable[[Ratios], float]:
    """Lisa's lag in camellia's case over that of the best Redis peer in the same run."""

    def measure(ratios: Ratios) -> float:
        lags = ratios.per_subject("lag", quantity)
        rivals = (lag.median for name, lag in lags.items() if name in PEERS and PEERS[name].on_redis)
        return lags["lisa"].median / min(rivals, default=0)

    return measure


_GATHERING = "bare programs that gather"


def _over_bare_programs(name: str, most: float, quantity: str, programs: str) -> Target:
    """A quantity in camellia's case over that of bare programs."""
    measure = _ratio(f"lag: lisa, {quantity}", f"lag: {programs}, {quantity}")
    return Target(f"{name}, camellia's case, over {programs}", "<=", most, "x", measure)


TARGETS = (
    Target("schedule in bulk, over the yardstick", ">=", 1.5, "x", _ratio("bulk: send_many", "bulk: yardstick")),
    Target("schedule a list, over bare scripts", ">=", 0.8, "x", _ratio("bulk: send_many of a list", _BARE_SEND)),
    Target("schedule one by one, over a bare EVALSHA", ">=", 0.85, "x", _ratio("single: send", "single: bare EVALSHA")),
    Target(
        "schedule from 2,000 tasks, over the yardstick",
        ">=",
        0.5,
        "x",
        _ratio("concurrent: 2,000 tasks", "concurrent: yardstick"),
    ),
    Target(
        "schedule from 200 threads, over the yardstick",
        ">=",
        0.2,
        "x",
        _ratio("concurrent: 200 threads", "concurrent: yardstick"),
    ),
    Target(
        "drain, plain consumer, over the yardstick",
        ">=",
        0.9,
        "x",
        _ratio("drain: plain consumer", "drain: yardstick"),
    ),
    Target("drain, plain consumer, over bare scripts", ">=", 0.85, "x", _ratio("drain: plain consumer", _BARE_DRAIN)),
    Target("drain, worker, over bare scripts", ">=", 0.65, "x", _ratio("drain: worker", _BARE_DRAIN)),
    Target(
        "drain, worker, batches of 100, over bare scripts",
        ">=",
        0.8,
        "x",
        _ratio("drain: worker, batches of 100", _BARE_DRAIN),
    ),
    Target("drain, worker, over the yardstick", ">=", 0.5, "x", _ratio("drain: worker", "drain: yardstick")),
    Target(
        "drain, worker, over the fastest peer",
        ">=",
        1,
        "x",
        _over_peers("drain: worker", "drain: yardstick", "drain"),
    ),
    Target("lag mean, camellia's case, over the best Redis peer", "<=", 0.2, "x", _lag_over_peers("lag mean")),
    Target("lag p99, camellia's case, over the best Redis peer", "<=", 0.125, "x", _lag_over_peers("lag p99")),
    _over_bare_programs("CPU", 1.15, "CPU of programs and server", "bare programs"),
    _over_bare_programs("CPU", 1.15, "CPU of programs and server", _GATHERING),
    _over_bare_programs("lag mean", 1, "lag mean", _GATHERING),
    _over_bare_programs("lag p99", 1, "lag p99", _GATHERING),
    Target("lag p50, 250 messages/s", "<=", 1.2, "ms", _median("peers: lisa, lag p50")),
    Target("lag p99, 250 messages/s", "<=", 3, "ms", _median("peers: lisa, lag p99")),
    Target("lag, messages delivered early", "<=", 0, "", _median("lag: lisa, early")),
    Target(
        "send → deliver → ack, over a bare round trip",
        "<=",
        4,
        "x",
        _ratio("roundtrip: send → deliver → ack, p50", "roundtrip: PING, p50"),
    ),
    Target("memory of a waiting message", "<=", 450, "bytes", _median("memory: waiting message")),
    Target("idle, 100 topics: programs' CPU", "<=", 0.3, "s/min", _median("idle: 100 topics: programs' CPU")),
    Target("idle, 100 topics: commands", "<=", 20, "1/s", _median("idle: 100 topics: commands")),
    Target(
        "idle, 10,000 topics: manager, share of a core",
        "<=",
        2,
        "%",
        _median("idle: 10,000 topics: manager, share of a core"),
    ),
    Target("longest block of the server", "<=", 20, "ms", _longest_block),
    Target("sweep: tombstones ended by one manager", ">=", 50_000, "1/s", _median("blocking: sweep: tombstones")),
    Target("growth to 5 million: schedule, over bare scripts", ">=", 0.85, "x", _grown("send_many", "bare script")),
    Target("growth to 5 million: lag p99", "<=", 1.5, "x", _grown("lag p99")),
    Target(
        "sendMsg over HTTP, over an empty route", ">=", 0.5, "x", _ratio("http: sendMsg", "http: empty Starlette route")
    ),
    Target(
        "sendMsg over HTTP, over an empty route: CPU of the process",
        "<=",
        2,
        "x",
        _ratio("http: sendMsg: CPU of the process", "http: empty Starlette route: CPU of the process"),
    ),
    Target("/v1, batches of 100: read", ">=", 20_000, "1/s", _median("http: /v1, batches of 100: read")),
    Target("/v1, batches of 100: acked", ">=", 20_000, "1/s", _median("http: /v1, batches of 100: acked")),
    Target("3,000 long polls: lag, p99", "<=", 20, "ms", _median("http: long polls: lag, p99")),
    Target("3,000 long polls: memory each", "<=", 20, "KiB", _median("http: long polls: memory each")),
    Target("growth to 5 million: idle CPU", "<=", 1.25, "x", _grown("idle CPU of programs")),
    Target(
        "server's CPU for a message's life, over bare scripts",
        "<=",
        1.4,
        "x",
        _ratio("drain: server's CPU, plain consumer", "drain: server's CPU, bare scripts"),
    ),
    Target(
        f"Cluster of three nodes: servers' CPU, over one server, {SHARDS} shards",
        "<=",
        1.15,
        "x",
        _ratio("nodes: Cluster, 3 nodes: servers' CPU", f"nodes: one server, {SHARDS} shards: servers' CPU"),
    ),
    Target(
        f"Cluster of three nodes: commands, over one server, {SHARDS} shards",
        "<=",
        1.15,
        "x",
        _ratio("nodes: Cluster, 3 nodes: commands", f"nodes: one server, {SHARDS} shards: commands"),
    ),
    Target("drain, with metrics over without", "<=", 1.03, "x", _ratio("observing: drain, metrics", _PLAIN_DRAIN)),
    Target(
        "drain, with metrics that are off",
        "<=",
        0.01,
        "x",
        _ratio("observing: drain, hooks that are off", _PLAIN_DRAIN),
    ),
    Target("drain, with traces of 1 % over without", "<=", 1.1, "x", _ratio("observing: drain, traces", _PLAIN_DRAIN)),
    Target("send_many, with metrics over without", "<=", 1.03, "x", _ratio("observing: send, metrics", _PLAIN_SEND)),
    Target(
        "send_many, with traces of 1 % over without", "<=", 1.1, "x", _ratio("observing: send, traces", _PLAIN_SEND)
    ),
    Target(
        "two workers over one, handler waits 1 ms",
        ">=",
        1.7,
        "x",
        _ratio("workers: 2, handler waits 1 ms", "workers: 1, handler waits 1 ms"),
    ),
    Target(
        "four workers over one, handler waits 1 ms",
        ">=",
        2,
        "x",
        _ratio("workers: 4, handler waits 1 ms", "workers: 1, handler waits 1 ms"),
    ),
)
