"""Topics as a Spark stream: messages that become ready, read by one consumer of a group.

An offset contains the name of the query's consumer, and for each shard of each topic the last entry of its ready stream
in a micro-batch. The driver reads entries, which are small, and so assigns them to the consumer; executors fetch the
messages. The consumer's entries up to Spark's start offset are done, and acked. A restarted query continues with the
same consumer, which still has the unfinished entries.
"""

import logging
import secrets
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import count
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from lisa_common.client.connection import Connection
from lisa_common.errors import InvalidInput
from lisa_common.logs import configure_logging, event
from lisa_common.model.delivery import Entry
from lisa_common.model.keys import ShardKeys
from lisa_common.model.policy import DEFAULT_POLICY
from lisa_common.model.sharding import Layout
from lisa_common.model.topic_pattern import is_pattern
from lisa_common.protocol import groups
from lisa_common.protocol.call import Call, Flow
from lisa_common.protocol.marking import MARKING, StartMark
from lisa_common.protocol.registry import Topics, read_registry
from lisa_producer.spark.batch_sizes import BatchSizes
from lisa_producer.spark.last_batch import PART, LastBatch
from lisa_producer.spark.leases import LeaseKeeper
from lisa_producer.spark.options import StreamOptions
from lisa_producer.spark.pending_entries import FIRST, PendingEntries, Taken, backlog
from lisa_producer.spark.range_fetcher import RangeFetcher
from lisa_producer.spark.ranges import Entries, cut
from lisa_producer.spark.rows import batch_of_deliveries
from lisa_producer.spark.starting import start_groups

__all__ = ["GroupReader"]

logger = logging.getLogger(__name__)

Offset = dict[str, Any]
"""`consumer`, and entries by topic and shard; shards that were not read yet are missing."""

Places = dict[ShardKeys, str]
"""Entries by shard."""

_LOOK_S = 2.0
"""The pause between two looks for topics that fit a pattern."""


class GroupReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver; reads them on the executors, which receive it by pickle."""

    def __init__(self, options: StreamOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names
        self._home = ShardKeys(options.settings.prefix, options.topic[0])
        """Where the query keeps its notes: beside the first topic or pattern, for which its user has rights."""
        self._topics = Topics(options.settings.prefix)
        self._open: Connection | None = None
        self._keeper: LeaseKeeper | None = None
        self._target: Places | None = None
        self._running: tuple[Places, Sequence[Entries]] | None = None
        self._read: dict[ShardKeys, list[Entry]] = {}
        """The entries of the micro-batch, by shard."""
        self._new: str | None = None
        """The consumer, if it had read nothing before."""
        self._turns = 0
        self._found: list[str] = []
        """The topics that fit, by the last look at the registry."""
        self._look_at = 0.0
        self._joined: tuple[Layout, ...] | None = None
        self._before: Offset | None = None
        """The end of the batch that the run before began last, empty for none; None until it is looked up."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {
            "_open": None,
            "_keeper": None,
            "_running": None,
            "_read": {},
            "_topics": Topics(self._topics.prefix),
        }

    def initialOffset(self) -> Offset:  # noqa: N802
        """Before the first entries, with a new consumer. Spark asks again until the first batch is done."""
        # It marks deliveries that begin, as workers do: others spend no attempt when their leases run out.
        self._new = f"spark-{secrets.token_hex(8)}{MARKING}"
        return _offset(self._new, {})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The option maxRows."""
        return ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fixes the end of this run: later messages are for the next one."""
        self._target = {keys: self._run(self._pending(keys, "").newest()) for keys in self._shards()}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Acks entries up to the start, and reads the next ones, up to the limit.

        Raises InvalidInput for the trigger `once`, with which Spark never tells that its batch is done.
        """
        if self._target is None and isinstance(limit, ReadAllAvailable):
            raise InvalidInput("trigger", "once=True", "availableNow=True, which acks what it has finished")
        after, consumer = self._parsed(start)
        self._settle(consumer, after)
        topics, shards = {layout.topic for layout in self._attend(consumer)}, self._shards()
        # A topic that was dropped, or fits no more, leaves the offset.
        entries = {keys: entry for keys, entry in after.items() if keys.topic in topics}
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_rows
        left, left_bytes = self._run(self._sizes(consumer).limit(most)), self._options.max_bytes
        # Each shard has a share. Another shard is first each time, as the limit may be lower than the number of shards.
        self._turns += 1
        first, is_empty = self._turns % max(1, len(shards)), True
        for position, keys in enumerate(shards[first:] + shards[:first]):
            share = -(-left // (len(shards) - position))
            if share == 0:
                break
            at = after.get(keys, FIRST)
            taken = self._take(keys, consumer, at, share, left_bytes, first=is_empty)
            left -= taken.rows
            left_bytes = None if left_bytes is None else max(0, left_bytes - taken.bytes)
            is_empty = is_empty and not taken.rows
            if taken.last != FIRST:
                entries[keys] = taken.last
            if taken.is_full:
                break
        return _offset(consumer, entries)

    def _take(
        self, keys: ShardKeys, consumer: str, after: str, rows: int, most_bytes: int | None, *, first: bool
    ) -> Taken:
        pending, target = self._pending(keys, consumer), self._target
        newest = self._run(pending.newest()) if target is None else target.get(keys, FIRST)
        flow = pending.take(after, newest, rows, beyond=target is None, most_bytes=most_bytes, first=first)
        taken: Taken = self._run(flow)
        self._read[keys] = taken.entries
        return taken

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The backlog: how many `messages` the group has not read or not settled, also by `topics` if it reads several.

        None if the server cannot tell.
        """
        counts = Counter[str]()
        for keys in self._shards():
            count = self._run(backlog(keys, self._options.group))
            if count is None:
                return None
            counts[keys.topic] += count
        has_one = len(self._options.topic) == 1 and not is_pattern(self._options.topic[0])
        by_topic = {} if has_one else {"topics": dict(counts)}
        return {"messages": counts.total(), **by_topic}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Ranges of about `partitionRows` pending entries; of fewer than planned if the batch has failed before."""
        after, _ = self._parsed(start)
        last, consumer = self._parsed(end)
        if self._running and self._running[0] == last:
            return self._running[1]
        self._settle(consumer, after)
        self._attend(consumer)
        ranges = self._split(consumer, after, last)
        if held := sum(each.count for each in ranges):
            # Only a batch that Spark repeats has failed.
            ranges = self._tried(ranges, held, again=self._before == _offset(consumer, last))
            self._running = last, ranges
        self._call(LastBatch(self._home, consumer).begin(_offset(consumer, last), ranges))
        return ranges

    def _tried(self, ranges: list[Entries], held: int, *, again: bool) -> list[Entries]:
        """The ranges of a batch, of fewer entries than it holds if it has failed too often."""
        first, pending = ranges[0], self._pending_of(ranges[0])
        alone = held == 1 and self._run(pending.is_alone(first.after, first.last))
        tried, suspected = self._run(self._sizes(first.consumer).begin(held, alone=alone, again=again))
        ranges = ranges if tried == held else self._shorten(ranges, tried)
        if tried == 1 and suspected:
            begun = StartMark.ALONE if alone else StartMark.YES
            self._run(pending.mark_begun(ranges[0].last, begun))
        return ranges

    def _split(self, consumer: str, after: Places, last: Places) -> list[Entries]:
        ranges: list[Entries] = []
        for keys, entry in last.items():
            begin = after.get(keys, FIRST)
            places = [read.entry for read in self._known(keys, entry)]
            if not places:
                places = self._run(self._pending(keys, consumer).places(begin, entry))
            ranges += cut(keys, consumer, places, begin, entry, size=self._options.partition_rows)
        return ranges

    def _pending_of(self, entries: Entries) -> PendingEntries:
        return self._pending(entries.keys, entries.consumer)

    def _shorten(self, ranges: list[Entries], tried: int) -> list[Entries]:
        """The ranges of the first entries of a batch that failed; the others are given back."""
        self._configure_logging()
        topic, group, held = ", ".join(self._options.topic), self._options.group, sum(each.count for each in ranges)
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
            kept += [Entries(each.keys, each.consumer, each.after, end, keep)] if keep else []
            if self._target is not None and keep < each.count:
                # They come again as new entries, which belong to this run.
                self._target[each.keys] = self._run(pending.newest())
        return kept

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one range, without expired and unreadable ones, which are settled instead."""
        if not isinstance(partition, Entries):
            return
        fetcher = RangeFetcher(self._pending_of(partition), partition)
        notes, patience_s = LastBatch(self._home, partition.consumer), self._options.settings.patience_s
        with self._connect() as connection:
            for part in count():
                rows: list[Entry] = []
                while len(rows) < PART and not fetcher.is_done:
                    if deliveries := connection.run(fetcher.next_page(), patience_s=patience_s):
                        rows += [each.entry for each in deliveries]
                        yield batch_of_deliveries(self._names, deliveries)
                connection.call(notes.add(partition, part, rows), patience_s=patience_s)
                if len(rows) < PART:
                    return

    def commit(self, end: Offset) -> None:
        """Acks the consumer's entries up to the offset."""
        last, consumer = self._parsed(end)
        self._settle(consumer, last)

    def stop(self) -> None:
        """Stops the renewal of leases. Unfinished entries go to a query with the same checkpoint, or to the group."""
        if self._keeper:
            self._keeper.stop()
        if self._open:
            self._open.close()

    def _settle(self, consumer: str, last: Places) -> None:
        """Acks what is done: again each time, as a server that fails over loses the latest acks."""
        is_done = bool(self._running and self._running[0] == last)
        if self._before is None:
            is_done = self._settle_before(LastBatch(self._home, consumer), _offset(consumer, last))
        for keys, entry in last.items():
            known = self._known(keys, entry)
            self._run(self._pending(keys, consumer).settle(entry, known))
            if known:
                del self._read[keys]
        if is_done:
            self._running = None
            self._run(self._sizes(consumer).succeed(self._options.max_rows))

    def _settle_before(self, notes: LastBatch, last: Offset) -> bool:
        """Acks the last batch of the run before if Spark has finished it: late where leases have run out since.

        Returns whether it has.
        """
        head = self._run(notes.read())
        self._before = head.get("last", {})
        if self._before != last:
            return False
        for keys, rows in self._run(notes.rows(head)):
            self._run(self._pending(keys, notes.consumer).settle_late(rows))
        return bool(head["tasks"])

    def _known(self, keys: ShardKeys, last: str) -> list[Entry]:
        """The entries of a shard that the driver has read for a batch up to this one; none if it was another batch."""
        read = self._read.get(keys, [])
        return read if read and read[-1].entry == last else []

    def _sizes(self, consumer: str) -> BatchSizes:
        return BatchSizes(self._home, consumer)

    def _configure_logging(self) -> None:
        configure_logging(self._options.settings.log_level, self._options.settings.log_format)

    def _attend(self, consumer: str) -> tuple[Layout, ...]:
        """The topics of the query. Where they have changed, creates the group in all shards, and keeps their leases.

        With a new checkpoint, the group begins where the options say. `PendingEntries.take` creates one again that was
        destroyed.
        """
        layouts, start = self._layouts(), self._options.starting_offsets
        if layouts != self._joined:
            # Else entries may have been read by a query before this one, or have shorter leases.
            is_fresh = self._joined is None and consumer == self._new
            if is_fresh and start is not None:
                self._run(start_groups(self._topics, layouts, self._options.group, start))
            self._run(groups.join(layouts, self._options.group))
            self._joined = layouts
            if self._keeper:
                self._keeper.stop()
            # Not shared, as the keeper runs in a thread of its own.
            topics, names = Topics(self._topics.prefix), [layout.topic for layout in layouts]
            self._keeper = LeaseKeeper(
                self._connect,
                lambda age: self._renew(topics, names, consumer, age),
                fresh_s=_lease_s(layouts) if is_fresh else 0.0,
            )
            self._keeper.start()
        return layouts

    def _renew(self, topics: Topics, names: Sequence[str], consumer: str, age: float) -> Flow[float]:
        layouts: dict[str, Layout] = yield from topics.resolve_each(names)
        for layout in layouts.values():
            for keys in layout.served:
                age_ms = int(layout.policy.visibility_ms * age)
                yield from PendingEntries(topics, keys, self._options.group, consumer).renew(age_ms)
        return _lease_s(layouts.values())

    def _layouts(self) -> tuple[Layout, ...]:
        """The topics that the query names, and those that fit its patterns."""
        named = [text for text in self._options.topic if not is_pattern(text)]
        if len(named) < len(self._options.topic) and time.monotonic() >= self._look_at:
            registered = self._run(read_registry(self._topics.prefix))
            self._found = [
                topic for topic in sorted(registered) if any(each.fits(topic) for each in self._options.patterns)
            ]
            self._look_at = time.monotonic() + _LOOK_S
        names = dict.fromkeys((*named, *self._found))
        layouts: dict[str, Layout] = self._run(self._topics.resolve_each(names))
        return tuple(layouts.values())

    def _shards(self) -> tuple[ShardKeys, ...]:
        return tuple(keys for layout in self._layouts() for keys in layout.served)

    def _parsed(self, offset: Offset) -> tuple[Places, str]:
        """Entries and consumer of an offset; raises InvalidInput for another source's."""
        prefix = self._topics.prefix
        try:
            # An earlier version read one topic, and did not name it.
            topics = offset["topics"] if "topics" in offset else {self._home.topic: offset["entries"]}
            places = {
                ShardKeys(prefix, topic, shard): entry
                for topic, entries in topics.items()
                for shard, entry in entries.items()
            }
            return places, offset["consumer"]
        except (AttributeError, KeyError, TypeError, ValueError):
            raise InvalidInput("offset", offset, "an offset of this source, with consumer and topics") from None

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


def _offset(consumer: str, places: Places) -> Offset:
    topics: dict[str, dict[str, str]] = {}
    for keys, entry in places.items():
        topics.setdefault(keys.topic, {})[keys.shard] = entry
    return {"consumer": consumer, "topics": topics}


def _lease_s(layouts: Collection[Layout]) -> float:
    """How long leases last at least."""
    policies = [layout.policy for layout in layouts] or [DEFAULT_POLICY]
    return min(policy.visibility_ms for policy in policies) / 1000
