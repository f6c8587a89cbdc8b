"""Whether many waiting messages make anything slower: the same figures from ten thousand to five million."""

import itertools

from benchmarks.baselines import HOUR_MS, Bare, yardstick
from benchmarks.bench import Bench, Host
from benchmarks.load import Case
from benchmarks.measurements import percentile
from benchmarks.workloads.idle import Idle
from benchmarks.workloads.lags import run_case
from benchmarks.workloads.sending import send_many
from lisa_common.model.keys import ShardKeys
from lisa_producer import Producer

__all__ = ["LEVELS", "growth"]

LEVELS = {"10 thousand": 10_000, "1 million": 1_000_000, "5 million": 5_000_000}
_KEYS = ShardKeys("lisa", "orders")
_STEP = 10_000
_DAY_MS = 24 * HOUR_MS
_CASE = Case(topics=1, messages=10_000, sending_s=8, delay_s=(1, 4))

# Sending five million messages takes minutes. Copies of one message are as much to look through.
_COPY = """
local record, due = redis.call('HGET', KEYS[1], ARGV[1]), redis.call('ZSCORE', KEYS[2], ARGV[1])
for number = tonumber(ARGV[2]) + 1, tonumber(ARGV[3]) do
  local id = string.format('%016d~', number)
  redis.call('HSET', KEYS[1], id, record)
  redis.call('ZADD', KEYS[2], due + number, id)
end
"""


def growth(bench: Bench) -> None:
    """Scheduling, also by bare scripts, lag and idle cost beside waiting messages, which are due in a day."""
    with bench.host() as host, bench.host() as bare_host:
        bare = Bare(bare_host.client)
        bare.schedule(bench.bodies(1), delay_ms=_DAY_MS)
        empty = host.memory()
        programs = [host.manager(), host.worker([_KEYS.topic])]
        for name, level in LEVELS.items():
            held = bench.size(level)
            _fill(host, held)
            _copy(bare_host, ["messages", "waiting"], f"{0:017d}", held)
            bench.add(f"{name}, memory", "bytes/message", (host.memory() - empty) / held)
            bodies = bench.bodies(bench.size(20_000))
            for _ in bench.laps(within_s=12, most=3):
                bench.add(f"{name}, yardstick", "messages/s", yardstick(host.aside, bodies))
                bench.add(f"{name}, send_many", "messages/s", send_many(host, _KEYS.topic, bodies, _DAY_MS / 1000))
                bench.add(f"{name}, bare script", "messages/s", bare.schedule(bodies, delay_ms=_DAY_MS))
            lags = run_case(host, _CASE.scaled(bench.scale), [_KEYS.topic])
            bench.add(f"{name}, lag p99", "ms", percentile(lags, 99))
            watched = Idle(host, programs, bench.seconds(15))
            bench.add(f"{name}, idle CPU of programs", "s/min", watched.cpu_s_per_minute)
            bench.add(f"{name}, idle commands", "1/s", watched.commands_per_s)


def _fill(host: Host, messages: int) -> None:
    """Fills the topic up to so many messages."""
    with Producer(host.url) as producer:
        sent = producer.send(_KEYS.topic, "x" * 200, delay=_DAY_MS / 1000)
    _copy(host, [_KEYS.of("messages"), _KEYS.of("waiting")], str(sent.id), messages)


def _copy(host: Host, keys: list[str], id: str, messages: int) -> None:
    """Copies a message until there are so many."""
    copy = host.client.register_script(_COPY)
    begin: int = host.client.hlen(keys[0])
    for low, high in itertools.pairwise([*range(begin, messages, _STEP), messages]):
        copy(keys, [id, low, high])
