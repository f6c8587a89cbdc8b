"""The sink: one producer for each task, and one line in the driver's log for each batch."""

import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from lisa_common.client.connection import Connection
from lisa_common.errors import InvalidInput, LisaError
from lisa_common.logs import configure_logging, event
from lisa_common.model.keys import ShardKeys
from lisa_common.protocol import jobs
from lisa_producer.client import Producer
from lisa_producer.spark.bad_rows import BadRowSink, open_bad_row_sink
from lisa_producer.spark.columns import Columns
from lisa_producer.spark.line_files import LineFile, remove_file
from lisa_producer.spark.operations import open_target
from lisa_producer.spark.options import WriteOptions
from lisa_producer.spark.row_messages import rows_of
from lisa_producer.spark.row_targets import Counts, Hooks, Outcome, RowTarget
from lisa_producer.spark.written_batches import BatchWrite, Digest, WrittenBatches, current_write, spooled

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
    write: BatchWrite | None = None


@dataclass(frozen=True, slots=True)
class Sink:
    """Writes for batches and streams. Spark pickles it for the tasks, so that it has no connection."""

    options: WriteOptions
    columns: Columns
    digest: str = ""
    """Tells a write of `foreachBatch` from the others of its micro-batch; empty for the sink of a query."""
    run: str = field(default_factory=lambda: uuid4().hex)

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """Writes one task's rows; raises LisaError for an invalid row, or if the server stays unreachable."""
        try:
            return self._write_task(batches)
        except LisaError as error:
            # Spark shows the traceback of the error and of its causes: this line is enough.
            raise error.with_traceback(None) from None

    def _write_task(self, batches: Iterator[pa.RecordBatch]) -> Written:
        context, options, write = TaskContext.get(), self.options, current_write(self.digest)
        partition = context.partitionId() if context else 0
        if write is None and options.remember_days:
            needed = "given for micro-batches: of a query, or in the thread that runs foreachBatch"
            raise InvalidInput("option rememberDays", options.remember_days, needed)
        if write is None or not self._is_kept:
            return self._write(batches, partition, write, None)
        with Connection.of(options.settings, name="lisa-spark") as connection:
            kept = WrittenBatches(options, connection)
            write = kept.claim(write, self.run) if self.digest else write
            return self._write_once(kept, batches, partition, write)

    @property
    def _is_kept(self) -> bool:
        """Whether tasks keep what they write, or need names that no other write of their micro-batch has."""
        options = self.options
        return bool(options.remember_days or (self.digest and (options.bad_rows or options.outcomes)))

    def _write_once(
        self, kept: WrittenBatches, batches: Iterator[pa.RecordBatch], partition: int, write: BatchWrite
    ) -> Written:
        """Writes the rows unless they are remembered."""
        if not self.options.remember_days:
            return self._write(batches, partition, write, None)
        began = time.time()
        known = kept.read(write, partition)
        if known is not None:
            read, batches = spooled(self.columns, batches)
            if str(read) == known:
                return Written(read.rows, 0, read.rows, 0, began, time.time(), write=write)
        digest = Digest()
        written = self._write(batches, partition, write, digest)
        kept.keep(write, partition, digest)
        return written

    def _write(
        self, batches: Iterator[pa.RecordBatch], partition: int, write: BatchWrite | None, digest: Digest | None
    ) -> Written:
        began, run = time.time(), write.name if write else self.run
        outcomes = LineFile(self.options.outcomes, f"{run}-{partition:05d}.jsonl") if self.options.outcomes else None
        options = self.options
        with (
            Producer(settings=options.settings, confirm=options.confirm) as producer,
            Connection.of(options.settings, name="lisa-spark") as connection,
        ):
            bad_rows = open_bad_row_sink(options.bad_rows, producer, run, partition)
            hooks = self._hooks(bad_rows, outcomes, run, connection)
            target = open_target(producer, connection, options, self.columns, hooks)
            try:
                rows = self._load(target, batches, digest, outcomes)
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
            write=write,
        )

    def _hooks(self, bad_rows: BadRowSink, outcomes: LineFile | None, run: str, connection: Connection) -> Hooks:
        hooks = Hooks(bad_rows.take)
        if outcomes:
            hooks.on_outcome = lambda outcome: outcomes.write(_line(outcome))
        if rate := self.options.max_rows_per_second:
            hooks.before = _waiting(self.options, connection, run, rate)
            hooks.most_rows = max(1, min(self.options.settings.batch_messages, int(rate / _STEPS)))
        return hooks

    def _load(
        self, target: RowTarget, batches: Iterator[pa.RecordBatch], digest: Digest | None, outcomes: LineFile | None
    ) -> int:
        number = 0
        for batch in batches:
            if outcomes:
                # Where it cannot be written, the task fails before its rows have any effect.
                outcomes.open()
            size = batch.nbytes // max(1, batch.num_rows)
            for row in rows_of(self.columns, batch, number):
                if digest:
                    digest.add(row)
                target.add(row, size)
            number += batch.num_rows
        target.flush()
        return number

    def _configure_logging(self) -> None:
        settings = self.options.settings
        configure_logging(settings.log_level, settings.log_format)

    def _log_summary(self, messages: Sequence[Written | None], label: str) -> None:
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

    def end(self, messages: Sequence[Written | None], label: str = "") -> None:
        """Logs one line about a whole batch, and notes that a write of a micro-batch has ended.

        For listeners, it keeps the counts of a query's sink.
        """
        self._log_summary(messages, label)
        write = next((message.write for message in messages if message and message.write), None)
        if write is None or not (self._is_kept or (self.options.topic and not self.digest)):
            return
        try:
            with Connection.of(self.options.settings, name="lisa-spark") as connection:
                WrittenBatches(self.options, connection).end(write, self.run, _counts(messages))
        except LisaError as error:
            # The rows are written; a repeated batch would add nothing to them.
            text = "the end of batch %d is not stored: %s"
            logger.warning(text, write.batch, error, extra=event("end_not_stored", error=str(error)))

    def undo(self, messages: Sequence[Written | None], label: str) -> None:
        """Removes the files of successful tasks. Their messages stay; with ids, a new try sends only the others."""
        self._configure_logging()
        if self.digest and self._is_kept:
            with Connection.of(self.options.settings, name="lisa-spark") as connection:
                WrittenBatches(self.options, connection).fail(self.run)
        for message in messages:
            # A task that is remembered does not write its file again.
            if message and not self.options.remember_days:
                for file in filter(None, (message.bad_file, message.outcome_file)):
                    remove_file(file)
        done = sum(1 for message in messages if message)
        text = "%s failed: rows of %d tasks were sent"
        logger.warning(text, label, done, extra=event("write_failed", label=label, count=done))


def _waiting(options: WriteOptions, connection: Connection, job: str, rate: float) -> Callable[[int], None]:
    """Returns a function that waits until the rate of a job lets one of its tasks send so many rows."""
    keys, patience_s = ShardKeys(options.settings.prefix, options.topic or ""), options.settings.patience_s

    def wait(count: int) -> None:
        call = jobs.reserve(keys, job, rate=rate, count=count)
        time.sleep(connection.call(call, patience_s=patience_s) / 1000)

    return wait


def _counts(messages: Sequence[Written | None]) -> dict[str, int]:
    done = [message for message in messages if message is not None]
    return {name: sum(getattr(m, name) for m in done) for name in ("rows", "sent", "duplicates", "bad")}


def _line(outcome: Outcome) -> bytes:
    return json.dumps({name: value for name, value in outcome._asdict().items() if value is not None}).encode()


class _Writer:
    """Writes partitions; what batches and micro-batches have in common."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Writes the rows of one partition."""
        return self._sink.write(iterator)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """Writes a frame."""

    def commit(self, messages: Sequence[Written | None]) -> None:  # type: ignore[override]
        """Notes and logs the result, as all partitions are written."""
        self._sink.end(messages)

    def abort(self, messages: Sequence[Written | None]) -> None:  # type: ignore[override]
        """Cleans up, as a partition has failed for good."""
        self._sink.undo(messages, "write")


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query."""

    def commit(self, messages: Sequence[Written | None], batchId: int) -> None:  # type: ignore[override]  # noqa: N803
        """Notes and logs the result, as all partitions of the micro-batch are written."""
        self._sink.end(messages, f"batch {batchId}")

    def abort(self, messages: Sequence[Written | None], batchId: int) -> None:  # type: ignore[override]  # noqa: N803
        """Cleans up, as a partition of the micro-batch has failed for good."""
        self._sink.undo(messages, f"batch {batchId}")
