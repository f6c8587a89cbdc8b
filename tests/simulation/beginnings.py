"""Promise 7, for workers that die: what a life of a worker had read and not begun spends no attempt.

A mark of a worker covers what the same life had read before, and nothing of another life: see `lua/include/lease.lua`.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from chaos.history import now
from chaos.verdict import Verdict
from lisa_common.model.delivery import Entry, entry_place
from lisa_common.model.keys import ShardKeys
from lisa_common.protocol.marking import StartMark
from simulation.links import may_be_lost

__all__ = ["Life", "judge"]


@dataclass(slots=True)
class Life:
    """The entries that one life of a worker has read, and the last one of each shard that it has marked as begun."""

    group: str
    read: list[tuple[ShardKeys, Entry, float]] = field(default_factory=list)
    marked: dict[ShardKeys, tuple[int, int]] = field(default_factory=dict)

    def take(self, batches: Sequence[tuple[ShardKeys, list[Entry]]]) -> None:
        """Notes what it has read. Entries of other groups it skips."""
        own = (None, self.group)
        self.read += [(keys, each, now()) for keys, entries in batches for each in entries if each.group in own]

    def mark(self, keys: ShardKeys, entry: str, begun: StartMark) -> None:
        """Notes a mark that it asks for."""
        if begun is not StartMark.NOT:
            self.marked[keys] = max(self.marked.get(keys, (0, 0)), entry_place(entry))

    def may_have_begun(self, keys: ShardKeys, entry: str) -> bool:
        """Returns whether the server may have been told that a delivery has begun."""
        return entry_place(entry) <= self.marked.get(keys, (0, 0))


def judge(verdict: Verdict, lives: Sequence[Life], outages: Sequence[float], others: Collection[str]) -> None:
    """Judges the groups that only workers read, and none of `others`: what a plain consumer reads has begun."""
    taken = defaultdict[tuple[str, str, str | None], list[tuple[float, Entry, bool]]](list)
    for life in lives:
        for keys, entry, at in life.read if life.group not in others else ():
            begun = life.may_have_begun(keys, entry.entry)
            taken[life.group, keys.topic, entry.id].append((at, entry, begun))
    for (group, topic, id), of_copy in taken.items():
        for at, entry, _ in of_copy:
            former = [each for each in of_copy if each[1].attempt == entry.attempt - 1 and each[0] < at]
            if former and not may_be_lost(outages, min(since for since, _, _ in former), at):
                entries = [each.entry for _, each, _ in former]
                text = f"{topic}/{id} in group {group}: {entries} spent an attempt, and had not begun"
                verdict.check(7, any(begun for _, _, begun in former), text)
