"""The sink: one producer for each task, and one line in the driver's log for each batch."""

import json
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from lisa_common.client.connection import Connection
from lisa_common.errors import LisaError
from lisa_common.logs import configure_logging, event
from lisa_common.model.keys import ShardKeys
from lisa_common.protocol import jobs
from lisa_producer.client import Producer
from lisa_producer.spark.bad_rows import BadRowSink, open_bad_row_sink
from lisa_producer.spark.columns import Columns
from lisa_producer.spark.line_files import LineFile, remove_file
from lisa_producer.spark.memory import Digest, Memory, Place, spooled
from lisa_producer.spark.messages import rows_of
from lisa_producer.spark.operations import open_target
from lisa_producer.spark.options import WriteOptions
from lisa_producer.spark.row_targets import Counts, Hooks, Outcome, RowTarget

__all__ = ["BatchWriter", "Sink", "StreamWriter", "Written"]

logger = logging.getLogger(__name__)

_WORDS = {"send": ("wrote", "sent", "duplicates")}
_STEPS = 20
"""Parts of a second in which a job with a rate sends."""


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """Counts of one task's rows; start and end in seconds since the epoch."""

    rows: int
    sent: int
    """Rows with an effect: sent, or changed."""
    duplicates: int
    """Rows without an effect."""
    bad: int
    began: float
    ended: float
    bad_file: str | None = None
    outcome_file: str | None = None
    query: str | None = None


@dataclass(frozen=True, slots=True)
class Sink:
    """Writes for batches and streams. Spark pickles it for the tasks, so that it has no connection."""

    options: WriteOptions
    columns: Columns
    run: str = field(default_factory=lambda: uuid4().hex)

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """Writes one task's rows; raises LisaError for an invalid row, or if the server stays unreachable."""
        partition, run, place = self._place()
        settings, memory = self.options.settings, Memory(self.options)
        if place is None or not memory.is_on:
            return self._write(batches, partition, run, place, None)
        began = time.time()
        with Connection.of(settings, name="lisa-spark") as connection:
            known = memory.read(connection, place)
            if known is not None:
                read, batches = spooled(self.columns, batches)
                if str(read) == known:
                    return Written(read.rows, 0, read.rows, 0, began, time.time(), query=place.query)
            digest = Digest()
            written = self._write(batches, partition, run, place, digest)
            memory.keep(connection, place, digest)
        return written

    def _write(
        self, batches: Iterator[pa.RecordBatch], partition: int, run: str, place: Place | None, digest: Digest | None
    ) -> Written:
        began = time.time()
        outcomes = LineFile(self.options.outcomes, f"{run}-{partition:05d}.jsonl") if self.options.outcomes else None
        with Producer(settings=self.options.settings, confirm=self.options.confirm) as producer:
            bad_rows = open_bad_row_sink(self.options.bad_rows, producer, run, partition)
            target = open_target(producer, self.options, self.columns, self._hooks(bad_rows, outcomes, run))
            try:
                rows = self._load(target, batches, digest)
            except BaseException:
                bad_rows.discard()
                if outcomes:
                    outcomes.discard()
                raise
            bad_rows.close()
            if outcomes:
                outcomes.close()
        counts: Counts = target.counts
        return Written(
            *(rows, counts.done, counts.without_effect, counts.bad, began, time.time()),
            bad_file=bad_rows.file,
            outcome_file=outcomes.file if outcomes else None,
            query=place.query if place else None,
        )

    def _hooks(self, bad_rows: BadRowSink, outcomes: LineFile | None, run: str) -> Hooks:
        hooks = Hooks(bad_rows.take)
        if outcomes:
            hooks.on_outcome = lambda outcome: outcomes.write(_line(outcome))
        if rate := self.options.max_rows_per_second:
            hooks.before = _Rate(self.options, run, rate).wait
            hooks.most_rows = max(1, min(self.options.settings.batch_messages, int(rate / _STEPS)))
        return hooks

    def _load(self, target: RowTarget, batches: Iterator[pa.RecordBatch], digest: Digest | None) -> int:
        number = 0
        for batch in batches:
            size = batch.nbytes // max(1, batch.num_rows)
            for row in rows_of(self.columns, batch, number):
                if digest:
                    digest.add(row)
                target.add(row, size)
            number += batch.num_rows
        target.flush()
        return number

    def _place(self) -> tuple[int, str, Place | None]:
        """The partition, a name of the run that stays the same when it is repeated, and the place in a query."""
        context = TaskContext.get()
        if context is None:
            return 0, self.run, None
        partition = context.partitionId()
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if not query or not batch:
            return partition, self.run, None
        return partition, f"{query}-{batch}", Place(query, int(batch), partition)

    def _configure_logging(self) -> None:
        settings = self.options.settings
        configure_logging(settings.log_level, settings.log_format)

    def log_summary(self, messages: Sequence[Written | None], label: str = "") -> None:
        """Logs one line about a whole batch."""
        self._configure_logging()
        done = [message for message in messages if message is not None]
        seconds = max((m.ended for m in done), default=0.0) - min((m.began for m in done), default=0.0)
        counts = _counts(messages)
        topic, operation = self.columns.topic, self.options.operation
        verb, *words = _WORDS.get(operation, (operation, "done", "without effect"))
        label = f"{verb} {label}".strip()
        logger.info(
            "%s to %s: %d rows, %d %s, %d %s, %d bad, %.1f s",
            *(label, topic or "several topics", counts["rows"], counts["sent"], words[0]),
            *(counts["duplicates"], words[1], counts["bad"], seconds),
            extra=event("rows_written", topic=topic, label=label, seconds=round(seconds, 3), **counts),
        )

    def remember(self, messages: Sequence[Written | None], batch: int) -> None:
        """Stores the counts of a micro-batch for listeners, and forgets a batch that Spark has forgotten, too."""
        query = next((message.query for message in messages if message and message.query), None)
        if not query or not self.options.topic:
            return
        memory = Memory(self.options)
        try:
            with Connection.of(self.options.settings, name="lisa-spark") as connection:
                memory.end_batch(connection, query, batch, _counts(messages), partitions=len(messages))
        except LisaError as error:
            # The rows are written; a repeated batch would add nothing to them.
            text = "counts of batch %d are not stored: %s"
            logger.warning(text, batch, error, extra=event("counts_not_stored", error=str(error)))

    def undo(self, messages: Sequence[Written | None], label: str) -> None:
        """Removes the files of successful tasks. Their messages stay; with ids, a new try sends only the others."""
        self._configure_logging()
        for message in messages:
            # A task that is remembered does not write its file again.
            if message and not self.options.remember_days:
                for file in filter(None, (message.bad_file, message.outcome_file)):
                    remove_file(file)
        done = sum(1 for message in messages if message)
        text = "%s failed: rows of %d tasks were sent"
        logger.warning(text, label, done, extra=event("write_failed", label=label, count=done))


class _Rate:
    """The part of a job's rate that one task uses."""

    def __init__(self, options: WriteOptions, job: str, rate: float) -> None:
        self._patience_s = options.settings.patience_s
        self._keys = ShardKeys(options.settings.prefix, options.topic or "")
        self._connection = Connection.of(options.settings, name="lisa-spark")
        self._job = job
        self._rate = rate

    def wait(self, count: int) -> None:
        """Waits until so many rows may be sent."""
        call = jobs.reserve(self._keys, self._job, rate=self._rate, count=count)
        time.sleep(self._connection.call(call, patience_s=self._patience_s) / 1000)


def _counts(messages: Sequence[Written | None]) -> dict[str, int]:
    done = [message for message in messages if message is not None]
    return {name: sum(getattr(m, name) for m in done) for name in ("rows", "sent", "duplicates", "bad")}


def _line(outcome: Outcome) -> bytes:
    return json.dumps({name: value for name, value in outcome._asdict().items() if value is not None}).encode()


class BatchWriter(DataSourceArrowWriter):
    """Writes a frame."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Writes the rows of one partition."""
        return self._sink.write(iterator)

    def commit(self, messages: Sequence[Written | None]) -> None:  # type: ignore[override]
        """Logs the result, as all partitions are written."""
        self._sink.log_summary(messages)

    def abort(self, messages: Sequence[Written | None]) -> None:  # type: ignore[override]
        """Cleans up, as a partition has failed for good."""
        self._sink.undo(messages, "write")


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Writes the rows of one partition of a micro-batch."""
        return self._sink.write(iterator)

    def commit(self, messages: Sequence[Written | None], batchId: int) -> None:  # type: ignore[override]  # noqa: N803
        """Logs the result, as all partitions of the micro-batch are written."""
        self._sink.log_summary(messages, f"batch {batchId}")
        self._sink.remember(messages, batchId)

    def abort(self, messages: Sequence[Written | None], batchId: int) -> None:  # type: ignore[override]  # noqa: N803
        """Cleans up, as a partition of the micro-batch has failed for good."""
        self._sink.undo(messages, f"batch {batchId}")
