"""The cost of a message at the servers, in commands and in processor time: one server, and Clusters of some nodes.

Nodes of a Cluster talk to each other also when they are idle. So the idle cost is measured first, and the cost of a
message is what the servers use beyond it.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime

from benchmarks.bench import GROUP, Bench, Host
from benchmarks.stamps import body_of
from lisa_common.client.connection import Connection
from lisa_common.model.keys import topics_key
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_common.protocol.call import Call, command
from lisa_consumer import Consumer
from lisa_producer import Message, Producer
from support.waiting import wait_until

__all__ = ["SHARDS", "nodes"]

SHARDS = 8
NODES = (1, 2, 3, 6)
_TOPIC = "orders"
_READ = 500
_PATIENCE_S = 120.0
_IDLE_S = 4.0


def nodes(bench: Bench) -> None:
    """One server with a topic of one shard and of eight; then that topic on Clusters."""
    messages = bench.size(20_000)
    for _ in bench.laps(within_s=120, most=3):
        for shards, name in ((1, "one server, 1 shard"), (SHARDS, f"one server, {SHARDS} shards")):
            with bench.host() as host:
                _measure(bench, host, messages, shards, name)
        for count in NODES:
            with bench.cluster(count) as host:
                _measure(bench, host, messages, SHARDS, f"Cluster, {count} nodes")


def _measure(bench: Bench, host: Host, messages: int, shards: int, name: str) -> None:
    layout = Layout("lisa", _TOPIC, Policy(shards=shards))
    with Connection(host.url) as connection:
        connection.call(command("HSET", topics_key("lisa"), _TOPIC, layout.policy.dump()))
    host.manager()
    _drain(host, layout, 100)  # scripts are loaded, topics are known
    worker = host.worker([_TOPIC])
    idle, commands, _ = _used(host, lambda: time.sleep(bench.seconds(_IDLE_S)))
    bench.add(f"{name}: idle, commands", "1/s", commands)
    bench.add(f"{name}: idle, servers' CPU", "ms/s", idle * 1000)
    worker.stop()
    cpu, commands, elapsed_s = _used(host, lambda: _drain(host, layout, messages))
    bench.add(f"{name}: servers' CPU", "µs/message", (cpu - idle) * elapsed_s / messages * 1e6)
    bench.add(f"{name}: commands", "1/message", commands * elapsed_s / messages)


def _used(host: Host, work: Callable[[], object]) -> tuple[float, float, float]:
    """Processor time and commands of the servers in each second of some work, and its seconds."""
    cpu_s, commands, began = host.cpu_s(), host.commands(), time.monotonic()
    work()
    elapsed_s = time.monotonic() - began
    return (host.cpu_s() - cpu_s) / elapsed_s, (host.commands() - commands) / elapsed_s, elapsed_s


def _drain(host: Host, layout: Layout, messages: int) -> None:
    """Sends messages that are due at one instant, takes and acks them, and waits until they are trimmed."""
    due_s = time.time() + 0.2 + messages / 10_000
    due, body, done = datetime.fromtimestamp(due_s, UTC), body_of(due_s), 0
    with Producer(host.url) as producer:
        producer.send_many(_TOPIC, (Message(body=body, at=due) for _ in range(messages)))
    with Consumer(_TOPIC, GROUP, url=host.url) as consumer:
        while done < messages:
            deliveries = consumer.read(_READ, wait=_PATIENCE_S)
            assert deliveries, f"{done} of {messages} messages came"  # noqa: S101
            consumer.ack(*deliveries)
            done += len(deliveries)
    lengths: list[Call[int]] = [command("XLEN", keys.of("ready")) for keys in layout.shards]
    with Connection(host.url) as connection:
        wait_until(lambda: not any(connection.execute(lengths)), _PATIENCE_S)
