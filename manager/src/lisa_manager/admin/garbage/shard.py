"""Dead letters of one shard: read page by page, replayed or purged in batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from lisa_common.model.failure import Failure, read_failure
from lisa_common.model.keys import NO_GROUP, ShardKeys, bytes_of, copy_of, split_copy
from lisa_common.model.scores import whole_ms
from lisa_common.protocol import managing
from lisa_common.protocol.call import Call, Flow, command
from lisa_manager.queries import PAGE, chunks, groups, scored

__all__ = ["AT_ONCE", "REASONS", "DeadLetter", "Pages", "Selector", "count", "named", "purge", "read_merged", "replay"]

AT_ONCE = 200
"""Most dead letters in one script call."""

_UNKNOWN = "unknown"

REASONS = ("nack", "abandoned", "rejected", "aborted", "expired", _UNKNOWN)
"""Why a message may have died."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One group's copy of a message in the garbage, or a message that died before any group had it."""

    copy: str
    """The group and the id, as the garbage names it."""
    died_ms: int
    """When it died: server time, in ms."""
    failure: Failure | None
    """The last failure; None where it is lost."""

    @property
    def group(self) -> str:
        """The group, empty for none."""
        return split_copy(self.copy)[0]

    @property
    def id(self) -> str:
        """The message id."""
        return split_copy(self.copy)[1]

    @property
    def reason(self) -> str:
        """Why it died; "unknown" where its failure is lost."""
        return self.failure.reason if self.failure else _UNKNOWN

    @property
    def error(self) -> str:
        """The text of its last failure; empty where that is lost."""
        return self.failure.error if self.failure else ""

    @property
    def release(self) -> str:
        """The release of the handler that failed; empty where it is unknown."""
        return self.failure.release if self.failure else ""


@dataclass(frozen=True, slots=True)
class Selector:
    """Selects dead letters."""

    group: str | None = None
    reason: str | None = None
    died_before_ms: int | None = None
    died_after_ms: int | None = None
    """Only those that died at this time or later."""
    error: str | None = None
    """Only those whose error holds this text, in small or capital letters."""
    release: str | None = None

    @property
    def needs_look(self) -> bool:
        """Whether it selects by more than the time of death."""
        return any(value is not None for value in (self.group, self.reason, self.error, self.release))

    def matches(self, letter: DeadLetter) -> bool:
        """Whether it selects this dead letter."""
        if self.group is not None and letter.group != self.group:
            return False
        if self.died_before_ms is not None and letter.died_ms >= self.died_before_ms:
            return False
        if self.died_after_ms is not None and letter.died_ms < self.died_after_ms:
            return False
        if self.error is not None and self.error.lower() not in letter.error.lower():
            return False
        if self.release is not None and letter.release != self.release:
            return False
        return self.reason is None or letter.reason == self.reason


@dataclass(slots=True)
class Pages:
    """Dead letters by their time of death, page by page.

    Dead letters may come and go meanwhile: each that stays is read exactly once. A page begins at the time of death
    where the last page ended, and skips the dead letters of that time that it remembers.
    """

    keys: ShardKeys
    selector: Selector
    newest_first: bool = False
    size: int = PAGE
    """Most dead letters in a page, beside those of its first moment that are known."""
    done: bool = False
    seen: int = 0
    """How many were read, selected or not."""
    edge: float | None = None
    """The time of death of the last one that was read."""
    _met: set[str] = field(default_factory=set)

    def next_page(self) -> Flow[list[DeadLetter]]:
        """The selected dead letters of the next page, which may be none. Sets `done` after the last page."""
        limit = self.size + len(self._met)
        page: list[tuple[str, float]] = yield self._range(limit)
        self.done = len(page) < limit
        fresh = [(copy, score) for copy, score in page if copy not in self._met]
        if not fresh:
            return []
        if fresh[-1][1] != self.edge:
            self.edge, self._met = fresh[-1][1], set()
        self._met.update(copy for copy, score in fresh if score == self.edge)
        self.seen += len(fresh)
        letters = yield from _with_failures(self.keys, fresh)
        return [letter for letter in letters if self.selector.matches(letter)]

    def _range(self, limit: int) -> Call[list[tuple[str, float]]]:
        low, high = _span(self.selector)
        if self.edge is not None and self.newest_first:
            high = self.edge
        elif self.edge is not None:
            low = self.edge
        ends = (high, low, "BYSCORE", "REV") if self.newest_first else (low, high, "BYSCORE")
        return command("ZRANGE", self.keys.of("garbage"), *ends, "LIMIT", 0, limit, "WITHSCORES", decode=scored)


def _span(selector: Selector) -> tuple[float | str, float | str]:
    """The scores of what died at the times that are selected, in the server's words."""
    before, after = selector.died_before_ms, selector.died_after_ms
    return "-inf" if after is None else after, "+inf" if before is None else f"({before}"


def read_merged(shards: Sequence[Pages]) -> Iterator[Pages]:
    """The shards to read the next pages of, so that all are read at the same pace by time of death, to their ends."""
    while left := [pages for pages in shards if not pages.done]:
        unread = [pages for pages in left if pages.edge is None]
        newest_first = left[0].newest_first
        yield unread[0] if unread else (max if newest_first else min)(left, key=lambda pages: pages.edge or 0)


def _with_failures(keys: ShardKeys, scores: Sequence[tuple[str, float]]) -> Flow[list[DeadLetter]]:
    if not scores:
        return []
    values: list[bytes | None] = yield command("HMGET", keys.of("failures"), *(bytes_of(copy) for copy, _ in scores))
    return [
        DeadLetter(copy, whole_ms(score), read_failure(value))
        for (copy, score), value in zip(scores, values, strict=True)
    ]


def count(keys: ShardKeys, selector: Selector) -> Call[int]:
    """How many dead letters died at the times that are selected, of any group and reason."""
    return command("ZCOUNT", keys.of("garbage"), *_span(selector))


def named(keys: ShardKeys, ids: Sequence[str]) -> Flow[tuple[list[DeadLetter], list[str]]]:
    """The dead letters of messages, and the ids that have none. Copies of dropped groups take a whole search."""
    known = yield groups(keys)
    names = [NO_GROUP, *(group.name for group in known)]
    missing, letters = list(dict.fromkeys(ids)), []
    for page in chunks(missing, PAGE):
        letters += yield from _look_up(keys, [copy_of(name, id) for id in page for name in names])
    missing = sorted(set(missing) - {letter.id for letter in letters}, key=missing.index)
    if missing:
        letters += yield from _search(keys, set(missing))
        missing = [id for id in missing if id not in {letter.id for letter in letters}]
    return letters, missing


def _look_up(keys: ShardKeys, copies: Sequence[str]) -> Flow[list[DeadLetter]]:
    scores: list[bytes | None] = yield command("ZMSCORE", keys.of("garbage"), *map(bytes_of, copies))
    known = [(copy, float(score)) for copy, score in zip(copies, scores, strict=True) if score is not None]
    return (yield from _with_failures(keys, known))


def _search(keys: ShardKeys, ids: set[str]) -> Flow[list[DeadLetter]]:
    pages, letters = Pages(keys, Selector()), list[DeadLetter]()
    while not pages.done:
        page = yield from pages.next_page()
        letters += [letter for letter in page if letter.id in ids]
    return letters


def replay(keys: ShardKeys, letters: Sequence[DeadLetter]) -> Flow[list[str]]:
    """Makes dead letters ready again. Returns "replayed", "unknown", "unreadable" or "no group" for each."""
    outcomes: list[str] = yield managing.replay(keys, *_as_read(letters))
    return outcomes


def purge(keys: ShardKeys, letters: Sequence[DeadLetter]) -> Flow[list[str]]:
    """Deletes dead letters for good. Returns "purged" for each that existed, then "unknown" for the rest."""
    purged: int = yield managing.purge(keys, *_as_read(letters))
    return ["purged"] * purged + ["unknown"] * (len(letters) - purged)


def _as_read(letters: Sequence[DeadLetter]) -> tuple[list[str], list[int]]:
    """What the scripts compare: a letter that was replayed and has died again since may not be selected."""
    return [letter.copy for letter in letters], [letter.died_ms for letter in letters]
