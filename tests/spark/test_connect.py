"""Spark Connect: clients without Java write and read, in batches and in streams; a declarative pipeline does both."""

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import redis
from pyspark.sql import SparkSession

from lisa_common.model.keys import ShardKeys
from lisa_manager import Admin, ManagerSettings
from lisa_producer import Producer, ProducerSettings
from support.spark_connect import SparkConnect

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture
def connect(spark: SparkSession, connect_port: int, tmp_path: Path) -> SparkConnect:
    """The session of the tests, as a server."""
    assert spark.getActiveSession() is spark
    return SparkConnect(f"sc://127.0.0.1:{connect_port}", tmp_path)


BATCH = """
lisa = dict(url=args[0], prefix=args[1], topic="orders")
frame = spark.sql("SELECT concat('o', id) AS id, struct(id) AS body, 3600 AS delay FROM range(50)")
for _ in range(2):
    frame.write.format("lisa").options(**lisa).mode("append").save()
table = spark.read.format("lisa").options(**lisa, state="waiting").load()
first = table.where("id = 'o7'").selectExpr("CAST(body AS STRING) AS body").first().body
print(json.dumps([table.count(), first]))
"""

STREAM = """
lisa = dict(url=args[0], prefix=args[1])

def run(writer, name):
    query = writer.option("checkpointLocation", args[2] + name).trigger(availableNow=True).start()
    query.awaitTermination()
    return query

folder = args[2] + "rows"
spark.sql("SELECT concat('r', id) AS id, 'x' AS body, 'replies' AS topic FROM range(30)").write.parquet(folder)
rows = spark.readStream.schema("id string, body string, topic string").parquet(folder)
run(rows.writeStream.format("lisa").options(**lisa), "in")
replies = spark.readStream.format("lisa").options(**lisa, topic="repl*", group="g").load()
query = run(replies.select("topic", "id").writeStream.format("parquet").option("path", folder + "-read"), "out")
found = sorted(tuple(row) for row in spark.read.parquet(folder + "-read").collect())
progress = query.lastProgress
sources = progress["sources"] if isinstance(progress, dict) else [json.loads(s.json) for s in progress.sources]
print(json.dumps([found, str(sources[0])]))
"""

PIPELINE = """
from pyspark import pipelines as dp
from pyspark.sql import functions as F

@dp.table
def overdue():
    stream = spark.readStream.format("lisa").options(url="{url}", prefix="{prefix}", topic="invoices", group="pipeline")
    return stream.load().select("id", F.col("body").cast("string").alias("body"))

@dp.materialized_view
def waiting():
    table = spark.read.format("lisa").options(url="{url}", prefix="{prefix}", topic="invoices", state="waiting")
    return table.load().select("id")

dp.create_sink("reminders", "lisa", {{"url": "{url}", "prefix": "{prefix}", "topic": "reminders"}})

@dp.append_flow(target="reminders")
def remind():
    return spark.readStream.table("overdue").selectExpr("concat('again-', id) AS id", "body", "86400 AS delay")
"""


def test_batches(connect: SparkConnect, redis_url: str, prefix: str) -> None:
    """A repeated write adds nothing; the table has what was written."""
    assert connect.run(BATCH, redis_url, prefix) == [50, '{"id":7}']


def test_streams(connect: SparkConnect, redis_url: str, prefix: str, client: redis.Redis, tmp_path: Path) -> None:
    """A query writes each row once; another reads them as a group, and acks them."""
    found, source = connect.run(STREAM, redis_url, prefix, f"{tmp_path}/")
    assert found == sorted(["replies", f"r{number}"] for number in range(30))
    assert "messages" in source
    assert client.xlen(ShardKeys(prefix, "replies").of("ready")) == 30


def test_a_pipeline(connect: SparkConnect, redis_url: str, prefix: str, tmp_path: Path) -> None:
    """A streaming table reads a topic, a view reads what waits, and a sink sends; a second run adds what is new."""
    (tmp_path / "definitions.py").write_text(PIPELINE.format(url=redis_url, prefix=prefix))
    (tmp_path / "spark-pipeline.yml").write_text(
        dedent(
            f"""\
            name: reminders
            storage: {(tmp_path / "storage").as_uri()}
            libraries:
              - glob:
                  include: definitions.py
            """
        )
    )
    settings = ManagerSettings(redis_url=redis_url, prefix=prefix)
    with (
        Producer(settings=ProducerSettings.load(redis_url=redis_url, prefix=prefix)) as producer,
        Admin(settings=settings) as admin,
    ):
        producer.send("invoices", "later", delay=3600, id="late")
        for run in (1, 2):
            producer.send("invoices", f"invoice {run}", id=f"i{run}")
            done = subprocess.run(
                [sys.executable, "-m", "pyspark.pipelines.cli", "run", "--spec", str(tmp_path / "spark-pipeline.yml")],
                env=connect.environment,
                cwd=tmp_path,
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            assert admin.sizes("reminders")[0].stored == run
        found = producer.find("reminders", "again-i2")
    assert found is not None
    assert found.record is not None
    assert found.record.body == b"invoice 2"
    program = (
        "print(json.dumps([sorted(r.id for r in spark.table(name).collect()) for name in ('overdue', 'waiting')]))"
    )
    assert connect.run(program) == [["i1", "i2"], ["late"]]
