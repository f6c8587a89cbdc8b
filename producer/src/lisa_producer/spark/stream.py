"""Topics as a Spark stream: messages that become ready, read by one consumer of a group.

An offset contains the name of the query's consumer, and for each shard of each topic the last entry of its ready stream
in a micro-batch. The driver reads entries, which are small, and so assigns them to the consumer; executors fetch the
messages. The consumer's entries up to Spark's start offset are done, and acked. A restarted query continues with the
same consumer, which still has the unfinished entries.
"""

import json
import logging
import secrets
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
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
from lisa_common.protocol.call import Call, Flow, command
from lisa_common.protocol.lending import store_text
from lisa_common.protocol.marking import MARKING, StartMark
from lisa_common.protocol.registry import Topics, read_registry
from lisa_producer.spark.batch_sizes import BatchSizes
from lisa_producer.spark.leases import LeaseKeeper
from lisa_producer.spark.options import StreamOptions
from lisa_producer.spark.pending_entries import FIRST, PendingEntries, Taken, backlog
from lisa_producer.spark.range_fetcher import RangeFetcher
from lisa_producer.spark.ranges import Entries, Page, cut_entries
from lisa_producer.spark.rows import batch_of_deliveries
from lisa_producer.spark.starting import start_groups

__all__ = ["GroupReader"]

logger = logging.getLogger(__name__)

Offset = dict[str, Any]
"""`consumer`, and entries by topic and shard; shards that were not read yet are missing."""

Places = dict[ShardKeys, str]
"""Entries by shard."""

_NOTED_MS = 30 * 86_400_000
"""How long the last batch of a query that does not run is remembered."""
_PART = 50_000
"""Entries in one value of it."""
_NOTED = 5
"""Fields of each entry, up to the group: by that, the retry of another group is told."""
_LOOK_S = 2.0
"""The pause between two looks for topics that fit a pattern."""


class GroupReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver; reads them on the executors, which receive it by pickle."""

    def __init__(self, options: StreamOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names
        home = options.topic[0] if len(options.topic) == 1 and not is_pattern(options.topic[0]) else ""
        self._home = ShardKeys(options.settings.prefix, home)
        """Where the query keeps its notes: beside its topic, if it has one."""
        self._topics = Topics(options.settings.prefix)
        self._open: Connection | None = None
        self._keeper: LeaseKeeper | None = None
        self._target: Places | None = None
        self._done: Places = {}
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
        """Before the first entries, with a new consumer. Groups that are new begin where the options say."""
        # It marks deliveries that begin, as workers do: others spend no attempt when their leases run out.
        self._new = f"spark-{secrets.token_hex(8)}{MARKING}"
        if self._options.starting_offsets is not None:
            self._run(start_groups(self._topics, self._layouts(), self._options.group, self._options.starting_offsets))
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
        by_topic = {} if self._home.topic else {"topics": dict(counts)}
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
        held = sum(each.count for each in ranges)
        if held:
            alone = held == 1 and self._run(self._pending_of(ranges[0]).is_alone(ranges[0].after, ranges[0].last))
            tried, suspected = self._run(self._sizes(consumer).begin(held, alone=alone))
            ranges = ranges if tried == held else self._shorten(ranges, tried)
            if tried == 1 and suspected:
                begun = StartMark.ALONE if alone else StartMark.YES
                self._run(self._pending_of(ranges[0]).mark_begun(ranges[0].last, begun))
            self._note(consumer, last, ranges, is_whole=tried == held)
            self._running = last, ranges
        return ranges

    def _split(self, consumer: str, after: Places, last: Places) -> list[Entries]:
        ranges: list[Entries] = []
        for keys, entry in last.items():
            begin = after.get(keys, FIRST)
            places = [read.entry for read in self._read.get(keys, ())]
            if not places or places[-1] != entry:
                places = self._run(self._pending(keys, consumer).places(begin, entry))
            ranges += cut_entries(keys, consumer, places, Page(begin, entry, len(places)), self._options.partition_rows)
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
            kept += [Entries(each.keys, each.consumer, Page(each.after, end, keep))] if keep else []
            if self._target is not None and keep < each.count:
                # They come again as new entries, which belong to this run.
                self._target[each.keys] = self._run(pending.newest())
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
        last, consumer = self._parsed(end)
        self._settle(consumer, last)

    def stop(self) -> None:
        """Stops the renewal of leases. Unfinished entries go to a query with the same checkpoint, or to the group."""
        if self._keeper:
            self._keeper.stop()
        if self._open:
            self._open.close()

    def _note(self, consumer: str, last: Places, ranges: Sequence[Entries], *, is_whole: bool) -> None:
        """Notes what the batch has: only the next run learns from Spark whether it was finished before a stop."""
        parts = list(self._noted_parts(ranges, is_whole=is_whole))
        head = json.dumps({"last": _offset(consumer, last), "parts": len(parts)})
        # The head first: else a death between them leaves parts of a new batch, with the head of one that has ended.
        self._call(store_text(self._noted(consumer), head, _NOTED_MS))
        for number, part in enumerate(parts):
            self._call(store_text(self._noted(consumer, number), part, _NOTED_MS))

    def _noted_parts(self, ranges: Sequence[Entries], *, is_whole: bool) -> Iterator[str]:
        for keys in dict.fromkeys(each.keys for each in ranges):
            of_shard = [each for each in ranges if each.keys == keys]
            entries = self._read.get(keys) if is_whole else None
            entries = entries or self._run(self._pending_of(of_shard[0]).held_all(of_shard[0].after, of_shard[-1].last))
            for at in range(0, len(entries), _PART):
                yield json.dumps([keys.topic, keys.shard, [entry[:_NOTED] for entry in entries[at : at + _PART]]])

    def _settle_noted(self, consumer: str, last: Places) -> int:
        """Acks the last batch of the run before, if Spark has finished it: late where leases have run out since."""
        if not self._is_first:
            return 0
        self._is_first, settled = False, 0
        noted = json.loads(self._call(command("GET", self._noted(consumer))) or "{}")
        if not noted or noted["last"] != _offset(consumer, last):
            return 0
        for at in range(noted["parts"]):
            part = self._call(command("GET", self._noted(consumer, at)))
            topic, shard, entries = json.loads(part or '["", "", []]')
            pending = self._pending(ShardKeys(self._topics.prefix, topic, shard), consumer)
            settled += self._run(pending.settle_late([Entry(*each) for each in entries]))
        return settled

    def _noted(self, consumer: str, part: int | str = "") -> str:
        return self._home.query(f"{consumer}/noted/{part}")

    def _settle(self, consumer: str, last: Places) -> None:
        settled = self._settle_noted(consumer, last)
        for keys, entry in last.items():
            if entry not in (self._done.get(keys), FIRST):
                settled += self._run(self._pending(keys, consumer).settle(entry, self._read.pop(keys, ())))
                self._done[keys] = entry
        # A query that stopped after its batch, and before this, left entries pending: that batch is done, too.
        if settled or (self._running and self._running[0] == last):
            self._running = None
            self._run(self._sizes(consumer).succeed(self._options.max_rows))

    def _sizes(self, consumer: str) -> BatchSizes:
        return BatchSizes(self._home, consumer)

    def _configure_logging(self) -> None:
        configure_logging(self._options.settings.log_level, self._options.settings.log_format)

    def _attend(self, consumer: str) -> tuple[Layout, ...]:
        """The topics of the query. Where they have changed, creates the group in all shards, and keeps their leases.

        `PendingEntries.take` creates a group again that was destroyed.
        """
        layouts = self._layouts()
        if layouts != self._joined:
            self._run(groups.join(layouts, self._options.group))
            # Else they may have been read by a query before this one, or have shorter leases.
            is_fresh = self._joined is None and consumer == self._new
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
            topics = (
                offset["topics"]
                if self._home.topic == "" or "topics" in offset
                else {self._home.topic: offset["entries"]}
            )
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
