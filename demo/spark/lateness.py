"""The last job: from the workers' journals and Lisa's garbage, how late each carrier's calls were, and what failed."""

from functools import reduce
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession, functions as f

from demo.flights import AIRPORTS
from demo.spark.report import Carrier, DeadLetters, Report
from demo.spark.tables import departures, flight_id, names

__all__ = ["look_back"]

_EVENTS = "kind string, id string, attempt int, due_ms long, sent_ms long, at_ms long, error string"
"""The fields of `Begun` and `Ended` that this job needs."""


def look_back(spark: SparkSession, folder: Path, journals: Path) -> Report:
    """Joins the departures of a folder with the handled deliveries and the garbage."""
    handled, garbage = _handled(spark, journals), _kept_dead_letters(spark, folder.with_name("dead-letters")).cache()
    airlines = names(spark, "airlines.csv", "carrier", "airline")
    rows = _by_carrier(departures(spark, folder), handled, garbage).join(airlines, "carrier", "left").collect()
    dead = garbage.groupBy("reason", "error").count().orderBy(f.desc("count"), "error").collect()
    return _report(rows, dead)


def _handled(spark: SparkSession, journals: Path) -> DataFrame:
    """One row for each delivery whose handler returned."""
    events = spark.read.schema(_EVENTS).json(f"{journals}/worker-*.jsonl").cache()
    returned = events.where((f.col("kind") == "Ended") & (f.col("error") == ""))
    begun = events.where(f.col("kind") == "Begun")
    return returned.select("id", "attempt").join(begun.drop("kind", "error"), ["id", "attempt"])


def _kept_dead_letters(spark: SparkSession, folder: Path) -> DataFrame:
    """The dead letters of all airports, out of the Parquet files that this job keeps of them, as a nightly job does."""
    reader = spark.read.format("lisa").option("state", "garbage")
    topics = [reader.option("topic", airport).load() for airport in AIRPORTS]
    reduce(DataFrame.union, topics).write.mode("overwrite").partitionBy("topic").parquet(str(folder))
    return spark.read.parquet(str(folder)).select("id", "reason", "error")


def _by_carrier(flights: DataFrame, handled: DataFrame, garbage: DataFrame) -> DataFrame:
    """A row for each carrier, and one without a carrier for all."""
    late = f.col("at_ms") - f.col("due_ms")
    return (
        flights.select("carrier", flight_id().alias("id"))
        .join(handled, "id", "left")
        .join(garbage, "id", "left")
        .rollup("carrier")
        .agg(
            f.count("id").alias("departures"),
            f.count("at_ms").alias("handled"),
            f.count("reason").alias("garbage"),
            f.count_if(f.col("sent_ms") > f.col("due_ms")).alias("sent_late"),
            f.percentile(late, 0.5).alias("p50_ms"),
            f.percentile(late, 0.99).alias("p99_ms"),
            f.max(late).alias("max_ms"),
        )
    )


def _report(rows: list[Row], dead: list[Row]) -> Report:
    (total,) = (row for row in rows if row.carrier is None)
    carriers = [_carrier(row, row.carrier, row.airline or "") for row in rows if row.carrier is not None]
    carriers.sort(key=lambda carrier: (-carrier.handled - carrier.garbage, carrier.code))
    letters = [DeadLetters(row["count"], row.reason, row.error) for row in dead]
    return Report(total.departures, total.sent_late, _carrier(total, "all", ""), carriers, letters)


def _carrier(row: Any, code: str, name: str) -> Carrier:
    return Carrier(code, name, row.handled, row.garbage, row.p50_ms, row.p99_ms, row.max_ms)
