"""What of a stream a group has not had yet: how much, and how old.

The server knows (`lag`), except after an entry has been deleted from the stream, as a cancel does. Then it is counted,
page by page, the pages of many groups in one round trip.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lisa_common.model.delivery import Entry
from lisa_common.model.keys import ShardKeys
from lisa_common.protocol.call import Call, Flow
from lisa_manager.admin.queries import PAGE, GroupInfo, chunks, entries

__all__ = ["Backlog", "read_backlogs"]

_AT_ONCE = 50
"""Pages in one round trip."""

_SMALL = 10_000
"""A stream that is counted entry by entry, to leave out the retries of other groups."""

_FIRST = 20
"""How far to look for a group's first entry among the retries of others."""


@dataclass(slots=True)
class Backlog:
    """One group's share of a stream (or the whole stream, where it has no groups) that was not delivered yet."""

    keys: ShardKeys
    group: GroupInfo | None
    length: int
    """Of the stream."""
    alone: bool
    """Whether the group is the only one: then no entry is another's retry."""
    ready: int = 0
    oldest: Entry | None = None
    _cursor: str = ""
    _last: str = "+"
    _forward: bool = True

    def begin(self) -> bool:
        """Takes what is known already; says whether it must be counted."""
        lag = self.length if self.group is None else self.group.lag
        known = lag is not None and (self.alone or not lag or self.length > _SMALL)
        if known and lag is not None:
            self.ready = lag
            return False
        self._forward = self.length <= _SMALL
        delivered = self.group.last if self.group else "0-0"
        self._cursor, self._last = (f"({delivered}", "+") if self._forward else ("-", delivered)
        self.ready = 0 if self._forward else self.length
        return True

    def page(self) -> Call[list[Entry]]:
        """The next page to count: of what was not delivered, or in a long stream of what was, which is trimmed.

        Never backwards: a server that is asked for what lies before all entries goes back through the whole stream.
        """
        return entries(self.keys, self._cursor, self._last)

    def count(self, page: Sequence[Entry]) -> bool:
        """Counts a page; says whether there may be another."""
        self.ready += sum(map(self._wants, page)) if self._forward else -len(page)
        if page:
            self._cursor = f"({page[-1].entry}"
        return len(page) == PAGE

    def first(self) -> Call[list[Entry]]:
        """The beginning of what was not delivered."""
        return entries(self.keys, f"({self.group.last}" if self.group else "-", count=_FIRST)

    def see(self, first: Sequence[Entry]) -> None:
        """Takes note of the oldest entry."""
        self.oldest = next(filter(self._wants, first), None)

    def _wants(self, entry: Entry) -> bool:
        return self.group is None or entry.group in {None, self.group.name}


def read_backlogs(backlogs: Sequence[Backlog]) -> Flow[None]:
    """Fills in `ready` and `oldest` of all."""
    counting = [backlog for backlog in backlogs if backlog.begin()]
    while counting:
        going_on = []
        for some in chunks(counting, _AT_ONCE):
            pages = yield [backlog.page() for backlog in some]
            going_on += [backlog for backlog, page in zip(some, pages, strict=True) if backlog.count(page)]
        counting = going_on
    for some in chunks([backlog for backlog in backlogs if backlog.ready], PAGE):
        firsts = yield [backlog.first() for backlog in some]
        for backlog, first in zip(some, firsts, strict=True):
            backlog.see(first)
