"""The data source. Everything here runs on the driver, before any task starts."""

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from lisa_common.errors import InvalidInput
from lisa_producer.spark.options import SnapshotOptions, StreamOptions, WriteOptions
from lisa_producer.spark.rows import MESSAGE_SCHEMA, check_schema
from lisa_producer.spark.snapshot import SnapshotReader
from lisa_producer.spark.stream import GroupReader
from lisa_producer.spark.writer import BatchWriter, Sink, StreamWriter

__all__ = ["LisaDataSource"]


class LisaDataSource(DataSource):
    """Topics of Lisa as tables and streams: `spark.read`, `df.write`, `spark.readStream` and `df.writeStream`.

    Options and columns are checked here; an invalid one raises InvalidInput, which names the valid values.
    """

    @classmethod
    def name(cls) -> str:
        """The name for `format(…)`."""
        return "lisa"

    def schema(self) -> StructType:
        """The columns of reads without a schema."""
        return MESSAGE_SCHEMA

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001 - Spark's signature
        """Writes a frame, in append mode only."""
        if overwrite:
            raise InvalidInput("mode", "overwrite", "append")
        return BatchWriter(self._sink(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: FBT001, N802
        """Writes the micro-batches of a query."""
        if overwrite:
            raise InvalidInput("outputMode", "complete", "append or update")
        return StreamWriter(self._sink(schema))

    def _sink(self, schema: StructType) -> Sink:
        options = WriteOptions.of(self.options)
        return Sink(options, options.columns(schema))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads waiting, retried and dead messages."""
        return SnapshotReader(SnapshotOptions.of(self.options), check_schema(schema))

    def streamReader(self, schema: StructType) -> GroupReader:  # noqa: N802
        """Reads messages that become ready, as a consumer group."""
        return GroupReader(StreamOptions.of(self.options), check_schema(schema))
