"""A streaming job whose driver, server and topic have one fault after another: each row is one message."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from lisa_common.model.keys import topics_key
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_manager import Admin, ManagerSettings
from lisa_producer import Producer, ProducerSettings
from support import Server, wait_until
from support.spark import JAVA_OPTIONS
from support.waiting import idle

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1200)]

FILES, ROWS = 14, 250
SEED = os.environ.get("LISA_SPARK_SEED", "ci")
LIVES = int(os.environ.get("LISA_SPARK_LIVES", "3"))
"""How often the driver is killed."""

_FAULTS_OF_A_LIFE = 3
_TOPIC = "orders"
_CANCELLED = 20

JOB = """
import sys
from pyspark.sql import SparkSession

url, directory, until = sys.argv[1:]
builder = SparkSession.builder.master("local[2,4]").appName("lisa-chaos")
for name, value in {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.local.dir": f"{directory}/local",
}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
rows = spark.readStream.schema("id string, body string, delay double").option("maxFilesPerTrigger", 1)
writer = rows.csv(f"{directory}/arriving").repartition(2, "id").writeStream.format("lisa")
writer = writer.options(url=url, topic="orders", rememberDays=1, batchMessages=20, patience=60)
writer = writer.option("checkpointLocation", f"{directory}/checkpoint")
query = (writer.trigger(availableNow=True) if until == "end" else writer).start()
query.awaitTermination()
"""


class _Job:
    """A streaming query, one driver after another on the same checkpoint."""

    def __init__(self, url: str, directory: Path) -> None:
        self._url = url
        self._directory = directory
        self._script = directory / "job.py"
        self._script.write_text(JOB)
        self._lives = count(1)
        self._driver: subprocess.Popen[bytes] | None = None
        (directory / "arriving").mkdir()
        for number in range(FILES):
            lines = "\n".join(f"{_id(number, row)},x,3600" for row in range(ROWS))
            file = directory / "arriving" / f"{number:03}.csv"
            file.write_text(lines)
            # Spark takes the oldest first: the first micro-batch is the first file.
            os.utime(file, (number, number))

    @property
    def commits(self) -> Path:
        """The files of finished micro-batches."""
        return self._directory / "checkpoint" / "commits"

    def committed(self) -> int:
        """How many micro-batches have finished, as the checkpoint has it."""
        return sum(file.name.isdigit() for file in self.commits.glob("*"))

    def start(self, until: str = "killed") -> "subprocess.Popen[bytes]":
        """Starts a driver."""
        with (self._directory / f"driver-{next(self._lives)}.log").open("wb") as log:
            command = [sys.executable, str(self._script), self._url, str(self._directory), until]
            pythons = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
            environment = os.environ | pythons | {"JDK_JAVA_OPTIONS": JAVA_OPTIONS}
            self._driver = subprocess.Popen(
                command, env=environment, cwd=self._directory, stdout=log, stderr=log, start_new_session=True
            )
        return self._driver

    def kill(self) -> None:
        """Ends the driver, its JVM and its Python workers, as a lost machine does."""
        if self._driver is not None and self._driver.poll() is None:
            os.killpg(self._driver.pid, signal.SIGKILL)
            self._driver.wait()

    def lose_commit(self) -> None:
        """Deletes what says that the newest micro-batch has finished, and that another has begun.

        So a store loses what was written last: Spark does that micro-batch again.
        """
        newest = self.committed() - 1
        offsets = self.commits.with_name("offsets")
        begun = [int(file.name) for file in offsets.glob("*") if file.name.isdigit()]
        lost = [(self.commits, newest), *((offsets, number) for number in begun if number > newest)]
        for place, number in lost:
            for file in (place / f"{number}", place / f".{number}.crc"):
                file.unlink(missing_ok=True)


def _id(number: int, row: int) -> str:
    return f"{number:03}-{row:03}"


class _Arena:
    """The server, and what operators and callers do meanwhile."""

    def __init__(self, server: Server, dice: random.Random, job: _Job) -> None:
        self._server = server
        self._dice = dice
        self._job = job
        # Then as many former layouts hold messages as there may be.
        self._shards = iter((2, 4, 1))
        self.cancelled: set[str] = set()
        self.faults: list[Callable[[], None]] = [self.freeze, self.fill, self.reshard, self.cancel]

    def freeze(self) -> None:
        """The server hangs."""
        self._server.freeze()
        idle(1.0)
        self._server.thaw()

    def fill(self) -> None:
        """The server is full, and refuses what is sent."""
        with self._server.client() as client:
            client.config_set("maxmemory", 1)
            idle(1.0)
            client.config_set("maxmemory", 0)

    def reshard(self) -> None:
        """An operator spreads new messages over another number of shards."""
        if (shards := next(self._shards, None)) is not None:
            with Admin(settings=ManagerSettings(redis_url=self._server.url)) as admin:
                admin.reshard(_TOPIC, shards)

    def cancel(self) -> None:
        """Callers cancel rows of a micro-batch that has finished."""
        done = wait_until(self._job.committed, 120, what="a micro-batch to finish")
        self._cancel(self._dice.randrange(done))

    def cancel_newest(self) -> None:
        """The same of the newest one, which Spark may do again."""
        self._cancel(self._job.committed() - 1)

    def _cancel(self, number: int) -> None:
        with Producer(settings=ProducerSettings(redis_url=self._server.url)) as producer:
            for row in self._dice.sample(range(ROWS), _CANCELLED):
                if producer.cancel(_TOPIC, _id(number, row)) == "cancelled":
                    self.cancelled.add(_id(number, row))

    def stored(self) -> list[str]:
        """The ids in all shards; one that is in two of them twice."""
        with self._server.client() as client:
            policy: Any = client.hget(topics_key("lisa"), _TOPIC)
            shards = Layout("lisa", _TOPIC, Policy.load(policy)).ever
            return sorted(id.decode() for keys in shards for id in client.hkeys(keys.of("messages")))


def test_each_row_is_one_message(own_server: Callable[..., Server], tmp_path: Path) -> None:
    """Drivers die, commits are lost, the server hangs or is full, rows are cancelled, and the topic is resharded."""
    server, dice = own_server(appendonly="yes"), random.Random(SEED)
    job = _Job(server.url, tmp_path)
    arena = _Arena(server, dice, job)
    with Admin(settings=ManagerSettings(redis_url=server.url)) as admin:
        admin.create_topic(_TOPIC)
    try:
        for life in range(LIVES):
            before, driver = len(arena.stored()), job.start()
            wait_until(
                lambda before=before, driver=driver: len(arena.stored()) > before or driver.poll() is not None,
                400,
                what="the driver to write",
            )
            for fault in dice.sample(arena.faults, _FAULTS_OF_A_LIFE):
                fault()
                idle(dice.uniform(0.1, 0.8))
            assert driver.poll() is None, f"driver {life + 1} ended by itself: see its log"
            job.kill()
            if job.committed() and dice.random() < 0.7:
                arena.cancel_newest()
                job.lose_commit()
        assert job.start("end").wait(240) == 0
    finally:
        job.kill()
    expected = {_id(number, row) for number in range(FILES) for row in range(ROWS)} - arena.cancelled
    assert arena.cancelled
    assert arena.stored() == sorted(expected)
