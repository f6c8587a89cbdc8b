"""What becomes of rows that cannot be sent: they fail their task, or are set aside."""

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

__all__ = ["Aside", "BadRow", "open_aside", "remove_file"]


class BadRow(LisaError):
    """A row that cannot be sent, by its place and its id, and why."""

    def __init__(self, partition: int, row: Row, error: LisaError) -> None:
        super().__init__(f"{row.key} of partition {partition} cannot be sent: {error}")


class Aside(Protocol):
    """Where one task's bad rows go."""

    file: str | None
    """The file that holds them, once closed, if any."""

    def take(self, row: Row, error: LisaError) -> None:
        """Takes a row, or raises what fails the task."""

    def close(self) -> None:
        """The task has done all its rows: what was taken is to stay."""

    def discard(self) -> None:
        """The task has failed: what was taken is to go, as far as that can be."""


def open_aside(place: str | None, producer: Producer, run: str, partition: int) -> Aside:
    """Where the bad rows of a partition go: nowhere, to a topic, or to a directory, which is what has a slash.

    Run and partition are in the names of files and of messages, so that a partition that is done again adds none.
    """
    if place is None:
        return _Nowhere(partition)
    if "/" not in place:
        return _InTopic(producer, place, run, partition)
    return _InDirectory(place, f"{run}-{partition:05d}.jsonl")


class _Nowhere:
    def __init__(self, partition: int) -> None:
        self._partition = partition
        self.file: str | None = None

    def take(self, row: Row, error: LisaError) -> None:
        raise BadRow(self._partition, row, error) from error

    def close(self) -> None:
        """Nothing was taken."""

    def discard(self) -> None:
        """Nothing was taken."""


class _InTopic:
    """One message for each row. Its id is made of run, partition and content, so that a task done again adds none."""

    def __init__(self, producer: Producer, topic: str, run: str, partition: int) -> None:
        self._producer = producer
        self._run = run
        self._partition = partition
        self._alike: Counter[str] = Counter()
        self._topic = topic
        self.file: str | None = None

    def take(self, row: Row, error: LisaError) -> None:
        try:
            self._producer.send_many(self._topic, [Message(body=_line(row, error), id=self._id(row))])
        except PartialSend as refused:
            # Too large even for that topic, or the server is away: nothing may be dropped.
            raise BadRow(self._partition, row, error) from refused

    def _id(self, row: Row) -> str:
        # Not of its number: a task that is done again may get its rows in another order. Nor of the error, some of
        # which tell the day.
        content = f"{self._run}-{self._partition}\n".encode() + _json(row.values)
        id = f"bad-{hashlib.sha256(content).hexdigest()[:32]}"
        self._alike[id] += 1
        return f"{id}-{self._alike[id]}"

    def close(self) -> None:
        """What was sent is sent."""

    def discard(self) -> None:
        """What was sent is sent; done again, it is not sent twice."""


class _InDirectory:
    """One line of JSON for each row, in a file that appears when the task is done."""

    def __init__(self, place: str, name: str) -> None:
        self._files, directory = _located(place)
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
    """Removes the file of a task whose job failed."""
    files, path = _located(place)
    if files.get_file_info(path).type is not fs.FileType.NotFound:
        files.delete_file(path)


def _located(place: str) -> tuple[fs.FileSystem, str]:
    if "://" in place or place.startswith("file:"):
        files, path = fs.FileSystem.from_uri(place)
        return files, path.rstrip("/")
    return fs.LocalFileSystem(), place.rstrip("/")


def _line(row: Row, error: LisaError) -> bytes:
    return _json({"error": str(error), "row": row.number, **row.values})


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, default=_shown, ensure_ascii=False).encode("utf-8", "backslashreplace")


def _shown(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.isoformat() if isinstance(value, date) else str(value)
