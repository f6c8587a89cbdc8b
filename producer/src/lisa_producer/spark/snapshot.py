"""A topic's waiting, retry and garbage messages as a table. Executors read them, in ranges that the driver cuts.

A message that stays in its state while the table is read is one row of it. One that moves meanwhile may be met in both
states, or in neither.
"""

import itertools
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from lisa_common.client.connection import Connection
from lisa_common.model.keys import ShardKeys
from lisa_common.protocol import paging
from lisa_common.protocol.paging import Point
from lisa_common.protocol.producing import State
from lisa_common.protocol.registry import Topics
from lisa_producer.spark.options import SnapshotOptions
from lisa_producer.spark.rows import row_of_listed, to_batch

__all__ = ["snapshot_reader"]

_TIME_OF = {State.WAITING: "due_at", State.RETRY: "due_at", State.GARBAGE: "died_at"}
"""The column by which each state is in order."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Bounds:
    """A range of times in ms, both ends included."""

    low: float = -math.inf
    high: float = math.inf

    def within(self, other: "_Bounds") -> "_Bounds":
        return _Bounds(max(self.low, other.low), min(self.high, other.high))

    @property
    def points(self) -> tuple[Point, Point]:
        # The time of a score is its ceiling: scores above low - 1 and up to high.
        return Point(math.nextafter(self.low - 1, math.inf)), Point(math.nextafter(self.high, math.inf))


class _Range(InputPartition):
    """What one task reads."""

    def __init__(self, keys: ShardKeys, state: State, start: Point, end: Point) -> None:
        self.keys = keys
        self.state = state
        self.start = start
        self.end = end


class SnapshotReader(DataSourceReader):
    """Reads all that the options name."""

    def __init__(self, options: SnapshotOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names
        self._states: Sequence[State] = options.state
        self._bounds: dict[str, _Bounds] = {}

    def _connect(self) -> Connection:
        return Connection.of(self._options.settings, name="lisa-spark")

    def partitions(self) -> Sequence[InputPartition]:
        """Ranges of about `partitionRows` messages; of the messages themselves the driver sees only where they end."""
        ranges: list[InputPartition] = []
        patience_s = self._options.settings.patience_s
        with self._connect() as connection:
            topics = Topics(self._options.settings.prefix)
            layout = connection.run(topics.resolve(self._options.topic), patience_s=patience_s)
            for state, keys in itertools.product(self._states, layout.served):
                start, end = self._bounds.get(_TIME_OF[state], _Bounds()).points
                if start >= end:
                    continue
                flow = paging.split(keys, state, start, end, self._options.partition_rows)
                cut = connection.run(flow, patience_s=patience_s)
                ranges += [_Range(keys, state, *points) for points in cut]
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one range, page by page."""
        # Where there is nothing to read, Spark makes up one partition of its own.
        if not isinstance(partition, _Range):
            return
        rest: Point | None = partition.start
        with self._connect() as connection:
            while rest is not None:
                call = paging.page(partition.keys, partition.state, rest, partition.end)
                page = connection.call(call, patience_s=self._options.settings.patience_s)
                if page.messages:
                    yield to_batch(self._names, (row_of_listed(self._options.topic, found) for found in page.messages))
                rest = page.rest


class _FilteredReader(SnapshotReader):
    """Reads only the states and times that the query's filters leave."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Narrows what is read. All filters are returned, so that Spark checks each row by them once more."""
        for one in filters:
            self._narrow(one)
        return filters

    def _narrow(self, one: Filter) -> None:
        column = getattr(one, "attribute", ("",))[0]
        if column == "state" and isinstance(one, EqualTo | EqualNullSafe | In):
            wanted = one.value if isinstance(one, In) else (one.value,)
            self._states = [state for state in self._states if state.value in wanted]
        elif column in _TIME_OF.values() and (bounds := _bounds(one)):
            self._bounds[column] = self._bounds.get(column, _Bounds()).within(bounds)
            # A comparison with null is never true, and nothing alive has died.
            if column == "died_at":
                self._states = [state for state in self._states if state is State.GARBAGE]


def _bounds(one: Filter) -> _Bounds | None:
    """The times that a filter leaves, a little more than that where it is finer than ms; None where it says nothing."""
    value = getattr(one, "value", None)
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    ms = (value - _EPOCH) / timedelta(milliseconds=1)
    if isinstance(one, EqualTo | EqualNullSafe):
        return _Bounds(math.floor(ms), math.ceil(ms))
    if isinstance(one, GreaterThan | GreaterThanOrEqual):
        return _Bounds(low=math.floor(ms))
    if isinstance(one, LessThan | LessThanOrEqual):
        return _Bounds(high=math.ceil(ms))
    return None


def snapshot_reader(options: SnapshotOptions, names: tuple[str, ...]) -> SnapshotReader:
    """The reader that Spark can take now.

    It refuses one that takes filters while `spark.sql.python.filterPushdown.enabled` is off, which is its default,
    instead of not passing any. Only where it is on, it plans in the worker that passes filters.
    """
    if "pyspark.sql.worker.data_source_pushdown_filters" in sys.modules:
        return _FilteredReader(options, names)
    return SnapshotReader(options, names)
