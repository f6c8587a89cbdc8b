"""Spark as it is deployed: a standalone cluster, whose executors are killed while they write."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lisa_common.model.keys import ShardKeys
from support import Server, wait_until
from support.spark_cluster import spark_cluster

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


def test_executors_that_are_killed_while_they_write(tmp_path: Path, own_server: Callable[..., Server]) -> None:
    """Each row is a message once, though an executor dies twice, and tasks run twice by speculation."""
    server = own_server()
    keys = ShardKeys("lisa", "orders")
    with spark_cluster(tmp_path / "cluster") as cluster, server.client() as client:
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
