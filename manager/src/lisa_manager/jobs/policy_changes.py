"""Which topics a job looks at because of their policies."""

import time
from collections.abc import Callable, Mapping

from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_manager.jobs.discoverer import Discoverer

__all__ = ["PolicyChanges"]


class PolicyChanges:
    """Topics whose policies are chosen, in every turn of a job; others after each change, once or for `lasting_s`.

    A job runs often, and there may be thousands of topics, so they are compared only when the registry has changed.
    """

    def __init__(
        self,
        discoverer: Discoverer,
        is_chosen: Callable[[Policy], object],
        *,
        lasting_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._discoverer = discoverer
        self._is_chosen = is_chosen
        self._lasting_s = lasting_s
        self._clock = clock
        self.layouts: Mapping[str, Layout] = {}
        """All topics, by name, at the latest `take`."""
        self._chosen: dict[str, Layout] = {}
        self._changed: dict[str, float] = {}
        """When `end` may be called for each."""

    def take(self) -> list[Layout]:
        """The topics to look at now. A changed one is among them again until `end` is called for it."""
        former, self.layouts = self.layouts, self._discoverer.layouts
        if self.layouts is not former:
            items = self.layouts.items()
            self._chosen = {name: layout for name, layout in items if self._is_chosen(layout.policy)}
            before, until = self._changed, self._clock() + self._lasting_s
            self._changed = {}
            for name, layout in items:
                if name not in former or former[name].policy != layout.policy:
                    self._changed[name] = until
                elif name in before:
                    self._changed[name] = before[name]
        return list((self._chosen | {name: self.layouts[name] for name in self._changed}).values())

    def begin_again(self) -> None:
        """Takes all topics for changed ones."""
        self.layouts = {}

    def end(self, layout: Layout) -> None:
        """Takes a topic that was looked at."""
        if self._clock() >= self._changed.get(layout.topic, 0.0):
            self._changed.pop(layout.topic, None)
