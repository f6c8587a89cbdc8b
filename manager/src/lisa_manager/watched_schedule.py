"""Schedules as a manager knows them."""

from dataclasses import dataclass, field

from lisa_common.model.schedule import Definition, Mark
from lisa_common.model.sharding import Layout
from lisa_common.protocol.scheduling import Home

__all__ = ["WatchedSchedule", "WatchedTopic"]


@dataclass(slots=True)
class WatchedSchedule:
    """A schedule, and how far it has come."""

    topic: "WatchedTopic"
    definition: Definition
    mark: Mark

    @property
    def tag(self) -> str:
        """Names the schedule in logs and queues."""
        return f"{self.topic.layout.topic}/{self.definition.schedule.name}"


@dataclass(slots=True)
class WatchedTopic:
    """A topic that has schedules."""

    layout: Layout
    home: Home | None = None
    """None until it is known."""
    clock: bytes | None = None
    """The text that changes with each schedule, when all were read; None to read them again."""
    schedules: dict[str, WatchedSchedule] = field(default_factory=dict)
    group: object = None
    """Topics of one group are served together."""
