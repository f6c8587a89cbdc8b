"""The schedules of `Admin`."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from lisa_common.protocol.call import Flow
from lisa_common.protocol.registry import Topics
from lisa_manager.admin import schedule_changes, schedule_sends, schedules
from lisa_manager.admin.schedule_changes import ImportedSchedules
from lisa_manager.admin.schedule_sends import Backfilled
from lisa_manager.admin.schedules import ScheduleState

__all__ = ["ScheduleAdmin"]

T = TypeVar("T")


class ScheduleAdmin:
    """What operators do with schedules. A topic has schedules of its own; their names are like those of topics."""

    _prefix: str

    @property
    def _topics(self) -> Topics:
        # Made for each call: a cached topic may have been dropped since.
        return Topics(self._prefix)

    @abstractmethod
    def _run(self, flow: Flow[T]) -> T: ...

    def list_schedules(self, topic: str | None = None) -> list[ScheduleState]:
        """All schedules by topic and name, or those of one topic, each with its next tick. Asks every topic."""
        return self._run(schedules.list_schedules(self._topics, topic))

    def schedule(self, topic: str, name: str) -> ScheduleState:
        """One schedule; its `next_ticks` and `in_words` say when it runs. Raises UnknownSchedule."""
        return self._run(schedules.read_schedule(self._topics, topic, name))

    def set_schedule(self, topic: str, name: str, **fields: Any) -> bool:
        """Sets fields of a schedule, and keeps its others; makes it if it does not exist.

            admin.set_schedule("reports", "nightly", cron="30 2 * * *", tz="Europe/Berlin", body={"id": 7})

        every           seconds or timedelta from 1 s on: ticks are the multiples since 1970; excludes `cron`
        cron            five fields, or six with the seconds first; `tz` is its time zone, UTC by default
        body, headers, ttl, max_retries, priority   as for a message; the body has at most 64 KiB
        start, until    the first and the last moment that may be a tick: aware datetimes
        catchup         ticks that no manager sent in time: "latest" of them (default), "all" within `catchup_window`
                        (a day), or "none"
        catchup_within  seconds or timedelta: ticks up to so late are sent, older ones skipped; with `catchup="latest"`
                        the latest of them only; excludes "none" and `catchup_window`
        overlap         "allow", or "skip": a tick is left out while the message of an earlier one is not done
        jitter          seconds or timedelta: each tick is delayed by less, by an amount that its name and time decide
        paused          whether it sends nothing

        The value `DEFAULT` sets a field back. Returns whether anything changed. When the call returns, no tick of the
        former version follows. Raises InvalidInput before anything is written.
        """
        flow = schedule_changes.set_schedule(self._topics, topic, name, fields)
        return self._run(flow).changed

    def pause_schedule(self, topic: str, name: str) -> bool:
        """Pauses a schedule: its tick ahead is taken back. Returns whether it was running. Raises UnknownSchedule."""
        flow = schedule_changes.set_paused(self._topics, topic, name, paused=True)
        return self._run(flow).changed

    def resume_schedule(self, topic: str, name: str) -> bool:
        """Resumes a schedule with its next tick; those of the pause are not sent. Returns whether it was paused."""
        flow = schedule_changes.set_paused(self._topics, topic, name, paused=False)
        return self._run(flow).changed

    def run_now(self, topic: str, name: str) -> str:
        """Sends the message of a schedule now, beside its ticks, also while it is paused. Returns its id."""
        return self._run(schedule_sends.run_now(self._topics, topic, name))

    def skip_tick(self, topic: str, name: str) -> int | None:
        """Leaves out the next tick of a schedule; called again before that tick, it changes nothing.

        Returns that tick, in ms since 1970; None where no more come. Raises UnknownSchedule, and InvalidInput for a
        paused schedule.
        """
        return self._run(schedule_changes.skip_tick(self._topics, topic, name))

    def backfill(self, topic: str, name: str, start: datetime, end: datetime) -> Backfilled:
        """Sends the ticks of a past range, both ends included, whether or not they were sent before: up to 100,000.

        A tick that another backfill has sent within the topic's dedup window is not sent again. Raises
        UnknownSchedule and InvalidInput.
        """
        return self._run(schedule_sends.backfill(self._topics, topic, name, start, end))

    def delete_schedule(self, topic: str, name: str) -> None:
        """Deletes a schedule: its tick ahead is taken back, messages that are due stay. Raises UnknownSchedule."""
        self._run(schedule_changes.delete_schedule(self._topics, topic, name))

    def import_schedules(
        self, schedules: Mapping[str, Mapping[str, Mapping[str, Any]]], *, prune: Sequence[str] = ()
    ) -> ImportedSchedules:
        """Makes schedules as these are, by topic and name, with the fields of `set_schedule` and defaults for the rest.

        Deletes the other schedules of the topics in `prune`, of all topics with "*" among them. Keeps paused what is
        paused, unless `paused` is given. Checks all before it writes any. Raises InvalidInput.
        """
        return self._run(schedule_changes.import_schedules(self._topics, schedules, prune=prune))
