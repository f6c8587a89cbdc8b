"""The sink: one producer for each task, and one line in the driver's log for each batch."""

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from lisa_common.errors import InvalidInput
from lisa_common.logs import configure_logging, event
from lisa_producer.bulk import BulkSender
from lisa_producer.client import Producer
from lisa_producer.message import PartialSend
from lisa_producer.spark.bad_rows import open_bad_row_sink, remove_file
from lisa_producer.spark.columns import Columns
from lisa_producer.spark.messages import Row, message_of, rows_of
from lisa_producer.spark.options import WriteOptions

__all__ = ["BatchWriter", "Sink", "StreamWriter", "Written"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """Counts of one task's rows; start and end in seconds since the epoch."""

    rows: int
    sent: int
    duplicates: int
    bad: int
    began: float
    ended: float
    bad_file: str | None = None


@dataclass(frozen=True, slots=True)
class Sink:
    """Writes for batches and streams. Spark pickles it for the tasks, so that it has no connection."""

    options: WriteOptions
    columns: Columns
    run: str = field(default_factory=lambda: uuid4().hex)

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """Sends one task's rows; raises LisaError for an invalid row, or if the server stays unreachable."""
        began, partition, run = time.time(), *self._place()
        with Producer(settings=self.options.settings, confirm=self.options.confirm) as producer:
            bad_rows = open_bad_row_sink(self.options.bad_rows, producer, run, partition)
            sender: BulkSender[Row] = BulkSender(producer, bad_rows.take)
            try:
                rows = self._load(sender, batches)
            except BaseException:
                bad_rows.discard()
                raise
            bad_rows.close()
        report = sender.report
        return Written(rows, report.sent, report.duplicates, report.failed, began, time.time(), bad_rows.file)

    def _load(self, sender: BulkSender[Row], batches: Iterator[pa.RecordBatch]) -> int:
        number = 0
        try:
            for batch in batches:
                size = batch.nbytes // max(1, batch.num_rows)
                for row in rows_of(self.columns, batch, number):
                    self._add(sender, row, size)
                number += batch.num_rows
            sender.flush()
        except PartialSend as error:
            # The task's counts are lost with it; only the cause matters.
            raise error.__cause__ or error from None
        return number

    def _add(self, sender: BulkSender[Row], row: Row, size: int) -> None:
        try:
            topic, message = message_of(row, self.columns.topic)
        except InvalidInput as error:
            sender.refuse(row, error)
        else:
            sender.add(row, topic, message, size)

    def _place(self) -> tuple[int, str]:
        """The partition, and a name of the run that stays the same when it is repeated."""
        context = TaskContext.get()
        if context is None:
            return 0, self.run
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        return context.partitionId(), f"{query}-{batch}" if query and batch else self.run

    def _configure_logging(self) -> None:
        settings = self.options.settings
        configure_logging(settings.log_level, settings.log_format)

    def log_summary(self, messages: Sequence[Written | None], label: str) -> None:
        """Logs one line about a whole batch."""
        self._configure_logging()
        done = [message for message in messages if message is not None]
        seconds = max((m.ended for m in done), default=0.0) - min((m.began for m in done), default=0.0)
        counts = {name: sum(getattr(m, name) for m in done) for name in ("rows", "sent", "duplicates", "bad")}
        topic = self.columns.topic
        logger.info(
            "%s to %s: %d rows, %d sent, %d duplicates, %d bad, %.1f s",
            *(label, topic or "several topics", *counts.values(), seconds),
            extra=event("rows_written", topic=topic, label=label, seconds=round(seconds, 3), **counts),
        )

    def undo(self, messages: Sequence[Written | None], label: str) -> None:
        """Removes the files of successful tasks. Their messages stay; with ids, a new try sends only the others."""
        self._configure_logging()
        for message in messages:
            if message and message.bad_file:
                remove_file(message.bad_file)
        done = sum(1 for message in messages if message)
        text = "%s failed: rows of %d tasks were sent"
        logger.warning(text, label, done, extra=event("write_failed", label=label, count=done))


class BatchWriter(DataSourceArrowWriter):
    """Writes a frame."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Sends the rows of one partition."""
        return self._sink.write(iterator)

    def commit(self, messages: Sequence[Written | None]) -> None:  # type: ignore[override]
        """Logs the result, as all partitions are sent."""
        self._sink.log_summary(messages, "wrote")

    def abort(self, messages: Sequence[Written | None]) -> None:  # type: ignore[override]
        """Cleans up, as a partition has failed for good."""
        self._sink.undo(messages, "write")


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Sends the rows of one partition of a micro-batch."""
        return self._sink.write(iterator)

    def commit(self, messages: Sequence[Written | None], batchId: int) -> None:  # type: ignore[override]  # noqa: N803
        """Logs the result, as all partitions of the micro-batch are sent."""
        self._sink.log_summary(messages, f"wrote batch {batchId}")

    def abort(self, messages: Sequence[Written | None], batchId: int) -> None:  # type: ignore[override]  # noqa: N803
        """Cleans up, as a partition of the micro-batch has failed for good."""
        self._sink.undo(messages, f"batch {batchId}")
