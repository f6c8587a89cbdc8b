"""The longest time that one command keeps the server busy, and the rate at which a manager forgets finished ids."""

import time

from benchmarks.bench import Bench, Host
from lisa_common.model.keys import ShardKeys, topics_key
from lisa_common.protocol.consuming import read
from support.blocking import Blocks, Life, Timed, drop_group, drop_topic, look
from support.queue import Queue, outgoing
from support.waiting import wait_until

__all__ = ["blocking"]

_KEYS = ShardKeys("lisa", "orders")
_CASES = {"1 MiB bodies": (200, 1024 * 1024, 2), "100 groups": (400, 200, 100)}
"""Messages, the size of their bodies, and groups."""
_STEP = 20_000

# Sending a million messages takes a minute. Copies of one message are as much to look through.
_COPY = """
local record = redis.call('HGET', KEYS[1], ARGV[1])
for number = tonumber(ARGV[2]) + 1, tonumber(ARGV[3]) do
  local id = string.format('%016d~', number)
  redis.call('HSET', KEYS[1], id, record)
  redis.call('HSET', KEYS[2], id, 'first,second')
  redis.call('XADD', KEYS[3], '*', 'id', id, 'due', ARGV[4], 'n', 1)
end
"""
_FINISH = "for i = ARGV[1], ARGV[2] do redis.call('ZADD', KEYS[1], i, 'm' .. i) end"


def blocking(bench: Bench) -> None:
    """Every script and operator command: with large bodies, with many groups, and in a long stream; then tombstones."""
    for name, (messages, size, groups) in _CASES.items():
        with bench.host() as host, Timed(host.url, host.pid()) as connection:
            blocks = Blocks(host.client, connection)
            names = [f"group{number}" for number in range(groups)]
            with blocks.watching():
                Life(blocks, Queue(connection, _KEYS), names, bench.size(messages), b"x" * size).live()
            _report(bench, name, blocks)
    with bench.host() as host, Timed(host.url, host.pid()) as connection:
        blocks = Blocks(host.client, connection)
        _long_stream(host, blocks, Queue(connection, _KEYS), bench.size(1_000_000))
        _report(bench, "1M messages", blocks)
    with bench.host() as host:
        _tombstones(bench, host)


def _report(bench: Bench, case: str, blocks: Blocks) -> None:
    bench.add(f"longest block, {case}", "ms", max(blocks.longest.values()))
    for name, took_ms in sorted(blocks.longest.items(), key=lambda item: -item[1])[:3]:
        bench.note(f"{case}, {name}", f"{took_ms:.1f} ms, {blocks.commands.get(name, '')}")


def _long_stream(host: Host, blocks: Blocks, queue: Queue, messages: int) -> None:
    """A backlog of which nothing is delivered, then all; then a group, the entries and the topic go."""
    host.client.hset(topics_key(_KEYS.prefix), _KEYS.topic, "{}")
    queue.join("first", "second")
    first = outgoing("0")
    due_ms = queue.send_all([first])[0]
    copy = host.client.register_script(_COPY)
    for low in range(0, messages, _STEP):
        copy([_KEYS.of(name) for name in ("messages", "owed", "ready")], ["0", low, min(low + _STEP, messages), due_ms])
    with blocks.watching():
        with blocks.step("cancel"):
            queue.cancel(*(f"{number:016d}~" for number in range(50, 250)))
        look(blocks, queue, [f"{number:016d}~" for number in (300, messages)])
        ready = _KEYS.of("ready")
        queue.join("third")
        host.client.xgroup_setid(ready, "third", "0")
        with blocks.step("read"):
            while queue.connection.call(read([_KEYS], "third", "c", limit=1_000, block_ms=None)):
                pass
        drop_group(blocks, queue, "third")
        for group in ("first", "second"):
            host.client.xgroup_setid(ready, group, "$")
        with blocks.step("trim"):
            while queue.trim().more:
                pass
        drop_topic(blocks, queue)


def _tombstones(bench: Bench, host: Host) -> None:
    """One manager removes finished ids after their dedup window."""
    host.client.hset(topics_key(_KEYS.prefix), _KEYS.topic, "{}")
    count, finished = bench.size(500_000), _KEYS.of("finished")
    host.manager()
    began = time.monotonic()
    for low in range(0, count, _STEP):
        host.client.eval(_FINISH, 1, finished, low, min(low + _STEP, count) - 1)
    wait_until(lambda: not host.client.exists(finished), 60)
    bench.add("sweep: tombstones", "1/s", count / (time.monotonic() - began))
