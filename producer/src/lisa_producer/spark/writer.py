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
from lisa_common.logs import configure_logging
from lisa_producer.bulk import BulkSender
from lisa_producer.client import Producer
from lisa_producer.message import PartialSend
from lisa_producer.spark.bad_rows import open_aside, remove_file
from lisa_producer.spark.columns import Columns
from lisa_producer.spark.messages import Row, message_of, rows_of
from lisa_producer.spark.options import WriteOptions

__all__ = ["BatchWriter", "Sink", "StreamWriter", "Written"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What one task did: rows that it read, and what became of them; when, in seconds since the epoch."""

    rows: int
    sent: int
    duplicates: int
    bad: int
    began: float
    ended: float
    bad_file: str | None = None


@dataclass(frozen=True, slots=True)
class Sink:
    """What the writers of batches and of streams share. It travels to the tasks, and holds no connection."""

    options: WriteOptions
    columns: Columns
    run: str = field(default_factory=lambda: uuid4().hex)

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """Sends one task's rows; raises LisaError when any of them could not be, or the server is away for too long."""
        began, partition, run = time.time(), *self._place()
        with Producer(settings=self.options.settings, confirm=self.options.confirm) as producer:
            aside = open_aside(self.options.bad_rows, producer, run, partition)
            sender: BulkSender[Row] = BulkSender(producer, aside.take)
            try:
                rows = self._load(sender, batches)
            except BaseException:
                aside.discard()
                raise
            aside.close()
        report = sender.report
        return Written(rows, report.sent, report.duplicates, report.failed, began, time.time(), aside.file)

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
            # Of this task nothing counts; what stopped it is what there is to say.
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
        """The partition, and a name for the run that is the same when it is done again."""
        context = TaskContext.get()
        if context is None:
            return 0, self.run
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        return context.partitionId(), f"{query}-{batch}" if query and batch else self.run

    def tell(self, messages: Sequence[Written | None], what: str) -> None:
        """One line on what a whole batch did."""
        configure_logging(self.options.settings.log_level)
        done = [message for message in messages if message is not None]
        seconds = max((m.ended for m in done), default=0.0) - min((m.began for m in done), default=0.0)
        logger.info(
            "%s to %s: %d rows, %d sent, %d duplicates, %d bad, %.1f s",
            what,
            self.columns.topic or "the topics that they name",
            *(sum(getattr(m, name) for m in done) for name in ("rows", "sent", "duplicates", "bad")),
            seconds,
        )

    def undo(self, messages: Sequence[Written | None], what: str) -> None:
        """Removes what files the tasks that succeeded left. Messages stay: with ids, a new try adds only the others."""
        configure_logging(self.options.settings.log_level)
        for message in messages:
            if message and message.bad_file:
                remove_file(message.bad_file)
        done = sum(1 for message in messages if message)
        logger.warning("%s failed; the rows of %d of its tasks are sent", what, done)


class BatchWriter(DataSourceArrowWriter):
    """Writes a frame."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Sends the rows of one partition."""
        return self._sink.write(iterator)

    def commit(self, messages: Sequence[Written | None]) -> None:  # type: ignore[override]
        """All partitions are sent."""
        self._sink.tell(messages, "wrote")

    def abort(self, messages: Sequence[Written | None]) -> None:  # type: ignore[override]
        """Some partition failed for good."""
        self._sink.undo(messages, "the write")


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Sends the rows of one partition of a micro-batch."""
        return self._sink.write(iterator)

    def commit(self, messages: Sequence[Written | None], batchId: int) -> None:  # type: ignore[override]  # noqa: N803
        """All partitions of the micro-batch are sent."""
        self._sink.tell(messages, f"wrote batch {batchId}")

    def abort(self, messages: Sequence[Written | None], batchId: int) -> None:  # type: ignore[override]  # noqa: N803
        """Some partition of the micro-batch failed for good."""
        self._sink.undo(messages, f"batch {batchId}")
