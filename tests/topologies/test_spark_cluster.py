"""Spark as it is deployed: a standalone cluster, whose executors are killed, and whose tasks have twins."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lisa_common.model.keys import ShardKeys
from support import Server, wait_until
from support.spark_cluster import SparkCluster, spark_cluster

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

ROWS = 4_000

JOB = f"""
import sys, time
from pyspark.sql import SparkSession, functions as F

cluster, url, topic = sys.argv[1:]
builder = SparkSession.builder.master(cluster).appName("lisa-tests")
for name, value in {{
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
}}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
slowly = F.udf(lambda number: time.sleep(0.002) or f"order-{{number:09d}}", "string", useArrow=False)
rows = spark.range(0, {ROWS}, 1, 16).select(slowly("id").alias("id"))
rows = rows.select("id", F.lit("x").alias("body"), F.lit(3600).alias("delay"))
rows.write.format("lisa").options(url=url, topic=topic, batchMessages=20).mode("append").save()
print("written", spark.read.format("lisa").options(url=url, topic=topic).load().select("id").distinct().count())
"""


TWINS = """
import sys, time
from pyspark import TaskContext
from pyspark.sql import SparkSession, functions as F

cluster, url, topic, place = sys.argv[1:]
builder = SparkSession.builder.master(cluster).appName("lisa-tests")
for name, value in {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.dir": f"file://{place}/events",
    "spark.eventLog.compress": "false",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.05",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.minTaskRuntime": "100ms",
}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")

def slowly(number):
    context = TaskContext.get()
    if context.partitionId() == 5 and context.attemptNumber() == 0:
        time.sleep(0.004)
    return f"order-{number:09d}"

rows = spark.range(0, 12_000, 1, 6).select(F.udf(slowly, "string", useArrow=False)("id").alias("id"), "id")
delay = F.when(F.col("number") % 20 == 0, -1.0).otherwise(3600.0)
rows = rows.toDF("id", "number").select("id", F.lit("x").alias("body"), delay.alias("delay"))
options = dict(url=url, topic=topic, batchMessages=100, badRows=f"{place}/bad", outcomes=f"{place}/outcomes")
rows.write.format("lisa").options(**options).mode("append").save()
spark.stop()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """One for all jobs: a job brings executors of its own."""
    with spark_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def test_twins_of_tasks(cluster: SparkCluster, tmp_path: Path, own_server: Callable[..., Server]) -> None:
    """A twin has run beside the first try of its task; each row is a message, a bad row and an outcome once."""
    server = own_server()
    (tmp_path / "events").mkdir()
    with server.client() as client:
        job = cluster.start_job(TWINS, server.url, "orders", str(tmp_path))
        _, errors = job.communicate(timeout=400)
        assert job.returncode == 0, errors[-3000:]
        assert client.zcard(ShardKeys("lisa", "orders").of("waiting")) == 11_400
    starts = [event for event in _lines(tmp_path / "events") if event["Event"] == "SparkListenerTaskStart"]
    assert any(event["Task Info"]["Speculative"] for event in starts)
    for place, count in (("bad", 600), ("outcomes", 11_400)):
        ids = [line["id"] for line in _lines(tmp_path / place)]
        assert len(ids) == len(set(ids)) == count


def _lines(place: Path) -> list[dict[str, Any]]:
    files = [file for file in place.rglob("*") if file.is_file() and not file.name.startswith((".", "_"))]
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_executors_that_are_killed_while_they_write(cluster: SparkCluster, own_server: Callable[..., Server]) -> None:
    """Each row is a message once, though an executor dies twice, and tasks run twice by speculation."""
    server = own_server()
    keys = ShardKeys("lisa", "orders")
    wait_until(lambda: not cluster.executors(), 60, what="the executors of other jobs to end")
    with server.client() as client:
        job = cluster.start_job(JOB, server.url, keys.topic)
        for share in (10, 3):
            wait_until(
                lambda share=share: client.zcard(keys.of("waiting")) > ROWS // share or job.poll() is not None,
                240,
                what="the job to write",
            )
            if job.poll() is None:
                killed = cluster.kill_an_executor()
                wait_until(lambda killed=killed: killed not in cluster.executors(), 60, what="the executor to end")
        output, errors = job.communicate(timeout=300)
        assert job.returncode == 0, errors[-3000:]
        assert output.split()[-2:] == ["written", str(ROWS)]
        assert client.zcard(keys.of("waiting")) == ROWS
