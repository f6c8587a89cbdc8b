"""A topic as a stream of Spark: what becomes ready, read as one consumer of a group.

An offset is the name of the consumer that reads for the query, and for each shard the last entry of its ready stream
that a micro-batch holds. The driver reads entries, which are small, and so makes them the consumer's; executors fetch
the messages. What the consumer holds up to the offset from which Spark goes on is done, and acked. A query that comes
back finds what it had read, and was not done with, in the hands of the same consumer.
"""

import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from lisa_common.client.connection import Connection
from lisa_common.errors import InvalidInput
from lisa_common.model.keys import ShardKeys
from lisa_common.model.sharding import Layout
from lisa_common.protocol import groups
from lisa_common.protocol.call import Flow
from lisa_common.protocol.registry import Topics
from lisa_producer.spark.leases import LeaseKeeper
from lisa_producer.spark.options import StreamOptions
from lisa_producer.spark.pending_entries import FIRST, Holding
from lisa_producer.spark.rows import row_of_delivery, to_batch

__all__ = ["GroupReader"]

Offset = dict[str, Any]
"""`consumer`, and `entries` by shard; a shard that is not named was not read yet."""

Places = dict[str, str]
"""Entries by shard."""


class Entries(InputPartition):
    """What one task reads: what the consumer holds of a shard beyond one entry and up to another."""

    def __init__(self, keys: ShardKeys, consumer: str, after: str, last: str) -> None:
        self.keys = keys
        self.consumer = consumer
        self.after = after
        self.last = last


class GroupReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver; reads them on the executors, where it arrives by pickle."""

    def __init__(self, options: StreamOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names
        self._topics = Topics(options.settings.prefix)
        self._open: Connection | None = None
        self._keeper: LeaseKeeper | None = None
        self._target: Places | None = None
        self._done: Places = {}
        self._turns = 0
        self._joined: Layout | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": None, "_keeper": None, "_topics": Topics(self._topics.prefix)}

    def initialOffset(self) -> Offset:  # noqa: N802
        """Before the first entries, with a consumer that no other query has."""
        return {"consumer": f"spark-{secrets.token_hex(8)}", "entries": {}}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The option maxRows."""
        return ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Whatever becomes ready from now on is left to the next run."""
        self._target = {keys.shard: self._run(self._holding(keys, "").newest()) for keys in self._shards()}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Acks what lies up to the start, and reads on from there, up to the limit."""
        after, consumer = _parsed(start)
        self._settle(consumer, after)
        self._join()
        shards, entries = self._shards(), dict(after)
        left = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        # Each shard has its share, and another one is first each time, should there be fewer rows than shards.
        self._turns += 1
        first = self._turns % len(shards)
        for position, keys in enumerate(shards[first:] + shards[:first]):
            share = None if left is None else -(-left // (len(shards) - position))
            if share == 0:
                break
            last, taken = self._take(keys, consumer, after.get(keys.shard, FIRST), share)
            left = None if left is None else left - taken
            if last != FIRST:
                entries[keys.shard] = last
        return {"consumer": consumer, "entries": entries}

    def _take(self, keys: ShardKeys, consumer: str, after: str, rows: int | None) -> tuple[str, int]:
        holding, target = self._holding(keys, consumer), self._target
        newest = self._run(holding.newest()) if target is None else target.get(keys.shard, FIRST)
        taken: tuple[str, int] = self._run(holding.take(after, newest, rows, beyond=target is None))
        return taken

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Ranges of about `partitionRows` entries that the consumer holds."""
        after, _ = _parsed(start)
        last, consumer = _parsed(end)
        self._settle(consumer, after)
        self._keep(consumer)
        found: list[InputPartition] = []
        for shard, entry in last.items():
            keys, begin = ShardKeys(self._topics.prefix, self._options.topic, shard), after.get(shard, FIRST)
            cuts = self._run(self._holding(keys, consumer).split(begin, entry, self._options.partition_rows))
            found += [Entries(keys, consumer, low, high) for low, high in cuts]
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one range; those that must not be delivered any more are settled instead."""
        if not isinstance(partition, Entries):
            return
        holding, after = self._holding(partition.keys, partition.consumer), partition.after
        with self._connect() as connection:
            while True:
                flow = holding.fetch(after, partition.last)
                rest, deliveries = connection.run(flow, patience_s=self._options.settings.patience_s)
                if deliveries:
                    yield to_batch(self._names, map(row_of_delivery, deliveries))
                if rest is None:
                    return
                after = rest

    def commit(self, end: Offset) -> None:
        """Acks what the consumer holds up to there."""
        last, consumer = _parsed(end)
        self._settle(consumer, last)

    def stop(self) -> None:
        """Lets leases run: what is not done goes on with the same checkpoint, or else to others of the group."""
        if self._keeper:
            self._keeper.stop()
        if self._open:
            self._open.close()

    def _settle(self, consumer: str, last: Places) -> None:
        for shard, entry in last.items():
            if entry not in (self._done.get(shard), FIRST):
                keys = ShardKeys(self._topics.prefix, self._options.topic, shard)
                self._run(self._holding(keys, consumer).settle(entry))
                self._done[shard] = entry

    def _keep(self, consumer: str) -> None:
        if self._keeper is None:
            # Of its own, as it runs in a thread of its own.
            topics = Topics(self._topics.prefix)
            self._keeper = LeaseKeeper(self._connect, lambda: self._renew(topics, consumer))
            self._keeper.start()

    def _renew(self, topics: Topics, consumer: str) -> Flow[float]:
        layout = yield from topics.resolve(self._options.topic)
        for keys in layout.served:
            yield from Holding(topics, keys, self._options.group, consumer).renew()
        return layout.policy.visibility_ms / 1000

    def _join(self) -> None:
        """Makes the group in all shards at once; `Holding.take` makes it again where it was destroyed since."""
        layout: Layout = self._run(self._topics.resolve(self._options.topic))
        if layout != self._joined:
            self._run(groups.join([layout], self._options.group))
            self._joined = layout

    def _shards(self) -> tuple[ShardKeys, ...]:
        layout: Layout = self._run(self._topics.resolve(self._options.topic))
        return layout.served

    def _holding(self, keys: ShardKeys, consumer: str) -> Holding:
        return Holding(self._topics, keys, self._options.group, consumer)

    def _run(self, flow: Flow[Any]) -> Any:
        self._open = self._open or self._connect()
        return self._open.run(flow, patience_s=self._options.settings.patience_s)

    def _connect(self) -> Connection:
        return Connection.of(self._options.settings, name="lisa-spark")


def _parsed(offset: Offset) -> tuple[Places, str]:
    """Entries and consumer; raises InvalidInput for the offset of another source."""
    try:
        return dict(offset["entries"]), offset["consumer"]
    except (KeyError, TypeError, ValueError):
        raise InvalidInput("offset", offset, "one of this source, with consumer and entries, is") from None
