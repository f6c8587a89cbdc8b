"""The entries of a stream that a group has not read yet: how many, and how old.

The server knows their number (`lag`), except after an entry was deleted from the stream, as a cancel does. Then they
are counted page by page, the pages of many groups in one round trip. So they are if the number cannot be right: where
entries were deleted before a group read them, servers count them as unread, Redis 7.0 for ever.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lisa_common.errors import LisaError
from lisa_common.model.delivery import Entry
from lisa_common.model.keys import ShardKeys
from lisa_common.protocol.call import Call, Flow, IndependentCalls
from lisa_manager.queries import PAGE, GroupInfo, chunks, entries, first_error

__all__ = ["Backlog", "backlogs_of", "read_backlogs"]

_AT_ONCE = 5
"""Pages in one round trip: an event loop has other work."""

_SMALL = 10_000
"""Streams up to this length are counted entry by entry, to leave out the retries of other groups."""

_FIRST = 20
"""Entries to search for a group's first one among the retries of other groups."""


@dataclass(slots=True)
class Backlog:
    """The undelivered entries of one group, or of a stream without groups."""

    keys: ShardKeys
    group: GroupInfo | None
    length: int
    """The number of entries in the stream."""
    alone: bool
    """Whether no other group exists: then no entry is another group's retry."""
    ready: int = 0
    oldest: Entry | None = None
    error: LisaError | None = None
    """Why the stream could not be read."""
    _cursor: str = ""
    _last: str = "+"
    _forward: bool = True

    def begin(self, *, exact: bool) -> bool:
        """Takes the number that the server knows. Returns whether the entries must be counted instead."""
        lag = self.length if self.group is None else self.group.lag
        most = self.length - (self.group.pending if self.group else 0)
        if lag is not None and lag <= most and (not exact or self.alone or not lag or self.length > _SMALL):
            self.ready = lag
            return False
        self._forward = self.length <= _SMALL
        delivered = self.group.last if self.group else "0-0"
        self._cursor, self._last = (f"({delivered}", "+") if self._forward else ("-", delivered)
        self.ready = 0 if self._forward else self.length
        return True

    def page(self) -> Call[list[Entry]]:
        """The next page to count: of undelivered entries, or in a long stream of delivered ones, which are trimmed.

        Never reads backwards: for entries before the first one, a server would search the whole stream.
        """
        return entries(self.keys, self._cursor, self._last)

    def count(self, page: Sequence[Entry]) -> bool:
        """Counts a page. Returns whether another may follow."""
        self.ready += sum(map(self._includes, page)) if self._forward else -len(page)
        if page:
            self._cursor = f"({page[-1].entry}"
        return len(page) == PAGE

    def first(self) -> Call[list[Entry]]:
        """The call for the first undelivered entries."""
        return entries(self.keys, f"({self.group.last}" if self.group else "-", count=_FIRST)

    def take_first(self, first: Sequence[Entry]) -> None:
        """Keeps the oldest of the first entries, and their number if there are no more."""
        own = [*filter(self._includes, first)]
        self.oldest = next(iter(own), None)
        if len(first) < _FIRST:
            # The server counts entries that were deleted before the group read them, while another group is behind.
            self.ready = len(own)

    def late_ms(self, now_ms: int) -> int:
        """How long the oldest of them has been due."""
        return max(0, now_ms - (self.oldest.at_ms or self.oldest.due_ms)) if self.oldest and self.oldest.id else 0

    def _includes(self, entry: Entry) -> bool:
        return self.group is None or entry.group in {None, self.group.name}


def backlogs_of(keys: ShardKeys, infos: Sequence[GroupInfo], length: int) -> list[Backlog]:
    """The backlogs of a shard's groups, or of the stream where it has none; nothing is read so far."""
    return [Backlog(keys, info, length, alone=len(infos) <= 1) for info in infos or (None,)]


def read_backlogs(backlogs: Sequence[Backlog], *, exact: bool = True, partial: bool = False) -> Flow[None]:
    """Sets `ready` and `oldest`, or `error`, of each.

    Unless `exact`, takes the server's number where it knows one and many are ready, which includes retries of other
    groups, and leaves `oldest` out. With `partial`, the error of a node that is away is that of its backlogs; else it
    is raised.
    """
    counting = [backlog for backlog in backlogs if backlog.begin(exact=exact)]
    while counting:
        unfinished = []
        for batch in chunks(counting, _AT_ONCE):
            pages = yield IndependentCalls(backlog.page() for backlog in batch)
            for backlog, page in zip(batch, pages, strict=True):
                backlog.error = first_error([page], partial=partial)
                if backlog.error is None and backlog.count(page):
                    unfinished.append(backlog)
        counting = unfinished
    ready = [b for b in backlogs if b.ready and not b.error and (exact or not b.alone)]
    for batch in chunks(ready, PAGE):
        firsts = yield IndependentCalls(backlog.first() for backlog in batch)
        for backlog, first in zip(batch, firsts, strict=True):
            backlog.error = first_error([first], partial=partial)
            if backlog.error is None:
                backlog.take_first(first)
