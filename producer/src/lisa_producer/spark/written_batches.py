"""What the writes of micro-batches have written, kept beside the topic, so that a repeated micro-batch adds nothing.

Spark may run a micro-batch again long after its rows were handled, when their ids are known no longer. A task stores,
for its partition, how many rows it had and a digest of them that does not depend on their order. A task that runs again
reads its rows first: if they have that digest, they have all been written. If Spark has distributed the rows in another
way, they differ, and are written as ever: then the dedup window finds the ids that it knows.

`foreachBatch` may write several times. Writes that differ in what they do have different digests; writes alike are
numbered in their order, which a repeated batch has, too. So each has files, ids and a memory of its own.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO, NamedTuple, TypeVar

import pyarrow as pa
from pyarrow import ipc
from pyspark import TaskContext

from lisa_common.client.connection import Connection
from lisa_common.errors import LisaError
from lisa_common.model.keys import ShardKeys
from lisa_common.protocol import jobs
from lisa_common.protocol.call import Call, Flow
from lisa_producer.spark.columns import Columns
from lisa_producer.spark.options import WriteOptions
from lisa_producer.spark.progress import COUNTS, batch_of
from lisa_producer.spark.row_messages import Row, rows_of

__all__ = ["BatchWrite", "Digest", "WrittenBatches", "current_write", "digest_of_write", "spooled"]

T = TypeVar("T")

_BATCHES = 100
"""As many batches of a query as Spark keeps, by default."""
_DAY_MS = 86_400_000
_DONE = "/done"
"""Ends the owner of a write that has ended."""
_FAILED = "failed"
"""Kept of the owner of a write that has failed. The driver knows only that owner, unless a task has ended."""


class BatchWrite(NamedTuple):
    """One write of a micro-batch."""

    query: str
    batch: int
    digest: str
    """Tells it from the other writes of `foreachBatch`; empty for the sink of a query, which writes once."""
    execution: str
    """The execution of the micro-batch; a repeated micro-batch has another."""
    number: int = 0
    """Among those with this digest, in their order."""
    failed: str = ""
    """The owner of the latest write that failed with this number."""

    @property
    def job(self) -> str:
        """Names what is kept of it, and of those with the same digest."""
        return batch_of(self.query, self.batch, self.digest)

    @property
    def name(self) -> str:
        """Names files and ids of it."""
        return f"{self.query}-{self.batch}" + (f"-{self.digest}.{self.number}" if self.digest else "")

    def part(self, partition: int) -> str:
        """Names a partition of it."""
        return f"{self.number}/{partition}"


def digest_of_write(options: WriteOptions, columns: Columns) -> str:
    """Tells apart the writes of a micro-batch: by the option `write`, else by what they do and to which topic."""
    settings = options.settings
    url = settings.redis_url.get_secret_value().rpartition("@")[2] if settings.redis_url else ""
    same = [options.write] if options.write else [options.operation, options.group, *columns.names]
    text = json.dumps([url, settings.prefix, options.topic, *same])
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def current_write(digest: str) -> BatchWrite | None:
    """The write to which the current task belongs; None outside of micro-batches."""
    context = TaskContext.get()
    query = context and context.getLocalProperty("sql.streaming.queryId")
    batch = context and context.getLocalProperty("streaming.sql.batchId")
    if not context or not query or not batch:
        return None
    names = ("spark.app.id", "spark.sql.execution.root.id")
    execution = "/".join(context.getLocalProperty(name) or "" for name in names)
    return BatchWrite(query, int(batch), digest, execution)


class Digest:
    """The number of rows, and the sum of their hashes."""

    def __init__(self) -> None:
        self.rows = 0
        self._sum = 0

    def add(self, row: Row) -> None:
        """Adds a row."""
        text = repr(list(row.values.items())).encode("utf-8", "backslashreplace")
        self.rows += 1
        self._sum += int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "big")

    def __str__(self) -> str:
        return f"{self.rows} {self._sum % 2**128:032x}"


@dataclass(frozen=True, slots=True)
class WrittenBatches:
    """What is kept of the writes to one topic, or of those whose rows name their topics."""

    options: WriteOptions
    connection: Connection

    def claim(self, write: BatchWrite, owner: str) -> BatchWrite:
        """Numbers a write whose tasks all have the same `owner`; raises LisaError if another one has not ended.

        Claims are never taken back, as a task does not know whether a twin of it has ended the write.
        """
        while True:
            holder = self._run(jobs.claim_part(self._keys, write.job, _claim_of(write), owner, self._kept_ms))
            if holder.removesuffix(_DONE) == owner:
                return write
            if holder.endswith(_DONE):
                write = write._replace(number=write.number + 1, failed="")
            elif self._call(jobs.read_written(self._keys, holder, _FAILED)):
                write = write._replace(failed=holder)
            else:
                raise LisaError(
                    f"a write of batch {write.batch} cannot begin before the one like it has ended; "
                    "give each of them a name by the option write"
                )

    def fail(self, owner: str) -> None:
        """Notes that a write has failed for good, so that another one may have its number."""
        with suppress(LisaError):
            self.connection.run(jobs.keep_written(self._keys, owner, {_FAILED: "1"}, _DAY_MS))

    def read(self, write: BatchWrite, partition: int) -> str | None:
        """The digest of a partition that was written."""
        return self._call(jobs.read_written(self._keys, write.job, write.part(partition)))

    def keep(self, write: BatchWrite, partition: int, digest: Digest) -> None:
        """Remembers a partition."""
        self._keep(write, {write.part(partition): str(digest)})

    def end(self, write: BatchWrite, owner: str, counts: Mapping[str, int]) -> None:
        """Notes that a write has ended, or the counts of a query's sink; forgets a batch that Spark has forgotten."""
        self._keep(write, {_claim_of(write): owner + _DONE} if write.digest else {COUNTS: json.dumps(counts)})
        if write.batch >= _BATCHES:
            self._call(jobs.forget_written(self._keys, write._replace(batch=write.batch - _BATCHES).job))

    def _keep(self, write: BatchWrite, parts: Mapping[str, str]) -> None:
        self._run(jobs.keep_written(self._keys, write.job, parts, self._kept_ms))

    def _run(self, flow: Flow[T]) -> T:
        return self.connection.run(flow, patience_s=self.options.settings.patience_s)

    def _call(self, call: Call[T]) -> T:
        return self.connection.call(call, patience_s=self.options.settings.patience_s)

    @property
    def _kept_ms(self) -> int:
        return int(max(1, self.options.remember_days) * _DAY_MS)

    @property
    def _keys(self) -> ShardKeys:
        return ShardKeys(self.options.settings.prefix, self.options.topic or "")


def _claim_of(write: BatchWrite) -> str:
    return f"{write.execution}/{write.number}/{write.failed}"


def spooled(columns: Columns, batches: Iterator[pa.RecordBatch]) -> tuple[Digest, Iterator[pa.RecordBatch]]:
    """The digest of all rows, which are read once for it, and the rows again, from a temporary file."""
    digest = Digest()
    file: IO[bytes] = TemporaryFile()  # noqa: SIM115 - closed at the end of the iterator
    writer: ipc.RecordBatchFileWriter | None = None
    for batch in batches:
        writer = writer or ipc.new_file(file, batch.schema)
        writer.write_batch(batch)
        for row in rows_of(columns, batch, digest.rows):
            digest.add(row)
    if writer is not None:
        writer.close()
    return digest, _read_again(file, is_empty=writer is None)


def _read_again(file: IO[bytes], *, is_empty: bool) -> Iterator[pa.RecordBatch]:
    with file:
        if not is_empty:
            file.seek(0)
            reader = ipc.open_file(file)
            for at in range(reader.num_record_batches):
                yield reader.get_batch(at)
