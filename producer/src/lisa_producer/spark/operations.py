"""What is done with the rows of one task: they are sent, or change messages that exist."""

from lisa_common.client.connection import Connection
from lisa_common.errors import InvalidInput
from lisa_producer.bulk_sender import BulkSender
from lisa_producer.client import Producer
from lisa_producer.results import SendResult
from lisa_producer.spark.changes import Changes
from lisa_producer.spark.columns import Columns
from lisa_producer.spark.options import WriteOptions
from lisa_producer.spark.row_messages import Row, message_of
from lisa_producer.spark.row_targets import Counts, Hooks, Outcome, RowTarget

__all__ = ["open_target"]


def open_target(
    producer: Producer, connection: Connection, options: WriteOptions, columns: Columns, hooks: Hooks
) -> RowTarget:
    """The target of a task's rows."""
    if options.operation == "send":
        return _Send(producer, columns, hooks)
    return Changes(producer, connection, options, columns, hooks)


class _Send:
    def __init__(self, producer: Producer, columns: Columns, hooks: Hooks) -> None:
        self.counts = Counts()
        self._columns = columns
        self._hooks = hooks
        on_result = self._report if hooks.on_outcome else None
        self._sender: BulkSender[Row] = BulkSender(
            producer, hooks.on_bad, on_result=on_result, before=hooks.before, most_messages=hooks.most_rows
        )

    def add(self, row: Row, size: int) -> None:
        try:
            topic, message = message_of(row, self._columns)
        except InvalidInput as error:
            self._sender.refuse(row, error)
        else:
            self._sender.add(row, topic, message, size)

    def flush(self) -> None:
        self._sender.flush()
        report = self._sender.report
        self.counts = Counts(report.sent, report.duplicates, report.failed)

    def _report(self, topic: str, result: SendResult) -> None:
        if self._hooks.on_outcome:
            self._hooks.on_outcome(Outcome(topic, result.id, result.outcome.value, result.due_ms))
