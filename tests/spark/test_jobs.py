"""Jobs as users write them: SQL, other names of columns, operations on tables and streams, what a query remembers."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import (
    DataFrame,
    functions as F,  # noqa: N812 - as everybody does
)

from lisa_common.model.policy import Policy
from lisa_producer import Producer, ProducerSettings
from lisa_producer.spark import LisaListener, register
from support import wait_until
from support.spark import READS_STREAMS, SparkTopic

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def producer(topic: SparkTopic) -> Producer:
    """A plain producer."""
    return Producer(settings=ProducerSettings.load(redis_url=topic.url, prefix=topic.keys.prefix))


def test_sql(topic: SparkTopic, producer: Producer) -> None:
    """Tables of SQL are written and read, and take their URL from the session: none of it is in the catalog."""
    topic.spark.conf.set("spark.lisa.url", topic.url)
    topic.spark.conf.set("spark.lisa.prefix", topic.keys.prefix)
    register(topic.spark)
    topic.spark.sql(f"CREATE TABLE orders_of_sql USING lisa OPTIONS (topic '{topic.keys.topic}')")
    try:
        insert = "INSERT INTO orders_of_sql (id, body, due_at) SELECT"
        later = "current_timestamp() + interval 1 hour"
        topic.spark.sql(f"{insert} 'sql-1', CAST('from SQL' AS BINARY), {later}")
        assert [
            row.id for row in topic.spark.sql("SELECT id FROM orders_of_sql WHERE state = 'waiting'").collect()
        ] == ["sql-1"]
        found = producer.find(topic.keys.topic, "sql-1")
        assert found is not None
        assert found.record is not None
        assert found.record.body == b"from SQL"
        described = topic.spark.sql("DESCRIBE EXTENDED orders_of_sql").collect()
        assert not any(topic.url in str(row) for row in described)
    finally:
        topic.spark.sql("DROP TABLE orders_of_sql")


def test_every_way_of_spark_to_write_and_read(topic: SparkTopic, tmp_path: Path) -> None:
    """What Spark passes on by itself is accepted; what it does not pass on is said."""
    register(topic.spark, topic.url)
    name, frame = (
        f"t{topic.keys.prefix}",
        topic.spark.sql("SELECT 'b' AS id, CAST('x' AS BINARY) AS body, 3600 AS delay"),
    )
    options = f"prefix '{topic.keys.prefix}', topic '{topic.keys.topic}'"
    spark, at = topic.spark, F.expr("now() + interval 1 day").alias("due_at")

    def row(id: str) -> DataFrame:
        return frame.select(F.lit(id).alias("id"), "body", at)

    spark.sql(f"CREATE TABLE {name} USING lisa OPTIONS ({options})")
    try:
        spark.sql(f"INSERT INTO {name} (id, body, due_at) SELECT 'a', CAST('x' AS BINARY), now() + interval 1 day")
        topic.write(frame)
        row("c").writeTo(name).append()
        row("d").writeTo(name).option("batchMessages", "5").append()
        row("e").write.format("lisa").options(**topic.options()).mode("append").saveAsTable(name)
        row("f").write.format("lisa").mode("append").options(**topic.options()).save()
        row("stream").write.parquet(str(tmp_path / "in"))
        stream = spark.readStream.schema("id string, body binary, due_at timestamp").parquet(str(tmp_path / "in"))
        writer = stream.writeStream.queryName("reminders").outputMode("append").trigger(availableNow=True)
        writer = writer.format("lisa").options(**topic.options(badRows=f"{tmp_path}/bad", outcomes=f"{tmp_path}/out"))
        query = writer.option("checkpointLocation", str(tmp_path / "start")).start(queryName="reminders")
        assert query.awaitTermination(120)
        writer.option("checkpointLocation", str(tmp_path / "to")).toTable(name).awaitTermination(120)
        ids = ["a", "b", "c", "d", "e", "f", "stream"]
        for read in (
            spark.table(name),
            spark.read.table(name),
            spark.sql(f"TABLE {name}"),
            topic.table(),
            spark.read.load(format="lisa", **topic.options()),
        ):
            assert sorted(row.id for row in read.collect()) == ids
        for refused in (
            lambda: spark.sql(f"CREATE TABLE {name}2 USING lisa OPTIONS ({options}) AS SELECT 'a' AS id, 'x' AS body"),
            lambda: row("g").write.format("lisa").mode("append").save(),
        ):
            with pytest.raises(
                AnalysisException, match=r"the option topic is not given \(toTable and CREATE TABLE AS SELECT"
            ):
                refused()
    finally:
        spark.sql(f"DROP TABLE {name}")
        spark.sql(f"DROP TABLE IF EXISTS {name}2")


def test_zones_and_null_literals(topic: SparkTopic, producer: Producer) -> None:
    """The session's zone changes no time; NULL is as if the column were missing."""
    kept = topic.spark.conf.get("spark.sql.session.timeZone")
    try:
        for zone in ("PST", "UTC-03:30", "Z"):
            topic.spark.conf.set("spark.sql.session.timeZone", str(zone))
            topic.write(
                topic.spark.sql(
                    f"""SELECT 'in {zone}' AS id, NULL AS priority, NULL AS headers, NULL AS delay,
                        timestamp_millis(1800000000000) AS due_at,
                        struct(timestamp_millis(1800000000000) AS at, parse_json('{{"n": 1}}') AS v) AS body"""
                )
            )
            found = producer.find(topic.keys.topic, f"in {zone}")
            assert found is not None
            assert found.record is not None
            assert found.record.body == b'{"at":"2027-01-15T08:00:00+00:00","v":{"n":1}}'
            assert found.record.due_ms == 1_800_000_000_000
    finally:
        topic.spark.conf.set("spark.sql.session.timeZone", str(kept))


def test_a_password_does_not_stay_in_the_session(topic: SparkTopic) -> None:
    """Spark logs all options of a session with each job, whatever their names are."""
    url = "redis://:open-sesame@localhost:1"
    for name in ("spark.lisa.url", "spark.lisa.secret.url"):
        topic.spark.conf.set(name, url)
        for _ in range(2):
            register(topic.spark)
            assert topic.spark.conf.get(name, None) is None
    for name in ("spark.lisa.url", "spark.lisa.secret.url"):
        topic.spark.conf.set(name, url)
    register(topic.spark, topic.url)
    assert [row for row in topic.spark.sql("SET").collect() if "open-sesame" in str(row)] == []
    register(topic.spark)
    with pytest.raises(PythonException, match="localhost:1"):
        topic.write(topic.spark.sql("SELECT 'x' AS body"), url=None, patience=0.1)


def test_other_names_of_columns(topic: SparkTopic, producer: Producer) -> None:
    """Columns are read under other names; extra ones are refused, or ignored on demand; a VARIANT is sent as JSON."""
    frame = topic.spark.sql(
        """SELECT 'o-1' AS order_id, parse_json('{"n": 1}') AS payload, 3600.0D AS wait, 'x' AS id, 2 AS colour"""
    )
    names = {"idColumn": "order_id", "bodyColumn": "payload", "delayColumn": "wait"}
    with pytest.raises(AnalysisException, match=r"column must be one of payload, topic, order_id.*; got 'id'"):
        topic.write(frame, **names)
    topic.write(frame, **names, extraColumns="ignore")
    found = producer.find(topic.keys.topic, "o-1")
    assert found is not None
    assert found.record is not None
    assert found.record.body == b'{"n":1}'


def test_dead_letters_of_a_table_are_replayed(topic: SparkTopic, producer: Producer) -> None:
    """A filtered table is the input of an operation; ready and delivered messages are rows, too."""
    from spark.test_reading import _kill, _send  # noqa: PLC0415 - helpers of the other file

    _send(producer, topic, range(20))
    _kill(producer, topic, 20)
    dead = topic.table(state="garbage").where("error < 'error of i15'")
    count = dead.count()
    dead.write.format("lisa").options(**topic.options(operation="replay")).mode("append").save()
    assert topic.table(state="garbage").count() == 20 - count
    ready = topic.table(state="ready")
    assert ready.count() == count
    row = ready.first()
    assert row is not None
    assert (row.state, row.group, row.attempts) == ("ready", "g", 0)
    assert topic.told()[-1].split(": ", 2)[2].startswith(f"{count} rows, {count} done, 0 without effect, 0 bad")


@pytest.mark.skipif(not READS_STREAMS, reason="needs PySpark 4.2")
def test_rows_of_a_stream_are_rejected(topic: SparkTopic, producer: Producer, tmp_path: Path) -> None:
    """`foreachBatch` rejects some rows and nacks others; all the rest are acked."""
    topic.client.hset(f"{topic.keys.prefix}:topics", topic.keys.topic, Policy(max_retries=2).dump())
    for number in range(10):
        producer.send(topic.keys.topic, "x", id=f"i{number}")

    def handle(batch: DataFrame, _: int) -> None:
        batch.persist()
        for operation, id in (("reject", "i3"), ("nack", "i4")):
            chosen = batch.where(F.col("id") == id).select("receipt", F.lit("not good").alias("error"))
            chosen.write.format("lisa").options(**topic.options(operation=operation)).mode("append").save()
        batch.unpersist()

    query = (
        topic.stream()
        .load()
        .writeStream.foreachBatch(handle)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    left = topic.table().select("state", "id", "error").orderBy("id").collect()
    assert [tuple(row) for row in left] == [("garbage", "i3", "not good"), ("retry", "i4", "not good")]
    assert int(topic.client.hlen(topic.keys.of("messages"))) == 2


@pytest.mark.parametrize("with_ids", [True, False], ids=["ids", "no ids"])
def test_a_query_remembers_its_batches(
    topic: SparkTopic, producer: Producer, tmp_path: Path, arriving: Callable[[int, int], None], *, with_ids: bool
) -> None:
    """A micro-batch that runs again adds nothing, though its messages were cancelled, or had no ids."""
    arriving(0, 50)
    checkpoint = tmp_path / "checkpoint"
    listener = LisaListener(topic.keys.topic, topic.url, prefix=topic.keys.prefix)
    topic.spark.streams.addListener(listener)

    def run() -> Any:
        reader = topic.spark.readStream.schema("id string, body string, delay double")
        frame = reader.csv(str(tmp_path / "arriving"))
        query = topic.start(frame if with_ids else frame.drop("id"), checkpoint, rememberDays=30)
        query.processAllAvailable()
        query.stop()
        return query

    def await_counts(**expected: int) -> None:
        # A listener is told later, and reads what the last write of a batch has stored. If it never counts this, the
        # assertion shows what it did count.
        with suppress(AssertionError):
            wait_until(lambda: listener.written.get(str(query.id)) == expected)
        assert listener.written == {str(query.id): expected}

    try:
        query = run()
        assert topic.waiting == 50
        await_counts(rows=50, sent=50, duplicates=0, bad=0)
        for row in topic.table().select("id").collect():
            producer.cancel(topic.keys.topic, row.id)
        for lost in (checkpoint / "commits").glob("*0*"):
            lost.unlink()
        run()
        assert topic.waiting == 0
        assert ": 50 rows, 0 sent, 50 duplicates, 0 bad, " in topic.told()[-1]
        await_counts(rows=100, sent=50, duplicates=50, bad=0)
        arriving(50, 60)
        run()
        assert topic.waiting == 10
        await_counts(rows=110, sent=60, duplicates=50, bad=0)
    finally:
        topic.spark.streams.removeListener(listener)
    assert topic.client.ttl(topic.keys.query(f"{query.id}/0")) > 29 * 86_400
