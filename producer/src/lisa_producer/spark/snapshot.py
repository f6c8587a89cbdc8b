"""A topic's waiting, retry and garbage messages as a table. The driver cuts ranges, and executors read them.

A message that stays in its state during the read is one row. A message that moves meanwhile may appear in both states,
or in neither.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from lisa_common.client.connection import Connection
from lisa_common.model.keys import ShardKeys
from lisa_common.model.sharding import Layout, by_shard
from lisa_common.protocol import paging, producing
from lisa_common.protocol.paging import PAGED, Listed, Point
from lisa_common.protocol.producing import Found, State
from lisa_common.protocol.registry import Topics
from lisa_producer.spark.options import SnapshotOptions
from lisa_producer.spark.ready_messages import GroupEntries, list_entries, read_groups
from lisa_producer.spark.rows import MessageRow, row_of_listed, to_batch

__all__ = ["SnapshotReader"]

_IDS_AT_ONCE = 200
_MAX_BYTES, _MAX_BYTES_WITHOUT_BODIES = 2 * 1024 * 1024, 16 * 1024 * 1024
"""Most bytes of records that the server reads for one page. It sends less where bodies are left out."""


@dataclass(frozen=True, slots=True)
class _Range:
    """The messages of one state of a shard, from one point to another."""

    keys: ShardKeys
    state: State
    start: Point
    end: Point


class _All(InputPartition):
    """The messages of one task: ranges, and entries of groups, which it reads one after the other."""

    def __init__(self, ranges: Sequence[_Range], parts: Sequence[GroupEntries]) -> None:
        self.ranges = tuple(ranges)
        self.parts = tuple(parts)


class _Ids(InputPartition):
    """The messages of one task: ids, with the shards that may hold each, most likely first."""

    def __init__(self, homes: dict[str, tuple[ShardKeys, ...]]) -> None:
        self.homes = homes


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
        """Ranges of about `partitionRows` messages, or of ids. The driver reads only the ends of ranges."""
        options, patience_s = self._options, self._options.settings.patience_s
        with self._connect() as connection:
            layout = connection.run(Topics(options.settings.prefix).resolve(options.topic), patience_s=patience_s)
            if options.ids is not None:
                return self._partitions_of_ids(layout, options.ids)
            ranges: list[_Range] = []
            parts = [
                part
                for keys in (layout.served if set(options.states) - set(PAGED) else ())
                for part in connection.run(read_groups(keys, options.states), patience_s=patience_s)
                if options.group in (None, part.group)
            ]
            for state, keys in itertools.product([state for state in options.states if state in PAGED], layout.served):
                start, end = _points(*options.bounds_of(state))
                if start < end:
                    flow = paging.split(keys, state, start, end, options.partition_rows)
                    ranges += [_Range(keys, state, *cut) for cut in connection.run(flow, patience_s=patience_s)]
        # One task stops at the limit; several could not know of each other's rows.
        if options.limit is not None:
            return [_All(ranges, parts)]
        return [*(_All([each], ()) for each in ranges), *(_All((), [part]) for part in parts)]

    def _partitions_of_ids(self, layout: Layout, ids: Sequence[str]) -> Sequence[InputPartition]:
        size = len(ids) if self._options.limit is not None else self._options.partition_rows
        return [_Ids({id: layout.homes(id) for id in ids[at : at + size]}) for at in range(0, len(ids), size)]

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
        if isinstance(partition, _Ids):
            for page in self._pages_of_ids(connection, partition.homes):
                yield list(map(self._row, page))
        # Without any partition, Spark passes one of its own.
        elif isinstance(partition, _All):
            for each in partition.ranges:
                for page in self._pages_of_range(connection, each):
                    yield list(map(self._row, page))
            for part in partition.parts:
                yield from self._pages_of_group(connection, part)

    def _pages_of_group(self, connection: Connection, part: GroupEntries) -> Iterator[list[MessageRow]]:
        after: str | None = part.after
        while after is not None:
            flow = list_entries(self._options.topic, part, after)
            page, after = connection.run(flow, patience_s=self._options.settings.patience_s)
            yield page

    def _pages_of_range(self, connection: Connection, each: _Range) -> Iterator[Sequence[Listed]]:
        has_bodies = "body" in self._names
        rest: Point | None = each.start
        while rest is not None:
            call = paging.list_messages(
                each.keys,
                each.state,
                rest,
                each.end,
                max_bytes=_MAX_BYTES if has_bodies else _MAX_BYTES_WITHOUT_BODIES,
                group=self._options.group or "",
                reason=self._options.reason_at_server,
                bodies=has_bodies,
            )
            page = connection.call(call, patience_s=self._options.settings.patience_s)
            yield page.messages
            rest = page.rest

    def _pages_of_ids(
        self, connection: Connection, homes: dict[str, tuple[ShardKeys, ...]]
    ) -> Iterator[Sequence[Listed]]:
        ids = list(homes)
        for at in range(0, len(ids), _IDS_AT_ONCE):
            open_homes = {id: homes[id] for id in ids[at : at + _IDS_AT_ONCE]}
            page: list[Listed] = []
            while open_homes:
                shards = by_shard(open_homes, lambda id: open_homes[id][0])  # noqa: B023 - called at once
                calls = [producing.find(keys, id) for keys, of_shard in shards.items() for id in of_shard]
                order = [id for of_shard in shards.values() for id in of_shard]
                for id, found in zip(order, connection.execute(calls), strict=True):
                    if found is not None:
                        page += _listed(found)
                    if found is not None or len(open_homes[id]) == 1:
                        del open_homes[id]
                    else:
                        open_homes[id] = open_homes[id][1:]
            yield page


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
