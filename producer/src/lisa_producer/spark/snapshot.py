"""A topic's waiting, retry and garbage messages as a table. The driver cuts ranges, and executors read them.

A message that stays in its state during the read is one row. A message that moves meanwhile may appear in both states,
or in neither.
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
"""The time by which each state is sorted."""

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
        # Times are scores rounded up: scores above low - 1 and up to high.
        return Point(math.nextafter(self.low - 1, math.inf)), Point(math.nextafter(self.high, math.inf))


class _Range(InputPartition):
    """The messages of one task."""

    def __init__(self, keys: ShardKeys, state: State, start: Point, end: Point) -> None:
        self.keys = keys
        self.state = state
        self.start = start
        self.end = end


class SnapshotReader(DataSourceReader):
    """Reads the states that the options name."""

    def __init__(self, options: SnapshotOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names
        self._states: Sequence[State] = options.state
        self._bounds: dict[str, _Bounds] = {}

    def _connect(self) -> Connection:
        return Connection.of(self._options.settings, name="lisa-spark")

    def partitions(self) -> Sequence[InputPartition]:
        """Ranges of about `partitionRows` messages. The driver reads only their ends, no messages."""
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
        # Without any range, Spark passes a partition of its own.
        if not isinstance(partition, _Range):
            return
        rest: Point | None = partition.start
        with self._connect() as connection:
            while rest is not None:
                call = paging.list_messages(partition.keys, partition.state, rest, partition.end)
                page = connection.call(call, patience_s=self._options.settings.patience_s)
                if page.messages:
                    yield to_batch(
                        self._names, (row_of_listed(self._options.topic, listed) for listed in page.messages)
                    )
                rest = page.rest


class _FilteredReader(SnapshotReader):
    """Reads only the states and times that pass the query's filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Narrows the read. Returns all filters, so that Spark applies them to each row again."""
        for rule in filters:
            self._narrow(rule)
        return filters

    def _narrow(self, rule: Filter) -> None:
        column = getattr(rule, "attribute", ("",))[0]
        if column == "state" and isinstance(rule, EqualTo | EqualNullSafe | In):
            wanted = rule.value if isinstance(rule, In) else (rule.value,)
            self._states = [state for state in self._states if state.value in wanted]
        elif column in _TIME_OF.values() and (bounds := _bounds(rule)):
            self._bounds[column] = self._bounds.get(column, _Bounds()).within(bounds)
            # Only garbage has this time, and a comparison with null is never true.
            if column == "died_at":
                self._states = [state for state in self._states if state is State.GARBAGE]


def _bounds(rule: Filter) -> _Bounds | None:
    """The times that pass a filter, rounded outwards to ms; None where it restricts no time."""
    value = getattr(rule, "value", None)
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    ms = (value - _EPOCH) / timedelta(milliseconds=1)
    if isinstance(rule, EqualTo | EqualNullSafe):
        return _Bounds(math.floor(ms), math.ceil(ms))
    if isinstance(rule, GreaterThan | GreaterThanOrEqual):
        return _Bounds(low=math.floor(ms))
    if isinstance(rule, LessThan | LessThanOrEqual):
        return _Bounds(high=math.ceil(ms))
    return None


def snapshot_reader(options: SnapshotOptions, names: tuple[str, ...]) -> SnapshotReader:
    """A reader with filters if Spark accepts it.

    While `spark.sql.python.filterPushdown.enabled` is off, its default, Spark refuses such a reader. While it is on,
    Spark plans in a worker of its own, which is recognised by its module.
    """
    if "pyspark.sql.worker.data_source_pushdown_filters" in sys.modules:
        return _FilteredReader(options, names)
    return SnapshotReader(options, names)
