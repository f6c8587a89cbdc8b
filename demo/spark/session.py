"""A Spark session for the demo: two threads on this machine, no output, ended with the block."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

__all__ = ["spark_session"]

_END_S = 10.0

_JAVA_OPTIONS = (
    # Else half of the start-up on two cores goes into optimized code, which does not pay in a job of a minute.
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
)


@contextmanager
def spark_session(scratch: Path) -> Iterator[SparkSession]:
    """A session that keeps its files in a directory. Its Java ends with the block."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    (scratch / "tmp").mkdir(parents=True)
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": " ".join((*_JAVA_OPTIONS, f"-Djava.io.tmpdir={scratch / 'tmp'}")),
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        # A day has a thousand rows: optimizing and compiling a query takes longer than running it.
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        # Keep the progress of all batches: their rows are summed up at the end.
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
    }
    builder = SparkSession.builder.master("local[2]").appName("lisa-demo")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    gateway = session.sparkContext._gateway  # noqa: SLF001 - PySpark has no other way to the process
    try:
        yield session
    finally:
        session.stop()
        if gateway is not None:
            gateway.shutdown()
            # Java ends with its input.
            gateway.proc.stdin.close()
            gateway.proc.wait(_END_S)
