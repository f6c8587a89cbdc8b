"""Random queries of a table, between changes and reshards of its topic, without Spark: each has the right rows."""

import pickle
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition

from lisa_consumer import Consumer
from lisa_consumer.settings import ConsumerSettings
from lisa_manager import Admin, ManagerSettings
from lisa_producer import Message, Producer, ProducerSettings
from lisa_producer.spark.options import SnapshotOptions
from lisa_producer.spark.rows import MESSAGE_SCHEMA, check_schema
from lisa_producer.spark.snapshot import SnapshotReader
from support.spark import LONG

QUERIES = 40
_RESHARDS = 3
"""As many former layouts may hold messages."""
_STATES = ("waiting", "ready", "delivered", "retry", "garbage")
_HOUR = timedelta(hours=1)
_RETRY_HOURS = 2.5
_ALL = check_schema(MESSAGE_SCHEMA)


@dataclass
class _Row:
    """What a row must be."""

    state: str
    due: float = 0.0
    """In hours after the start."""
    reason: str | None = None

    @property
    def group(self) -> str | None:
        return None if self.state == "waiting" else "g"


@dataclass
class _Look:
    """A query, and the partitions that Spark keeps of it."""

    options: dict[str, str]
    reader: SnapshotReader
    partitions: Sequence[InputPartition]


class _Arena:
    """A topic, and what it should have."""

    def __init__(self, url: str, prefix: str, dice: random.Random) -> None:
        self._dice, self._given = dice, {"redis_url": url, "prefix": prefix}
        self._start = datetime.now(UTC)
        self._producer = Producer(settings=ProducerSettings.load(**self._given))
        self._consumer = Consumer("orders", group="g", settings=ConsumerSettings.load(**self._given))
        self._admin = Admin(settings=ManagerSettings.load(**self._given))
        self._shards = iter(dice.choices((1, 2, 3, 5, 8), k=_RESHARDS))
        self._count = 0
        self.rows: dict[str, _Row] = {}
        self._consumer.read(limit=1)

    def close(self) -> None:
        """Closes the clients."""
        for client in (self._producer, self._consumer, self._admin):
            client.close()

    def change(self) -> None:
        """Sends, cancels, or ends deliveries."""
        self._dice.choice((self._send, self._send, self._cancel, self._deliver, self._deliver))()

    def reshard(self) -> None:
        """Spreads new messages over another number of shards."""
        if (shards := next(self._shards, None)) is not None:
            self._admin.reshard("orders", shards)

    def _new_ids(self) -> list[str]:
        first, self._count = self._count, self._count + self._dice.randrange(1, 60)
        return [f"m{number}" for number in range(first, self._count)]

    def _send(self) -> None:
        messages = []
        for id in self._new_ids():
            hours = self._dice.randrange(1, 6)
            messages.append(Message(body=id, id=id, at=self._start + hours * _HOUR))
            self.rows[id] = _Row("waiting", hours)
        self._producer.send_many("orders", messages)

    def _cancel(self) -> None:
        waiting = [id for id, row in self.rows.items() if row.state == "waiting"]
        for id in self._dice.sample(waiting, min(5, len(waiting))):
            assert self._producer.cancel("orders", id) == "cancelled"
            del self.rows[id]

    def _deliver(self) -> None:
        ids = self._new_ids()
        self._producer.send_many("orders", [Message(body=id, id=id) for id in ids])
        self.rows |= {id: _Row("ready") for id in ids}
        for delivery in self._consumer.read(limit=self._dice.randrange(1, 40)):
            row = self.rows[delivery.id] = _Row("delivered")
            match self._dice.randrange(4):
                case 0:
                    self._consumer.ack(delivery)
                    del self.rows[delivery.id]
                case 1:
                    self._consumer.nack(delivery, delay=_RETRY_HOURS * 3600, error="later")
                    row.state, row.due, row.reason = "retry", _RETRY_HOURS, "nack"
                case 2:
                    self._consumer.reject(delivery, error="never")
                    row.state, row.reason = "garbage", "rejected"

    def look(self) -> _Look:
        """A random query, and its partitions by now."""
        dice = self._dice
        options = {"partitionRows": str(dice.choice((3, 10, 50, 1_000)))}
        if dice.random() < 0.7:
            options["state"] = ",".join(dice.sample(_STATES, dice.randrange(1, 6)))
        if dice.random() < 0.3:
            options["ids"] = ",".join(f"m{dice.randrange(self._count + 20)}" for _ in range(dice.randrange(1, 30)))
        for name in ("dueFrom", "dueUntil"):
            if dice.random() < 0.25:
                options[name] = (self._start + (dice.randrange(6) + 0.25) * _HOUR).isoformat()
        for name, values in {"group": ("g", "h"), "reason": ("nack", "rejected"), "limit": ("3", "30")}.items():
            if dice.random() < 0.15:
                options[name] = dice.choice(values)
        given = {"url": self._given["redis_url"], "prefix": self._given["prefix"], "topic": "orders", **options}
        reader = SnapshotReader(SnapshotOptions.of({name.lower(): text for name, text in given.items()}), _ALL)
        return _Look(options, reader, reader.partitions())

    def expected(self, options: dict[str, str]) -> dict[str, _Row]:
        """The rows that pass the options, without the limit."""
        states = options.get("state", "waiting,retry,garbage").split(",")
        ids = options["ids"].split(",") if "ids" in options else self.rows.keys()
        return {
            id: row
            for id, row in self.rows.items()
            if row.state in states
            and id in ids
            and self._hours(options, "dueFrom", 0.0) <= row.due < self._hours(options, "dueUntil", 99.0)
            and options.get("group", row.group) == row.group
            and options.get("reason", row.reason) == row.reason
        }

    def _hours(self, options: dict[str, str], name: str, default: float) -> float:
        return (datetime.fromisoformat(options[name]) - self._start) / _HOUR if name in options else default


def _rows(look: _Look) -> list[dict[str, Any]]:
    # As Spark hands them to its tasks.
    reader: SnapshotReader = pickle.loads(pickle.dumps(look.reader))  # noqa: S301
    batches = [batch for each in look.partitions for batch in reader.read(each)]
    return pa.Table.from_batches(batches).to_pylist() if batches else []


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    """What the test opens."""
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("seed", range(2 * LONG))
def test_random_queries(redis_url: str, prefix: str, opened: ExitStack, seed: int) -> None:
    """Queries that are new, and queries whose partitions are those of an earlier look, as Spark keeps them."""
    dice = random.Random(seed)
    arena = _Arena(redis_url, prefix, dice)
    opened.callback(arena.close)
    looks: list[_Look] = []
    for number in range(QUERIES):
        arena.change()
        if number % (QUERIES // _RESHARDS) == QUERIES // _RESHARDS // 2:
            arena.reshard()
        looks.append(arena.look())
        for look in (looks[-1], dice.choice(looks)):
            found, expected = _rows(look), arena.expected(look.options)
            told = {row["id"]: (row["state"], row["group"], row["reason"]) for row in found}
            assert len(told) == len(found), look.options
            if (limit := look.options.get("limit")) is None:
                assert told.keys() == expected.keys(), look.options
            assert len(told) == min(len(expected), int(limit or len(expected))), look.options
            assert told == {id: (row.state, row.group, row.reason) for id, row in expected.items() if id in told}
