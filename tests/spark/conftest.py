"""Spark once for all tests, and a topic for each."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from pyspark.sql import SparkSession

from lisa_common.client.embedded.server import free_port
from lisa_common.model.keys import ShardKeys
from support.spark import HOUR, READS_STREAMS, SparkTopic, spark_session
from support.spark_connect import connect_settings


def pytest_configure(config: pytest.Config) -> None:
    """PySpark before 4.2 leaves sockets to the garbage collector."""
    if not READS_STREAMS:
        category = "pytest.PytestUnraisableExceptionWarning"
        config.addinivalue_line("filterwarnings", f"ignore:Exception ignored in. .socket.socket:{category}")


@pytest.fixture(scope="session")
def spark_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of Spark's files and log."""
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="session")
def connect_port() -> int:
    """Where the session serves clients of Spark Connect."""
    return free_port()


@pytest.fixture(scope="session")
def spark(spark_directory: Path, connect_port: int) -> Iterator[SparkSession]:
    """Spark, with the switch for filter push-down: no result may be wrong by it."""
    settings = {"spark.sql.python.filterPushdown.enabled": "true"} | connect_settings(connect_port)
    with spark_session(spark_directory, **settings) as session:
        yield session


@pytest.fixture
def topic(spark: SparkSession, spark_directory: Path, client: redis.Redis, redis_url: str, prefix: str) -> SparkTopic:
    """A topic of the test's own, named like its prefix."""
    return SparkTopic(spark, client, redis_url, ShardKeys(prefix, f"orders-{prefix}"), spark_directory / "driver.log")


@pytest.fixture
def arriving(tmp_path: Path) -> Callable[[int, int], None]:
    """Writes a file for a stream, with the orders from one number to another."""
    folder = tmp_path / "arriving"
    folder.mkdir()

    def put(first: int, last: int) -> None:
        scratch = tmp_path / f"{first}.part"
        scratch.write_text("\n".join(f"order-{number:09d},x,{HOUR}" for number in range(first, last)))
        scratch.rename(folder / f"{first}.csv")

    return put
