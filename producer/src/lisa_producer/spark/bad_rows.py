"""Rows that cannot be sent: they fail their task, or go to a topic or a directory."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from lisa_common.errors import InvalidInput, LisaError
from lisa_producer.client import Producer
from lisa_producer.message import Message
from lisa_producer.results import PartialSend
from lisa_producer.spark.line_files import LineFile
from lisa_producer.spark.row_messages import Row
from lisa_producer.spark.values import to_json_value

__all__ = ["BadRow", "BadRowSink", "open_bad_row_sink"]

_LEAST_BYTES = 1_024
"""A cut row is not made smaller than this."""
_MOST_CHARACTERS = 256
"""Of each error of a cut row."""


class BadRow(LisaError):
    """A row that cannot be sent: its place, its id and the reason."""

    def __init__(self, partition: int, row: Row, error: LisaError, more: str = "") -> None:
        super().__init__(f"{row.key} of partition {partition} cannot be sent: {error}{more}")


class BadRowSink:
    """Takes the bad rows of one task. This one fails the task with the first."""

    file: str | None = None
    """The file with the rows, after `close`, if any."""

    def __init__(self, partition: int) -> None:
        self._partition = partition

    def take(self, row: Row, error: LisaError) -> None:
        """Stores a row, or raises LisaError to fail the task."""
        raise BadRow(self._partition, row, error) from error

    def close(self) -> None:
        """Keeps the rows, as the task has succeeded."""

    def discard(self) -> None:
        """Removes the rows where possible, as the task has failed."""


def open_bad_row_sink(place: str | None, producer: Producer, run: str, partition: int) -> BadRowSink:
    """The sink of a partition. A place with a slash is a directory, one without is a topic; None fails the task.

    Names of files and ids of messages contain run and partition, so that a repeated partition adds none.
    """
    if place is None:
        return BadRowSink(partition)
    if "/" not in place:
        return _TopicSink(producer, place, run, partition)
    return _DirectorySink(place, run, partition)


class _TopicSink(BadRowSink):
    """Sends one message for each row. Its id contains run, partition and content, so that a repeated task adds none.

    The rows of a failed task stay sent.
    """

    def __init__(self, producer: Producer, topic: str, run: str, partition: int) -> None:
        super().__init__(partition)
        self._producer = producer
        self._run = run
        self._copies: Counter[str] = Counter()
        self._topic = topic

    def take(self, row: Row, error: LisaError) -> None:
        id, body = self._id(row), _line(row, error)
        refusal, size = self._send(id, body), len(body)
        # A row too large for the topic goes there cut, as large as the topic permits.
        while isinstance(refusal, InvalidInput) and size > _LEAST_BYTES:
            size //= 2
            refusal = self._send(id, _cut_line(row, error, refusal, size))
        if refusal is not None:
            raise BadRow(self._partition, row, error, f"; and {self._topic} refuses it: {refusal}") from refusal

    def _send(self, id: str, body: bytes) -> LisaError | None:
        """Sends a row. Returns the error with which the topic refuses it, None if it has taken it."""
        try:
            self._producer.send_many(self._topic, [Message(body=body, id=id)])
        except PartialSend as failure:
            return failure.report.first_error or failure
        return None

    def _id(self, row: Row) -> str:
        # Without the row's number, as a repeated task may get its rows in another order; and without the error, as
        # some errors contain the date.
        content = f"{self._run}-{self._partition}\n".encode() + _json(row.values)
        id = f"bad-{hashlib.sha256(content).hexdigest()[:32]}"
        self._copies[id] += 1
        return f"{id}-{self._copies[id]}"


class _DirectorySink(BadRowSink):
    """Writes one line of JSON for each row."""

    def __init__(self, place: str, run: str, partition: int) -> None:
        super().__init__(partition)
        self._lines = LineFile(place, f"{run}-{partition:05d}.jsonl")

    def take(self, row: Row, error: LisaError) -> None:
        self._lines.write(_line(row, error))

    def close(self) -> None:
        self._lines.close()
        self.file = self._lines.file

    def discard(self) -> None:
        self._lines.discard()


def _line(row: Row, error: LisaError) -> bytes:
    # The column `error` of a nack must not hide why its row is bad.
    own = {"row_error" if name == "error" else name: value for name, value in row.values.items()}
    return _json({"error": str(error), "row": row.number, **own})


def _cut_line(row: Row, error: LisaError, refusal: LisaError, size: int) -> bytes:
    """A row that the topic refuses, with about `size` bytes of its values."""
    values = _json(row.values)
    named = {name: row.values[name] for name in ("topic", "id") if isinstance(row.values.get(name), str)}
    beginning = values[: max(0, size - _LEAST_BYTES)].decode("utf-8", "ignore")
    errors = {"error": str(error)[:_MOST_CHARACTERS], "refusal": str(refusal)[:_MOST_CHARACTERS]}
    return _json({**errors, "row": row.number, **named, "cut": True, "bytes": len(values), "values": beginning})


def _json(content: Mapping[str, Any]) -> bytes:
    text = json.dumps(content, default=to_json_value, ensure_ascii=False)
    if "NaN" in text or "Infinity" in text:
        # As text, because JSON has no such numbers: readers in other languages would fail.
        text = json.dumps(json.loads(text, parse_constant=str), ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace")
