"""A schedule as a manager knows it."""

from dataclasses import dataclass

from lisa_common.model.schedule import Definition, Mark, Schedule

__all__ = ["WatchedSchedule"]


@dataclass(slots=True)
class WatchedSchedule:
    """A schedule, and what this manager knows of its mark."""

    definition: Definition
    mark: Mark | None = None
    """None until the version is known to be in force."""

    @property
    def schedule(self) -> Schedule:
        """The schedule, which is not deleted."""
        if self.definition.schedule is None:
            raise ValueError(f"{self.definition.name} was deleted")
        return self.definition.schedule
