"""What a streaming query has written, kept beside the topic, so that a repeated micro-batch adds nothing.

Spark may run a micro-batch again long after its rows were handled, when their ids are known no longer. A task stores,
for its partition of the batch, how many rows it had and a digest of them that does not depend on their order. A task
that runs again reads its rows first: if they have that digest, they have all been written. If Spark has distributed the
rows in another way, they differ, and are written as ever: then the dedup window finds the ids that it knows.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO, NamedTuple

import pyarrow as pa
from pyarrow import ipc

from lisa_common.client.connection import Connection
from lisa_common.model.keys import ShardKeys
from lisa_common.protocol import jobs
from lisa_producer.spark.columns import Columns
from lisa_producer.spark.messages import Row, rows_of
from lisa_producer.spark.options import WriteOptions
from lisa_producer.spark.progress import counts_part

__all__ = ["Digest", "Memory", "Place", "spooled"]

_BATCHES = 100
"""As many batches of a query as Spark keeps, by default."""
_DAY_MS = 86_400_000


class Place(NamedTuple):
    """A partition of a micro-batch of a query."""

    query: str
    batch: int
    partition: int

    @property
    def part(self) -> str:
        """Names it among those of its query."""
        return f"{self.batch}/{self.partition}"


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
class Memory:
    """What the queries of one topic have written."""

    options: WriteOptions

    @property
    def is_on(self) -> bool:
        """Whether anything is remembered."""
        return bool(self.options.remember_days)

    def read(self, connection: Connection, place: Place) -> str | None:
        """The digest of a partition that was written."""
        return connection.call(
            jobs.read_written(self._keys, place.query, place.part), patience_s=self.options.settings.patience_s
        )

    def keep(self, connection: Connection, place: Place, digest: Digest) -> None:
        """Remembers a partition."""
        self._keep(connection, place.query, {place.part: str(digest)}, self.options.remember_days)

    def end_batch(
        self, connection: Connection, query: str, batch: int, counts: Mapping[str, int], *, partitions: int
    ) -> None:
        """Stores the counts of a batch, for a day at least, and forgets a batch that Spark has forgotten, too."""
        parts = {counts_part(batch): json.dumps(counts), _partitions_part(batch): str(partitions)}
        self._keep(connection, query, parts, max(1, self.options.remember_days))
        if batch >= _BATCHES:
            self._forget(connection, query, batch - _BATCHES)

    def _forget(self, connection: Connection, query: str, batch: int) -> None:
        patience_s = self.options.settings.patience_s
        # Batches of one query differ in their partitions.
        count = connection.call(jobs.read_written(self._keys, query, _partitions_part(batch)), patience_s=patience_s)
        written = [Place(query, batch, partition).part for partition in range(int(count or 0))]
        parts = [counts_part(batch), _partitions_part(batch), *written]
        connection.call(jobs.forget_written(self._keys, query, parts), patience_s=patience_s)

    def _keep(self, connection: Connection, query: str, parts: Mapping[str, str], days: float) -> None:
        flow = jobs.keep_written(self._keys, query, parts, int(days * _DAY_MS))
        connection.run(flow, patience_s=self.options.settings.patience_s)

    @property
    def _keys(self) -> ShardKeys:
        return ShardKeys(self.options.settings.prefix, self.options.topic or "")


def _partitions_part(batch: int) -> str:
    return f"{batch}/partitions"


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
