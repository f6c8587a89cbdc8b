"""Ranges of a consumer's pending entries: one for each task, cut into pages."""

from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql.datasource import InputPartition

from lisa_common.model.keys import ShardKeys

__all__ = ["Entries", "Page", "cut", "cut_entries"]

_PAGE = 1_000
"""Entries of one page."""


class Page(NamedTuple):
    """A number of a consumer's pending entries, after one entry and up to another."""

    after: str
    last: str
    size: int


class Entries(InputPartition):
    """The entries of one task: those of a consumer in a shard, after one entry and up to another."""

    def __init__(
        self, keys: ShardKeys, consumer: str, span: Page, pages: Sequence[Page] = (), batch: Page | None = None
    ) -> None:
        self.keys = keys
        self.consumer = consumer
        self.after, self.last, self.count = span
        self.pages = tuple(pages)
        """The same entries, cut; none if they are not known."""
        self.batch = batch
        """All entries of the micro-batch in this shard, if they are known."""
        self.attempt, self.task = "", 0
        """Names what the task notes of its rows; see `LastBatch`."""


def cut_entries(keys: ShardKeys, consumer: str, places: Sequence[str], batch: Page, size: int) -> list[Entries]:
    """Cuts a shard's part of a micro-batch into ranges of `size`."""
    ranges: list[Entries] = []
    for first, span in enumerate(cut(places, batch.after, batch.last, size)):
        pages = cut(places[first * size : (first + 1) * size], span.after, span.last, _PAGE)
        ranges.append(Entries(keys, consumer, span, pages, batch))
    return ranges


def cut(places: Sequence[str], after: str, last: str, size: int) -> list[Page]:
    """Cuts entries, given in order, into ranges of `size`; the last range ends at `last`."""
    ranges, begin = [], after
    for first in range(0, len(places), size):
        part = places[first : first + size]
        end = part[-1] if len(part) == size else last
        ranges.append(Page(begin, end, len(part)))
        begin = end
    return ranges
