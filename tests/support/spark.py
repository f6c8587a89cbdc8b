"""A Spark session for the tests, and one topic that it writes and reads."""

import os
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import redis
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

from lisa_common.model.keys import ShardKeys

__all__ = ["HOUR", "JAVA_OPTIONS", "LONG", "READS_STREAMS", "SparkTopic", "spark_session"]

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""A session of a minute does not get back what it costs to optimize its code. JDK_JAVA_OPTIONS brings them anywhere."""

READS_STREAMS = find_spec("pyspark.sql.streaming.datasource") is not None
"""Whether this PySpark can read streams as we do: 4.2 and later."""

HOUR = 3600.0
"""A delay, in s, that no test waits for."""

LONG = int(os.environ.get("LISA_TEST_LONG") or 1)
"""How many times the usual number of rows."""


@contextmanager
def spark_session(directory: Path, **config: str) -> Iterator[SparkSession]:
    """Spark on two threads, where a task may fail once; its files go into the directory."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2,2]").appName("lisa-tests")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
        "spark.sql.session.timeZone": "America/New_York",
        **config,
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    # Spark keeps the working directory in which it is started.
    with chdir(directory), _stderr_into(directory / "driver.log"):
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@contextmanager
def _stderr_into(path: Path) -> Iterator[None]:
    """Programs started in the block write their standard error into a file."""
    kept = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    yield
    os.dup2(kept, 2)
    os.close(kept)


@dataclass(frozen=True, slots=True)
class SparkTopic:
    """One topic, from Spark and from a plain client."""

    spark: SparkSession
    client: redis.Redis
    url: str
    keys: ShardKeys
    log: Path

    def told(self) -> list[str]:
        """The log lines of the sink for this topic so far, one for each batch."""
        lines = self.log.read_text("utf-8").splitlines()
        return [line for line in lines if f" to {self.keys.topic}: " in line]

    def options(self, **given: Any) -> dict[str, str]:
        """Options that name this topic, and others; None takes one away."""
        ours = {"url": self.url, "prefix": self.keys.prefix, "topic": self.keys.topic}
        return {name: str(value) for name, value in (ours | given).items() if value is not None}

    def write(self, frame: DataFrame, **options: Any) -> None:
        """Writes a frame."""
        frame.write.format("lisa").options(**self.options(**options)).mode("append").save()

    def table(self, **options: Any) -> DataFrame:
        """The topic as it stands."""
        return self.spark.read.format("lisa").options(**self.options(**options)).load()

    def start(self, frame: DataFrame, checkpoint: Path, **options: Any) -> StreamingQuery:
        """Starts writing a stream."""
        writer = frame.writeStream.format("lisa").options(**self.options(**options))
        return writer.option("checkpointLocation", str(checkpoint)).start()

    def stream(self, **options: Any) -> DataStreamReader:
        """The topic as a stream, as the group `spark`."""
        return self.spark.readStream.format("lisa").options(**self.options(group="spark", **options))

    @property
    def waiting(self) -> int:
        """How many messages wait."""
        return int(self.client.zcard(self.keys.of("waiting")))

    @property
    def ready(self) -> int:
        """How many entries the stream has."""
        return int(self.client.xlen(self.keys.of("ready")))
