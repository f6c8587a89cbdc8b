"""Rows that cannot be sent: they fail their task, or go to a topic or a directory."""

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any, Protocol

import pyarrow as pa
from pyarrow import fs

from lisa_common.errors import LisaError
from lisa_producer.client import Producer
from lisa_producer.message import Message, PartialSend
from lisa_producer.spark.messages import Row

__all__ = ["BadRow", "BadRowSink", "open_bad_row_sink", "remove_file"]


class BadRow(LisaError):
    """A row that cannot be sent: its place, its id and the reason."""

    def __init__(self, partition: int, row: Row, error: LisaError) -> None:
        super().__init__(f"{row.key} of partition {partition} cannot be sent: {error}")


class BadRowSink(Protocol):
    """Takes the bad rows of one task."""

    file: str | None
    """The file with the rows, after `close`, if any."""

    def take(self, row: Row, error: LisaError) -> None:
        """Stores a row, or raises LisaError to fail the task."""

    def close(self) -> None:
        """Keeps the rows, as the task has succeeded."""

    def discard(self) -> None:
        """Removes the rows where possible, as the task has failed."""


def open_bad_row_sink(place: str | None, producer: Producer, run: str, partition: int) -> BadRowSink:
    """The sink of a partition. A place with a slash is a directory, one without is a topic; None fails the task.

    Names of files and ids of messages contain run and partition, so that a repeated partition adds none.
    """
    if place is None:
        return _FailTask(partition)
    if "/" not in place:
        return _TopicSink(producer, place, run, partition)
    return _DirectorySink(place, f"{run}-{partition:05d}.jsonl")


class _FailTask:
    def __init__(self, partition: int) -> None:
        self._partition = partition
        self.file: str | None = None

    def take(self, row: Row, error: LisaError) -> None:
        raise BadRow(self._partition, row, error) from error

    def close(self) -> None:
        """Does nothing."""

    def discard(self) -> None:
        """Does nothing."""


class _TopicSink:
    """Sends one message for each row. Its id contains run, partition and content, so that a repeated task adds none."""

    def __init__(self, producer: Producer, topic: str, run: str, partition: int) -> None:
        self._producer = producer
        self._run = run
        self._partition = partition
        self._copies: Counter[str] = Counter()
        self._topic = topic
        self.file: str | None = None

    def take(self, row: Row, error: LisaError) -> None:
        try:
            self._producer.send_many(self._topic, [Message(body=_line(row, error), id=self._id(row))])
        except PartialSend as failure:
            # Too large even for that topic, or the server is unreachable: no row may be dropped.
            raise BadRow(self._partition, row, error) from failure

    def _id(self, row: Row) -> str:
        # Without the row's number, as a repeated task may get its rows in another order; and without the error, as
        # some errors contain the date.
        content = f"{self._run}-{self._partition}\n".encode() + _json(row.values)
        id = f"bad-{hashlib.sha256(content).hexdigest()[:32]}"
        self._copies[id] += 1
        return f"{id}-{self._copies[id]}"

    def close(self) -> None:
        """Does nothing, as the rows are sent."""

    def discard(self) -> None:
        """Does nothing: the rows stay sent, and a repeated task does not send them twice."""


class _DirectorySink:
    """Writes one line of JSON for each row, to a file that appears when the task succeeds."""

    def __init__(self, place: str, name: str) -> None:
        self._files, directory = _locate(place)
        self._directory = directory
        self._path = f"{directory}/{name}"
        self._scratch = f"{directory}/_{name}.{id(self):x}"
        self._place = f"{place.rstrip('/')}/{name}"
        self._open: pa.NativeFile | None = None
        self.file: str | None = None

    def take(self, row: Row, error: LisaError) -> None:
        if self._open is None:
            self._files.create_dir(self._directory, recursive=True)
            self._open = self._files.open_output_stream(self._scratch)
        self._open.write(_line(row, error) + b"\n")

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._files.move(self._scratch, self._path)
            self.file = self._place

    def discard(self) -> None:
        if self._open is not None:
            self._open.close()
            self._files.delete_file(self._scratch)


def remove_file(place: str) -> None:
    """Removes the file of a task, as its job has failed."""
    files, path = _locate(place)
    if files.get_file_info(path).type is not fs.FileType.NotFound:
        files.delete_file(path)


def _locate(place: str) -> tuple[fs.FileSystem, str]:
    if "://" in place or place.startswith("file:"):
        files, path = fs.FileSystem.from_uri(place)
        return files, path.rstrip("/")
    return fs.LocalFileSystem(), place.rstrip("/")


def _line(row: Row, error: LisaError) -> bytes:
    return _json({"error": str(error), "row": row.number, **row.values})


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, default=_to_json, ensure_ascii=False).encode("utf-8", "backslashreplace")


def _to_json(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.isoformat() if isinstance(value, date) else str(value)
