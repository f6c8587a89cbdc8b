"""A topic's waiting, retry and garbage messages as a table. The driver cuts spans, and executors read them.

A message that stays in its state during the read is one row. A message that moves meanwhile may appear in both states,
or in neither.
"""

import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from lisa_common.client.connection import Connection
from lisa_common.model.keys import ShardKeys
from lisa_common.model.sharding import Layout, by_shard
from lisa_common.protocol import paging, producing
from lisa_common.protocol.call import Flow
from lisa_common.protocol.paging import PAGED, Listed, Point
from lisa_common.protocol.producing import Found, State
from lisa_common.protocol.registry import Topics
from lisa_producer.spark.options import SnapshotOptions
from lisa_producer.spark.ready_messages import EntrySpan, list_entries, read_groups, split_entries
from lisa_producer.spark.rows import MessageRow, row_of_listed, to_batch

__all__ = ["SnapshotReader"]

_IDS_AT_ONCE = 200
_MAX_BYTES, _MAX_BYTES_WITHOUT_BODIES = 2 * 1024 * 1024, 16 * 1024 * 1024
"""Most bytes of records that the server reads for one page. It sends less where bodies are left out."""


class Span(NamedTuple):
    """The messages of one state from one point to another, in all shards."""

    state: State
    start: Point
    end: Point


class _Share(InputPartition):
    """The messages of one task: of some ids, or of spans of states, in whatever shards there are when it runs.

    Spark keeps the shares of a frame's first look for all later ones. So they name nothing that may change: ends of
    spans need not exist, and together they have all messages of a state at any time, each once.
    """

    def __init__(self, *spans: Span | EntrySpan, ids: Sequence[str] | None = None) -> None:
        self.spans = spans
        self.ids = ids


class SnapshotReader(DataSourceReader):
    """Reads what the options select. Filters of a query apply to these rows, in Spark.

    Spark's interface to push filters down (`pushFilters`) is not used: Spark shares one read among all scans of a
    relation, so a filter of one query would remove rows from another.
    """

    def __init__(self, options: SnapshotOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names

    def _connect(self) -> Connection:
        return Connection.of(self._options.settings, name="lisa-spark")

    def partitions(self) -> Sequence[InputPartition]:
        """Shares of about `partitionRows` messages by what the topic has now. The driver reads only ends of spans."""
        options = self._options
        if options.ids is not None:
            size = self._rows_at_once
            return [_Share(ids=options.ids[at : at + size]) for at in range(0, len(options.ids), size)]
        spans: list[Span | EntrySpan] = []
        with self._connect() as connection:
            shards = self._shards(connection)
            for state in options.states:
                flow = (
                    self._split(shards, state) if state in PAGED else split_entries(shards, state, self._rows_at_once)
                )
                spans += connection.run(flow, patience_s=options.settings.patience_s)
        # One task stops at the limit; several could not know of each other's rows.
        return [_Share(*spans)] if options.limit is not None else [*map(_Share, spans)]

    @property
    def _rows_at_once(self) -> int:
        # One task reads all: no need to cut.
        return sys.maxsize if self._options.limit is not None else self._options.partition_rows

    def _split(self, shards: Sequence[ShardKeys], state: State) -> Flow[list[Span | EntrySpan]]:
        start, end = _points(*self._options.bounds_of(state))
        if start >= end:
            return []
        cuts: list[Point] = []
        for keys in shards:
            ranges = yield from paging.split(keys, state, start, end, -(-self._rows_at_once // len(shards)))
            cuts += [first for first, _ in ranges[1:]]
        # Each shard is cut as finely as if it had all rows of its task.
        inner = sorted(cuts)[len(shards) - 1 :: len(shards)]
        return [Span(state, *ends) for ends in itertools.pairwise((start, *dict.fromkeys(inner), end))]

    def _shards(self, connection: Connection) -> Sequence[ShardKeys]:
        return self._layout(connection).served

    def _layout(self, connection: Connection) -> Layout:
        flow = Topics(self._options.settings.prefix).resolve(self._options.topic)
        return connection.run(flow, patience_s=self._options.settings.patience_s)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The selected messages of one partition, page by page."""
        left = math.inf if self._options.limit is None else self._options.limit
        with self._connect() as connection:
            for page in self._pages(connection, partition):
                rows = [row for row in page if self._options.selects(row)]
                if rows:
                    yield to_batch(self._names, rows[: int(min(left, len(rows)))])
                    left -= len(rows)
                if left <= 0:
                    return

    def _row(self, listed: Listed) -> MessageRow:
        return row_of_listed(self._options.topic, listed)

    def _pages(self, connection: Connection, partition: InputPartition) -> Iterator[list[MessageRow]]:
        # Without any share, Spark passes a partition of its own.
        if not isinstance(partition, _Share):
            return
        if partition.ids is not None:
            for page in self._pages_of_ids(connection, partition.ids):
                yield list(map(self._row, page))
        for span, keys in itertools.product(partition.spans, self._shards(connection)):
            if isinstance(span, EntrySpan):
                yield from self._pages_of_groups(connection, keys, span)
            else:
                for page in self._pages_of_range(connection, keys, span):
                    yield list(map(self._row, page))

    def _pages_of_groups(self, connection: Connection, keys: ShardKeys, span: EntrySpan) -> Iterator[list[MessageRow]]:
        patience_s = self._options.settings.patience_s
        for part in connection.run(read_groups(keys, span), patience_s=patience_s):
            after = part.after if self._options.group in (None, part.group) else None
            while after is not None:
                page, after = connection.run(list_entries(self._options.topic, part, after), patience_s=patience_s)
                yield page

    def _pages_of_range(self, connection: Connection, keys: ShardKeys, span: Span) -> Iterator[Sequence[Listed]]:
        has_bodies = "body" in self._names
        rest: Point | None = span.start
        while rest is not None:
            call = paging.list_messages(
                keys,
                span.state,
                rest,
                span.end,
                max_bytes=_MAX_BYTES if has_bodies else _MAX_BYTES_WITHOUT_BODIES,
                group=self._options.group or "",
                reason=self._options.reason_at_server,
                bodies=has_bodies,
            )
            page = connection.call(call, patience_s=self._options.settings.patience_s)
            yield page.messages
            rest = page.rest

    def _pages_of_ids(self, connection: Connection, ids: Sequence[str]) -> Iterator[Sequence[Listed]]:
        layout = self._layout(connection)
        for at in range(0, len(ids), _IDS_AT_ONCE):
            flow = _find(layout, ids[at : at + _IDS_AT_ONCE])
            yield connection.run(flow, patience_s=self._options.settings.patience_s)


def _find(layout: Layout, ids: Sequence[str]) -> Flow[list[Listed]]:
    """The states of messages, each asked of the shards that may hold it until one knows it."""
    page: list[Listed] = []
    open_homes = {id: layout.homes(id) for id in ids}
    while open_homes:
        shards = by_shard(open_homes, lambda id: open_homes[id][0])
        calls = [producing.find(keys, id) for keys, of_shard in shards.items() for id in of_shard]
        order = [id for of_shard in shards.values() for id in of_shard]
        for id, found in zip(order, (yield calls), strict=True):
            if found is not None:
                page += _listed(found)
            if found is not None or len(open_homes[id]) == 1:
                del open_homes[id]
            else:
                open_homes[id] = open_homes[id][1:]
    return page


def _points(low_ms: float, high_ms: float) -> tuple[Point, Point]:
    """The points around times from `low_ms`, included, to `high_ms`, excluded."""
    # Times are scores rounded up: scores above low - 1, and up to high - 1.
    return Point(math.nextafter(low_ms - 1, math.inf)), Point(math.nextafter(high_ms - 1, math.inf))


def _listed(found: Found) -> Iterator[Listed]:
    """The states of a message as a page of each state would list them."""
    if found.state is State.WAITING and found.record is not None:
        yield Listed(State.WAITING, None, found.id, found.record.due_ms, found.record, None)
    for copy in found.copies:
        at_ms = copy.at_ms if copy.state in PAGED else found.record and found.record.due_ms
        if copy.state in (*PAGED, State.READY, State.DELIVERED) and at_ms is not None:
            yield Listed(copy.state, copy.group or None, found.id, at_ms, found.record, copy.failure)
