"""A topic as a Spark stream: messages that become ready, read by one consumer of a group.

An offset contains the name of the query's consumer, and for each shard the last entry of its ready stream in a
micro-batch. The driver reads entries, which are small, and so assigns them to the consumer; executors fetch the
messages. The consumer's entries up to Spark's start offset are done, and acked. A restarted query continues with the
same consumer, which still has the unfinished entries.
"""

import json
import logging
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from lisa_common.client.connection import Connection
from lisa_common.errors import InvalidInput
from lisa_common.logs import configure_logging, event
from lisa_common.model.delivery import Entry
from lisa_common.model.keys import ShardKeys
from lisa_common.model.sharding import Layout
from lisa_common.protocol import groups
from lisa_common.protocol.call import Call, Flow, command
from lisa_common.protocol.marking import MARKING, Begun
from lisa_common.protocol.registry import Topics
from lisa_producer.spark.batch_sizes import BatchSizes
from lisa_producer.spark.leases import LeaseKeeper
from lisa_producer.spark.options import StreamOptions
from lisa_producer.spark.pending_entries import FIRST, PendingEntries, Taken, backlog
from lisa_producer.spark.range_fetcher import RangeFetcher
from lisa_producer.spark.ranges import Entries, Page, cut_entries
from lisa_producer.spark.rows import batch_of_deliveries

__all__ = ["GroupReader"]

logger = logging.getLogger(__name__)

Offset = dict[str, Any]
"""`consumer`, and `entries` by shard; shards that were not read yet are missing."""

Places = dict[str, str]
"""Entries by shard."""

_NOTED_MS = 30 * 86_400_000
"""How long the last batch of a query that does not run is remembered."""
_PART = 50_000
"""Entries in one value of it."""


class GroupReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver; reads them on the executors, which receive it by pickle."""

    def __init__(self, options: StreamOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names
        self._topics = Topics(options.settings.prefix)
        self._open: Connection | None = None
        self._keeper: LeaseKeeper | None = None
        self._target: Places | None = None
        self._done: Places = {}
        self._running: tuple[Places, Sequence[Entries]] | None = None
        self._read: dict[str, list[Entry]] = {}
        """The entries of the micro-batch, by shard."""
        self._new: str | None = None
        """The consumer, if it had read nothing before."""
        self._turns = 0
        self._joined: Layout | None = None
        self._is_first = True

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {
            "_open": None,
            "_keeper": None,
            "_running": None,
            "_read": {},
            "_topics": Topics(self._topics.prefix),
        }

    def initialOffset(self) -> Offset:  # noqa: N802
        """Before the first entries, with a new consumer."""
        # It marks deliveries that begin, as workers do: others spend no attempt when their leases run out.
        self._new = f"spark-{secrets.token_hex(8)}{MARKING}"
        return {"consumer": self._new, "entries": {}}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The option maxRows."""
        return ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fixes the end of this run: later messages are for the next one."""
        self._target = {keys.shard: self._run(self._pending(keys, "").newest()) for keys in self._shards()}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Acks entries up to the start, and reads the next ones, up to the limit.

        Raises InvalidInput for the trigger `once`, with which Spark never tells that its batch is done.
        """
        if self._target is None and isinstance(limit, ReadAllAvailable):
            raise InvalidInput("trigger", "once=True", "availableNow=True, which acks what it has finished")
        after, consumer = _parsed(start)
        self._settle(consumer, after)
        self._keep(consumer)
        self._join()
        shards, entries = self._shards(), dict(after)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_rows
        left, left_bytes = self._run(self._sizes(consumer).limit(most)), self._options.max_bytes
        # Each shard has a share. Another shard is first each time, as the limit may be lower than the number of shards.
        self._turns += 1
        first, is_empty = self._turns % len(shards), True
        for position, keys in enumerate(shards[first:] + shards[:first]):
            share = -(-left // (len(shards) - position))
            if share == 0:
                break
            at = after.get(keys.shard, FIRST)
            taken = self._take(keys, consumer, at, share, left_bytes, first=is_empty)
            left -= taken.rows
            left_bytes = None if left_bytes is None else max(0, left_bytes - taken.bytes)
            is_empty = is_empty and not taken.rows
            if taken.last != FIRST:
                entries[keys.shard] = taken.last
            if taken.is_full:
                break
        return {"consumer": consumer, "entries": entries}

    def _take(
        self, keys: ShardKeys, consumer: str, after: str, rows: int, most_bytes: int | None, *, first: bool
    ) -> Taken:
        pending, target = self._pending(keys, consumer), self._target
        newest = self._run(pending.newest()) if target is None else target.get(keys.shard, FIRST)
        flow = pending.take(after, newest, rows, beyond=target is None, most_bytes=most_bytes, first=first)
        taken: Taken = self._run(flow)
        self._read[keys.shard] = taken.entries
        return taken

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The backlog: how many `messages` the group has not read or not settled; None if the server cannot tell."""
        counts = [self._run(backlog(keys, self._options.group)) for keys in self._shards()]
        return None if None in counts else {"messages": sum(counts)}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Ranges of about `partitionRows` pending entries; of fewer than planned if the batch has failed before."""
        after, _ = _parsed(start)
        last, consumer = _parsed(end)
        if self._running and self._running[0] == last:
            return self._running[1]
        self._settle(consumer, after)
        self._keep(consumer)
        ranges = self._split(consumer, after, last)
        held = sum(each.count for each in ranges)
        if held:
            alone = held == 1 and self._run(self._pending_of(ranges[0]).is_alone(ranges[0].after, ranges[0].last))
            tried, suspected = self._run(self._sizes(consumer).begin(held, alone=alone))
            ranges = ranges if tried == held else self._shorten(ranges, tried)
            if tried == 1 and suspected:
                begun = Begun.ALONE if alone else Begun.YES
                self._run(self._pending_of(ranges[0]).mark_begun(ranges[0].last, begun))
            self._note(consumer, last, ranges, is_whole=tried == held)
            self._running = last, ranges
        return ranges

    def _split(self, consumer: str, after: Places, last: Places) -> list[Entries]:
        ranges: list[Entries] = []
        for shard, entry in last.items():
            keys, begin = self._keys_of(shard), after.get(shard, FIRST)
            places = [read.entry for read in self._read.get(shard, ())]
            if not places or places[-1] != entry:
                places = self._run(self._pending(keys, consumer).places(begin, entry))
            ranges += cut_entries(keys, consumer, places, Page(begin, entry, len(places)), self._options.partition_rows)
        return ranges

    def _pending_of(self, entries: Entries) -> PendingEntries:
        return self._pending(entries.keys, entries.consumer)

    def _shorten(self, ranges: list[Entries], tried: int) -> list[Entries]:
        """The ranges of the first entries of a batch that failed; the others are given back."""
        self._configure_logging()
        topic, group, held = self._options.topic, self._options.group, sum(each.count for each in ranges)
        if not tried:
            [only] = ranges
            error = f"the Spark query of group {group} failed with a batch of this message alone"
            self._run(self._pending_of(only).isolate(only.after, only.last, error))
            logger.warning("%s: %s", topic, error, extra=event("message_failed_alone", topic=topic, group=group))
            return []
        logger.warning(
            "%s: a batch failed; trying %d of its %d messages",
            topic,
            tried,
            held,
            extra=event("batch_shortened", topic=topic, group=group, count=tried, rows=held),
        )
        kept: list[Entries] = []
        for each in ranges:
            keep = min(tried, each.count)
            tried -= keep
            pending = self._pending_of(each)
            end = self._run(pending.give_back(each.after, each.last, keep))
            kept += [Entries(each.keys, each.consumer, Page(each.after, end, keep))] if keep else []
            if self._target is not None and keep < each.count:
                # They come again as new entries, which belong to this run.
                self._target[each.keys.shard] = self._run(pending.newest())
        return kept

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one range, without expired and unreadable ones, which are settled instead."""
        if not isinstance(partition, Entries):
            return
        fetcher = RangeFetcher(self._pending_of(partition), partition)
        with self._connect() as connection:
            while not fetcher.is_done:
                deliveries = connection.run(fetcher.next_page(), patience_s=self._options.settings.patience_s)
                if deliveries:
                    yield batch_of_deliveries(self._names, deliveries)

    def commit(self, end: Offset) -> None:
        """Acks the consumer's entries up to the offset."""
        last, consumer = _parsed(end)
        self._settle(consumer, last)

    def stop(self) -> None:
        """Stops the renewal of leases. Unfinished entries go to a query with the same checkpoint, or to the group."""
        if self._keeper:
            self._keeper.stop()
        if self._open:
            self._open.close()

    def _note(self, consumer: str, last: Places, ranges: Sequence[Entries], *, is_whole: bool) -> None:
        """Notes what the batch has: only the next run learns from Spark whether it was finished before a stop."""
        parts = 0
        for shard in dict.fromkeys(each.keys.shard for each in ranges):
            of_shard = [each for each in ranges if each.keys.shard == shard]
            entries = self._read.get(shard) if is_whole else None
            entries = entries or self._run(self._pending_of(of_shard[0]).held_all(of_shard[0].after, of_shard[-1].last))
            for at in range(0, len(entries), _PART):
                part = [shard, [(each.entry, each.id, each.due_ms) for each in entries[at : at + _PART]]]
                self._call(command("SET", self._noted(consumer, parts), json.dumps(part), "PX", _NOTED_MS))
                parts += 1
        text = json.dumps({"last": last, "parts": parts})
        self._call(command("SET", self._noted(consumer), text, "PX", _NOTED_MS))

    def _settle_noted(self, consumer: str, last: Places) -> int:
        """Acks the last batch of the run before, if Spark has finished it: late where leases have run out since."""
        if not self._is_first:
            return 0
        self._is_first, settled = False, 0
        noted = json.loads(self._call(command("GET", self._noted(consumer))) or "{}")
        if not noted or noted["last"] != last:
            return 0
        for at in range(noted["parts"]):
            shard, entries = json.loads(self._call(command("GET", self._noted(consumer, at))) or '["", []]')
            pending = self._pending(self._keys_of(shard), consumer)
            settled += self._run(pending.settle_late([Entry(*each) for each in entries]))
        return settled

    def _noted(self, consumer: str, part: int | str = "") -> str:
        return self._keys_of("").query(f"{consumer}/noted/{part}")

    def _keys_of(self, shard: str) -> ShardKeys:
        return ShardKeys(self._topics.prefix, self._options.topic, shard)

    def _settle(self, consumer: str, last: Places) -> None:
        settled = self._settle_noted(consumer, last)
        for shard, entry in last.items():
            if entry not in (self._done.get(shard), FIRST):
                pending = self._pending(self._keys_of(shard), consumer)
                settled += self._run(pending.settle(entry, self._read.pop(shard, ())))
                self._done[shard] = entry
        # A query that stopped after its batch, and before this, left entries pending: that batch is done, too.
        if settled or (self._running and self._running[0] == last):
            self._running = None
            self._run(self._sizes(consumer).succeed(self._options.max_rows))

    def _sizes(self, consumer: str) -> BatchSizes:
        return BatchSizes(ShardKeys(self._topics.prefix, self._options.topic), consumer)

    def _configure_logging(self) -> None:
        configure_logging(self._options.settings.log_level, self._options.settings.log_format)

    def _keep(self, consumer: str) -> None:
        if self._keeper is None:
            # Not shared, as the keeper runs in a thread of its own.
            topics = Topics(self._topics.prefix)
            layout: Layout = self._run(self._topics.resolve(self._options.topic))
            # Else they were read by a query before this one.
            fresh_s = layout.policy.visibility_ms / 1000 if consumer == self._new else 0.0
            self._keeper = LeaseKeeper(self._connect, lambda age: self._renew(topics, consumer, age), fresh_s=fresh_s)
            self._keeper.start()

    def _renew(self, topics: Topics, consumer: str, age: float) -> Flow[float]:
        layout = yield from topics.resolve(self._options.topic)
        age_ms = int(layout.policy.visibility_ms * age)
        for keys in layout.served:
            yield from PendingEntries(topics, keys, self._options.group, consumer).renew(age_ms)
        return layout.policy.visibility_ms / 1000

    def _join(self) -> None:
        """Creates the group in all shards; `PendingEntries.take` creates it again if it was destroyed."""
        layout: Layout = self._run(self._topics.resolve(self._options.topic))
        if layout != self._joined:
            self._run(groups.join([layout], self._options.group))
            self._joined = layout

    def _shards(self) -> tuple[ShardKeys, ...]:
        layout: Layout = self._run(self._topics.resolve(self._options.topic))
        return layout.served

    def _pending(self, keys: ShardKeys, consumer: str) -> PendingEntries:
        return PendingEntries(self._topics, keys, self._options.group, consumer)

    def _call(self, call: Call[Any]) -> Any:
        return self._connection.call(call, patience_s=self._options.settings.patience_s)

    def _run(self, flow: Flow[Any]) -> Any:
        return self._connection.run(flow, patience_s=self._options.settings.patience_s)

    @property
    def _connection(self) -> Connection:
        """The open connection, or a new one."""
        self._open = self._open or self._connect()
        return self._open

    def _connect(self) -> Connection:
        return Connection.of(self._options.settings, name="lisa-spark")


def _parsed(offset: Offset) -> tuple[Places, str]:
    """Entries and consumer of an offset; raises InvalidInput for another source's."""
    try:
        return dict(offset["entries"]), offset["consumer"]
    except (KeyError, TypeError, ValueError):
        raise InvalidInput("offset", offset, "an offset of this source, with consumer and entries") from None
