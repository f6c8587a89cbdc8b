"""What the runs have met: which scripts and calls, and which of them right after which in the same shard."""

from collections import Counter
from collections.abc import Iterator
from itertools import product

from lisa_common.protocol.scripts import SCRIPT_NAMES
from simulation.pool import Run

__all__ = ["TRANSITIONS", "Coverage"]

TRANSITIONS = (
    *("send", "promote", "fetch", "ack", "nack", "reclaim", "release", "discard", "sweep", "replay", "purge", "cancel"),
    *("replace", "follow", "abort"),
    *("reschedule", "drop_group", "end_copies", "drop", "trim", "close_shard", "set_door", "extend"),
)
"""The scripts that change the state of a message, as the table in docs/architecture.md lists them, and their rivals."""


class Coverage:
    """Sums of many runs."""

    def __init__(self) -> None:
        self.commands: Counter[str] = Counter()
        self.pairs: Counter[str] = Counter()
        self.fired: Counter[str] = Counter()

    def add(self, answer: Run) -> None:
        """Adds one run."""
        self.commands.update(answer["commands"])
        self.pairs.update(answer["pairs"])
        self.fired.update(answer["fired"])

    @property
    def unmet(self) -> list[str]:
        """Pairs of transitions that never came right after each other, by two programs in one shard."""
        pairs = (f"{first} > {second}" for first, second in product(TRANSITIONS, TRANSITIONS))
        return [pair for pair in pairs if not self.pairs[pair]]

    def lines(self) -> Iterator[str]:
        """For people."""
        yield "faults: " + ", ".join(f"{name} {count:,}" for name, count in self.fired.most_common())
        yield "scripts: " + ", ".join(f"{name} {self.commands[name]:,}" for name in SCRIPT_NAMES if self.commands[name])
        yield "scripts never met: " + ", ".join(name for name in SCRIPT_NAMES if not self.commands[name])
        met = len(TRANSITIONS) ** 2 - len(self.unmet)
        yield f"pairs of transitions met: {met} of {len(TRANSITIONS) ** 2}; never met: {', '.join(self.unmet)}"
