"""Which topics a job looks at because of their policies."""

from collections.abc import Callable, Mapping

from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_manager.jobs.discoverer import Discoverer

__all__ = ["PolicyChanges"]


class PolicyChanges:
    """Topics whose policies are chosen, in every turn of a job; others once after each change.

    A job runs often, and there may be thousands of topics, so they are compared only when the registry has changed.
    """

    def __init__(self, discoverer: Discoverer, is_chosen: Callable[[Policy], object]) -> None:
        self._discoverer = discoverer
        self._is_chosen = is_chosen
        self.layouts: Mapping[str, Layout] = {}
        """All topics, by name, at the latest `take`."""
        self._chosen: dict[str, Layout] = {}
        self._changed: dict[str, Layout] = {}

    def take(self) -> list[Layout]:
        """The topics to look at now. A changed one is among them again until `end` is called for it."""
        former, self.layouts = self.layouts, self._discoverer.layouts
        if self.layouts is not former:
            items = self.layouts.items()
            self._chosen = {name: layout for name, layout in items if self._is_chosen(layout.policy)}
            self._changed = {
                name: layout
                for name, layout in items
                if name in self._changed or name not in former or former[name].policy != layout.policy
            }
        return list((self._chosen | self._changed).values())

    def begin_again(self) -> None:
        """Takes all topics for changed ones."""
        self.layouts = {}

    def end(self, layout: Layout) -> None:
        """Takes a topic that was looked at."""
        self._changed.pop(layout.topic, None)
