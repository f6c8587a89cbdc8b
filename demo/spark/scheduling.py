"""The first job: turns a stream of departures into boarding calls, which Lisa holds until they are due."""

from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession, functions as f
from pyspark.sql.streaming.query import StreamingQuery

from demo.events import Streamed
from demo.flights import BOARDING_MIN, LATE_MIN, DayClock
from demo.spark.plan import COMPLETE, MAX_RETRIES, departures_in
from demo.spark.tables import HEADER, departures_stream, flight_id, names

__all__ = ["Scheduling", "calls"]

_TRIGGER = "500 milliseconds"
_LOOK_S = 1


class Scheduling:
    """The query from departures to boarding calls, and the tables that it joins."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self._directory = directory
        self._airlines = names(spark, "airlines.csv", "carrier", "airline")
        self._airports = names(spark, "airports.csv", "dest", "airport")

    def rehearse(self) -> None:
        """Runs the query on a file without rows: a first batch takes several seconds, too long for the day.

        It loads classes and tables, and starts the Python processes that send.
        """
        folder = self._directory / "rehearsal"
        folder.mkdir()
        (folder / "none.csv").write_text(f"{HEADER}\n", "utf-8")
        query = self._start(folder, DayClock(0, 0, 1, 1))
        query.processAllAvailable()
        query.stop()

    def play(self, clock: DayClock) -> Streamed:
        """Sends all departures, until the last file has arrived and is done. Raises the error that stops the query."""
        folder = departures_in(self._directory)
        query = self._start(folder, clock)
        while not (folder / COMPLETE).exists():
            query.awaitTermination(_LOOK_S)
        query.processAllAvailable()
        query.stop()
        batches = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
        return Streamed(sum(batches), len(batches))

    def _start(self, folder: Path, clock: DayClock) -> StreamingQuery:
        messages = calls(departures_stream(self._spark, folder), self._airlines, self._airports, clock)
        # In one task, and so in one Python process: a file has a hundred rows.
        messages = messages.coalesce(1)
        return (
            # Server and prefix come from the environment, as everywhere in the demo.
            messages.writeStream.format("lisa")
            .option("checkpointLocation", str(self._directory / f"checkpoint-{folder.name}"))
            .trigger(processingTime=_TRIGGER)
            .start()
        )


def calls(departures: DataFrame, airlines: DataFrame, airports: DataFrame, clock: DayClock) -> DataFrame:
    """One message for each departure, with the columns that `format("lisa")` takes."""
    named = departures.join(f.broadcast(airlines), "carrier", "left").join(f.broadcast(airports), "dest", "left")
    return named.select(
        f.col("origin").alias("topic"),
        flight_id().alias("id"),
        _due_at(clock).alias("due_at"),
        f.lit(MAX_RETRIES).alias("max_retries"),
        f.struct(
            f.concat("carrier", "flight").alias("flight"),
            "airline",
            f.col("origin").alias("from"),
            f.col("dest").alias("to"),
            "airport",
            f.col("dep_delay").isNull().alias("cancelled"),
        ).alias("body"),
    )


def _due_at(clock: DayClock) -> Column:
    """When boarding was called in the end, on the server's clock: what `DayClock.ms` makes of `late_boarding_min`."""
    scheduled = f.floor(f.col("sched_dep_time") / 100) * 60 + f.col("sched_dep_time") % 100
    delay = f.coalesce(f.when(f.col("dep_delay") >= LATE_MIN, f.col("dep_delay")), f.lit(0))
    minute = scheduled - BOARDING_MIN + delay
    passed_ms = f.rint((minute - clock.first_min) * 60_000 / f.lit(clock.speed))
    return f.timestamp_millis(f.lit(clock.start_ms) + passed_ms.cast("long"))
