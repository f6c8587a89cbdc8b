"""A topic as a stream of Spark: what becomes ready, read as one consumer of a group.

An offset is the last entry of the ready stream that a micro-batch holds, and the name of the consumer that read it. The
driver reads entries, which are small, and so makes them the consumer's; executors fetch the messages. What the consumer
holds up to the offset from which Spark goes on is done, and acked. A query that comes back finds what it had read, and
was not done with, in the hands of the same consumer.
"""

import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from lisa_common.call import Flow
from lisa_common.connection import Connection
from lisa_common.errors import InvalidInput
from lisa_common.topics import Topics
from lisa_producer.spark.holding import FIRST, Holding
from lisa_producer.spark.leases import LeaseKeeper
from lisa_producer.spark.options import StreamOptions
from lisa_producer.spark.rows import row_of_delivery, to_batch

__all__ = ["GroupReader"]

Offset = dict[str, str]


class Entries(InputPartition):
    """What one task reads: what the consumer holds beyond one entry and up to another."""

    def __init__(self, consumer: str, after: str, last: str) -> None:
        self.consumer = consumer
        self.after = after
        self.last = last


class GroupReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver; reads them on the executors, where it arrives by pickle."""

    def __init__(self, options: StreamOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names
        self._open: Connection | None = None
        self._keeper: LeaseKeeper | None = None
        self._target: str | None = None
        self._done: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": None, "_keeper": None}

    def initialOffset(self) -> Offset:  # noqa: N802
        """Before the first entry, with a consumer that no other query has."""
        return {"entry": FIRST, "consumer": f"spark-{secrets.token_hex(8)}"}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The option maxRows."""
        return ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Whatever becomes ready from now on is left to the next run."""
        self._target = self._run(self._holding("").newest())

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Acks what lies up to the start, and reads on from there, up to the limit."""
        after, consumer = _parsed(start)
        self._settle(consumer, after)
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        holding = self._holding(consumer)
        newest = self._target or self._run(holding.newest())
        last = self._run(holding.take(after, newest, rows, beyond=self._target is None))
        return {"entry": last, "consumer": consumer}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Ranges of about `partitionRows` entries that the consumer holds."""
        after, _ = _parsed(start)
        last, consumer = _parsed(end)
        self._settle(consumer, after)
        self._keep(consumer)
        cuts = self._run(self._holding(consumer).split(after, last, self._options.partition_rows))
        return [Entries(consumer, low, high) for low, high in cuts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one range; those that must not be delivered any more are settled instead."""
        if not isinstance(partition, Entries):
            return
        holding, after = self._holding(partition.consumer), partition.after
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

    def _settle(self, consumer: str, last: str) -> None:
        if last not in (self._done, FIRST):
            self._run(self._holding(consumer).settle(last))
            self._done = last

    def _keep(self, consumer: str) -> None:
        if self._keeper is None:
            self._keeper = LeaseKeeper(self._connect, self._holding(consumer))
            self._keeper.start()

    def _holding(self, consumer: str) -> Holding:
        return Holding(Topics(self._options.settings.prefix), self._options.topic, self._options.group, consumer)

    def _run(self, flow: Flow[Any]) -> Any:
        self._open = self._open or self._connect()
        return self._open.run(flow, patience_s=self._options.settings.patience_s)

    def _connect(self) -> Connection:
        return Connection.of(self._options.settings, name="lisa-spark")


def _parsed(offset: Offset) -> tuple[str, str]:
    """Entry and consumer; raises InvalidInput for the offset of another source."""
    try:
        return offset["entry"], offset["consumer"]
    except (KeyError, TypeError):
        raise InvalidInput("offset", offset, "one of this source, with entry and consumer, is") from None
