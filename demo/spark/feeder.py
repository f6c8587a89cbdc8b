"""The airline's part: files of departures, one for each hour of the schedule, which come into a folder over time."""

import csv
from collections import defaultdict
from datetime import date
from pathlib import Path

from demo.flights import BOARDING_MIN, DayClock, lines_of
from demo.spark.plan import COMPLETE, LEAD_MS

__all__ = ["Feeder"]


class Feeder:
    """Brings each file `LEAD_MS` before its first boarding call."""

    def __init__(self, folder: Path, day: date) -> None:
        self._folder = folder
        self._header, *lines = lines_of(day)
        hours = defaultdict(list)
        for line, row in zip(lines, csv.DictReader([self._header, *lines]), strict=True):
            hours[int(row["sched_dep_time"]) // 100].append(line)
        self._left = sorted(hours.items())
        self.files = self.rows = 0

    def bring(self, clock: DayClock, now_ms: int) -> None:
        """Brings the files whose time has come, and after the last one the mark of a complete folder."""
        while self._left and clock.ms(self._left[0][0] * 60 - BOARDING_MIN) - LEAD_MS <= now_ms:
            hour, lines = self._left.pop(0)
            self._write(f"{hour:02}.csv", "".join([self._header, *lines]))
            self.files += 1
            self.rows += len(lines)
            if not self._left:
                self._write(COMPLETE, "")

    def _write(self, name: str, text: str) -> None:
        # Spark ignores this name until the file is complete.
        scratch = self._folder / f".{name}"
        scratch.write_text(text, "utf-8")
        scratch.rename(self._folder / name)
