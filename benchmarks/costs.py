"""What each step of a message costs, in figures that noise cannot shake: commands of the server, and bytes on the wire.

`make costs` compares them with `costs.json`; `make costs COSTS=--write` keeps new ones. A test does the same: a change
that makes a step dearer, or cheaper, has to say so by changing that file.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import redis

from lisa_common.client.connection import Connection
from lisa_common.model.keys import ShardKeys
from lisa_common.protocol.managing import promote
from lisa_consumer import Consumer, ConsumerSettings
from lisa_producer import Message, Producer, ProducerSettings
from support.engines import own_binary
from support.server import Server
from support.waiting import wait_until

__all__ = ["KEPT", "Cost", "differences", "measure", "read_kept"]

KEPT: Final = Path(__file__).with_name("costs.json")
_TOLERANCE: Final = 0.03
"""Largest difference to what is kept, as a share of it."""

_SLACK_BYTES: Final = 0.1
"""The size of the server's own statistics is not always the same."""

_MESSAGES: Final = 1_000
_BATCH: Final = 100
_TOPIC: Final = "costs"
_TRIES: Final = 3
"""A producer sends smaller batches while the server is slow, as on a busy machine. So the best of so many counts."""
_BODY: Final = b"x" * 200


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one step for each message."""

    commands: float
    """Commands that the server carried out, those of scripts included."""
    sent: float
    """Bytes from the client."""
    received: float
    """Bytes to the client."""


class _Meter:
    """Counts what a server does for others than the meter itself."""

    def __init__(self, client: "redis.Redis") -> None:
        self._client = client
        self._own = Cost(0, 0, 0)
        self._own = self.of(lambda: None, messages=1)

    def of(self, step: Callable[[], object], *, messages: int = _MESSAGES) -> Cost:
        """The cost of a step for each of its messages."""
        before = self._look()
        step()
        after = self._look()
        own = (self._own.commands, self._own.sent, self._own.received)
        return Cost(*((b - a - o) / messages for a, b, o in zip(before, after, own, strict=True)))

    def _look(self) -> tuple[int, int, int]:
        stats: Any = self._client.info("stats")
        calls: Any = self._client.info("commandstats")
        commands = sum(each["calls"] for name, each in calls.items() if name != "cmdstat_info")
        return commands, stats["total_net_input_bytes"], stats["total_net_output_bytes"]


def measure(url: str) -> dict[str, Cost]:
    """The costs of all steps, on an empty server that nobody else uses."""
    settings = ProducerSettings(redis_url=url)
    with redis.Redis.from_url(url, protocol=2) as client:
        costs = _measure_a_life(url, client)
        meter = _Meter(client)
        sent = min((_send_many(meter, settings) for _ in range(_TRIES)), key=lambda cost: cost.commands)
    return {"send": costs.pop("send"), "send_many": sent, **costs}


def _measure_a_life(url: str, client: "redis.Redis") -> dict[str, Cost]:
    """The costs of a message that is sent by itself, and of what follows."""
    sending, reading = ProducerSettings(redis_url=url), ConsumerSettings(redis_url=url)
    keys = ShardKeys(sending.prefix, _TOPIC)
    with (
        Producer(settings=sending) as producer,
        Consumer(_TOPIC, "billing", settings=reading) as consumer,
        Connection(url, name="lisa-manager") as manager,
    ):
        _warm_up(producer, consumer, manager, keys)
        meter, costs = _Meter(client), dict[str, Cost]()

        def send_each() -> None:
            for _ in range(_MESSAGES):
                producer.send(_TOPIC, _BODY, delay=3_600)

        costs["send"] = meter.of(send_each)
        # All are due at one moment, as an ack then names it once.
        at = datetime.now(UTC) + timedelta(seconds=5)
        producer.send_many(_TOPIC, [Message(body=_BODY, at=at) for _ in range(_MESSAGES)])
        wait_until(lambda: int(client.zcount(keys.of("waiting"), "-inf", _now_ms(client))) == _MESSAGES)
        # Reads the registry if ten seconds have passed, so that no measured step does.
        consumer.read(_BATCH)
        batches = range(_MESSAGES // _BATCH)
        costs["promote"] = meter.of(lambda: [manager.call(promote(keys, limit=_BATCH)) for _ in batches])
        read: list[Any] = []
        costs["read"] = meter.of(lambda: read.extend(consumer.read(_BATCH) for _ in batches))
        assert sum(map(len, read)) == _MESSAGES  # noqa: S101 - else the figures mean nothing
        costs["ack"] = meter.of(lambda: [consumer.ack(*each) for each in read])
    return costs


def _send_many(meter: _Meter, settings: ProducerSettings) -> Cost:
    messages = [Message(body=_BODY, delay=3_600) for _ in range(_MESSAGES)]
    with Producer(settings=settings) as producer:
        # Connects, and declares the topic.
        producer.send_many(_TOPIC, messages[:1])
        return meter.of(lambda: producer.send_many(_TOPIC, messages))


def _warm_up(producer: Producer, consumer: Consumer, manager: Connection, keys: ShardKeys) -> None:
    """Opens connections, loads scripts, declares the topic and its group, and learns the size of messages."""
    consumer.read(_BATCH)
    producer.send(_TOPIC, _BODY, delay=3_600)
    producer.send_many(_TOPIC, [Message(body=_BODY) for _ in range(2 * _BATCH)])
    manager.call(promote(keys, limit=_BATCH))
    while deliveries := consumer.read(_BATCH):
        consumer.ack(*deliveries)


def _now_ms(client: "redis.Redis") -> int:
    seconds, micros = client.time()
    return int(seconds) * 1_000 + int(micros) // 1_000


def read_kept() -> dict[str, Cost]:
    """The costs in `costs.json`."""
    return {step: Cost(**values) for step, values in json.loads(KEPT.read_text("utf-8")).items()}


def differences(costs: Mapping[str, Cost], kept: Mapping[str, Cost]) -> list[str]:
    """What differs by more than `_TOLERANCE`, in words."""
    return [
        f"{step}: {name} must be {before:g} as in {KEPT.name}, within {_TOLERANCE:.0%}; got {now:g}"
        for step in {**costs, **kept}
        for name in Cost.__slots__
        for now, before in [(_value(costs, step, name), _value(kept, step, name))]
        if abs(now - before) > _TOLERANCE * before + (0 if name == "commands" else _SLACK_BYTES)
    ]


def _value(costs: Mapping[str, Cost], step: str, name: str) -> float:
    return float(getattr(costs[step], name)) if step in costs else 0.0


def _main() -> int:
    parser = argparse.ArgumentParser(prog="make costs", description="Compares what each step costs with costs.json.")
    parser.add_argument("--write", action="store_true", help="keep the new figures")
    write = parser.parse_args().write
    with tempfile.TemporaryDirectory() as directory:
        server = Server(own_binary(), Path(directory), config={})
        try:
            costs = measure(server.start().url)
        finally:
            server.close()
    print(f"{'for each message':<12}{'commands':>12}{'bytes sent':>12}{'received':>12}")
    for step, cost in costs.items():
        print(f"{step:<16}{cost.commands:>12.3f}{cost.sent:>12.1f}{cost.received:>12.1f}")
    if write:
        rounded = {s: {name: round(getattr(c, name), 3) for name in Cost.__slots__} for s, c in costs.items()}
        KEPT.write_text(json.dumps(rounded, indent=1) + "\n", "utf-8")
        return 0
    found = differences(costs, read_kept())
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(_main())
