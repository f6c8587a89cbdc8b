"""The data source. Everything here runs on the driver, before any task starts."""

import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructField, StructType

from lisa_common.client.address import masked
from lisa_common.errors import InvalidInput, LisaError
from lisa_common.logs import configure_logging, event
from lisa_producer.spark.options import SnapshotOptions, StreamOptions, WriteOptions
from lisa_producer.spark.rows import MESSAGE_SCHEMA, check_schema
from lisa_producer.spark.snapshot import SnapshotReader
from lisa_producer.spark.writer import BatchWriter, Sink, StreamWriter
from lisa_producer.spark.written_batches import digest_of_write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LisaDataSource", "register"]

logger = logging.getLogger(__name__)

_CONF = "spark.lisa."
"""Begins the names of options in the configuration of a session."""
_KEPT = "lisa"
"""Names the options of a table in its schema."""
_PLAIN_URL, _SECRET_URL = _CONF + "url", _CONF + "secret.url"
"""Spark hides values of names that contain `secret` among those of spark-defaults.conf."""
_hidden: dict[str, str] = {}
"""The URL that was taken out of a session, by application, for further calls of `register`."""
_TARGET = {"url", "prefix", "topic"}
"""Options that name a target: who gives one means no table's."""


class LisaDataSource(DataSource):
    """Topics of Lisa as tables and streams: `spark.read`, `df.write`, `spark.readStream` and `df.writeStream`.

    Options and columns are checked here; an invalid one raises InvalidInput, which names the valid values.
    """

    defaults: ClassVar[dict[str, str]] = {}
    """Options of the session, by their names in lower case."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(…)`."""
        return "lisa"

    def schema(self) -> StructType:
        """The columns of reads without a schema.

        Spark does not pass the options of a SQL table on to its reads and writes, but keeps its schema. So the schema
        carries them, beside the column `topic`, except the URL.
        """
        kept = {name.lower(): text for name, text in self.options.items() if name.lower() != "url"}
        first, *others = MESSAGE_SCHEMA.fields
        # Only tables have a provider: a frame that is read must not carry its options to where it is written.
        metadata = {_KEPT: json.dumps(kept)} if "topic" in kept and "provider" in kept else {}
        return StructType([StructField(first.name, first.dataType, metadata=metadata), *others])

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001 - Spark's signature
        """Writes a frame, in append mode only."""
        if overwrite:
            raise InvalidInput("mode", "overwrite", "append")
        sink = self._sink(schema)
        return BatchWriter(replace(sink, digest=digest_of_write(sink.options, sink.columns)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: FBT001, N802
        """Writes the micro-batches of a query."""
        if overwrite:
            raise InvalidInput("outputMode", "complete", "append")
        return StreamWriter(self._sink(schema))

    def _sink(self, schema: StructType) -> Sink:
        options = WriteOptions.of(self._given(schema, WriteOptions.names()))
        return Sink(options, options.columns(schema))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads waiting, retried and dead messages."""
        return SnapshotReader(SnapshotOptions.of(self._given(schema, SnapshotOptions.names())), check_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Reads messages that become ready, as a consumer group. Needs PySpark 4.2."""
        try:
            # Imported here, as other uses need only PySpark 4.1.
            from lisa_producer.spark.stream import GroupReader  # noqa: PLC0415
        except ImportError as error:
            raise LisaError(f"reading a stream needs PySpark 4.2 or later: {error}") from error
        return GroupReader(StreamOptions.of(self._given(schema, StreamOptions.names())), check_schema(schema))

    def _given(self, schema: StructType, known: set[str]) -> dict[str, str]:
        given = {name.lower(): text for name, text in self.options.items()}
        if not given.keys() & _TARGET:
            of_table = next((field.metadata[_KEPT] for field in schema.fields if _KEPT in (field.metadata or {})), "{}")
            given = {name: text for name, text in json.loads(of_table).items() if name in known} | given
        return self.defaults | given


def register(spark: "SparkSession", url: str | None = None) -> None:
    """Registers the source for a session, with a URL and the options `spark.lisa.prefix`, `.timeout` and `.patience`.

    Without `url` it is that of `spark.lisa.secret.url` or `spark.lisa.url`. Spark shows it neither in plans nor in SQL.
    A session that looked for sources before Lisa was installed finds it only so.
    """
    given = {name: spark.conf.get(_CONF + name, None) for name in SnapshotOptions.settings_of}
    # Also where `url` is given: a password does not stay in the session.
    kept = _url_of(spark)
    given["url"] = url or kept
    defaults = {name: text for name, text in given.items() if text is not None}
    # A class of its own: Spark pickles it by value, with its defaults.
    source = type("SessionLisaDataSource", (LisaDataSource,), {"defaults": defaults, "__module__": "__main__"})
    spark.dataSource.register(source)


def _url_of(spark: "SparkSession") -> str | None:
    """The URL of a session. One with a password is taken out: Spark logs all of a session's options with each job."""
    app, found = str(spark.conf.get("spark.app.id", "")), None
    for name in (_PLAIN_URL, _SECRET_URL):
        url = spark.conf.get(name, None)
        found = url or found
        if url and masked(url) != url:
            spark.conf.unset(name)
            _hidden[app] = url
            if name == _PLAIN_URL:
                configure_logging("warning", "text")
                text = "%s has a password, which Spark may show; use %s in spark-defaults.conf, or register(spark, url)"
                logger.warning(text, name, _SECRET_URL, extra=event("password_shown", label=name))
    return found or _hidden.get(app)
