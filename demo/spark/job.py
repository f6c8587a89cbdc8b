"""The pipeline's Spark application: it sends the day's calls, waits until all have ended, and then looks back."""

import argparse
import time
from datetime import date
from pathlib import Path

from demo.events import Journal, Opened
from demo.flights import DayClock, flights_of
from demo.server import Server
from demo.spark.chart import draw
from demo.spark.lateness import look_back
from demo.spark.plan import LEAD_MS, departures_in, report_in
from demo.spark.scheduling import Scheduling
from demo.spark.session import spark_session
from lisa_producer import ProducerSettings

__all__ = ["main"]

_TICK_S = 0.1


def main() -> None:
    """Runs both jobs in one session, as Spark takes longer to start than the second job takes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--day", type=date.fromisoformat, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--journals", type=Path, required=True)
    parser.add_argument("--title", required=True)
    parser.add_argument("--chart", type=Path, required=True)
    options = parser.parse_args()
    flights = flights_of(options.day)
    with (
        Server(ProducerSettings.load()) as server,
        Journal(options.journals / "job.jsonl") as journal,
        spark_session(options.directory / "spark") as spark,
    ):
        scheduling = Scheduling(spark, options.directory)
        scheduling.rehearse()
        clock = DayClock.of(flights, start_ms=server.now_ms() + LEAD_MS, seconds=options.seconds)
        journal.note(Opened(clock.start_ms, clock.first_min, clock.last_min, clock.seconds))
        journal.note(scheduling.play(clock))
        while server.alive():
            time.sleep(_TICK_S)
        report = look_back(spark, departures_in(options.directory), options.journals)
    draw(report, options.title, options.chart)
    # Last: this file says that all is done.
    report.save(report_in(options.directory))


if __name__ == "__main__":
    main()
