"""Dead letters: found page by page, replayed or purged in batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from lisa_common.model.failure import Failure, read_failure
from lisa_common.model.keys import NO_GROUP, ShardKeys, bytes_of, copy_of, split_copy
from lisa_common.model.scores import whole_ms
from lisa_common.protocol import managing
from lisa_common.protocol.call import Call, Flow, command
from lisa_manager.admin.queries import PAGE, chunks, groups, scored

__all__ = ["REASONS", "DeadLetter", "Pages", "Wanted", "batches", "count", "named", "purge", "replay"]

_AT_ONCE = 200
"""Dead letters in one script call."""

_UNKNOWN = "unknown"

REASONS = ("nack", "abandoned", "rejected", "expired", _UNKNOWN)
"""Why a message may be a dead letter."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One group's copy of a message among the garbage; without a group where no group ever had it."""

    copy: str
    died_ms: int
    failure: Failure | None

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


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which dead letters a command is about."""

    group: str | None = None
    reason: str | None = None
    died_before_ms: int | None = None

    def wants(self, letter: DeadLetter) -> bool:
        """Whether it is about this one."""
        if self.group is not None and letter.group != self.group:
            return False
        if self.died_before_ms is not None and letter.died_ms >= self.died_before_ms:
            return False
        return self.reason is None or letter.reason == self.reason


@dataclass(slots=True)
class Pages:
    """Dead letters by when they died, page by page.

    Those that vanish or come meanwhile do no harm: nothing that stays is passed over or met twice. A page begins at the
    moment of death where the last one ended; what was met of that very moment is remembered.
    """

    keys: ShardKeys
    wanted: Wanted
    newest_first: bool = False
    done: bool = False
    seen: int = 0
    """How many were looked at, wanted or not."""
    _edge: float | None = None
    _met: set[str] = field(default_factory=set)

    def next_page(self) -> Flow[list[DeadLetter]]:
        """The wanted ones of the next page, which may be none; sets `done` at the end."""
        limit = PAGE + len(self._met)
        found: list[tuple[str, float]] = yield self._range(limit)
        self.done = len(found) < limit
        fresh = [(copy, score) for copy, score in found if copy not in self._met]
        if not fresh:
            return []
        if fresh[-1][1] != self._edge:
            self._edge, self._met = fresh[-1][1], set()
        self._met.update(copy for copy, score in fresh if score == self._edge)
        self.seen += len(fresh)
        letters = yield from _with_failures(self.keys, fresh)
        return [letter for letter in letters if self.wanted.wants(letter)]

    def _range(self, limit: int) -> Call[list[tuple[str, float]]]:
        before = self.wanted.died_before_ms
        low: float | str = "-inf"
        high: float | str = "+inf" if before is None else f"({before}"
        if self._edge is not None and self.newest_first:
            high = self._edge
        elif self._edge is not None:
            low = self._edge
        ends = (high, low, "BYSCORE", "REV") if self.newest_first else (low, high, "BYSCORE")
        return command("ZRANGE", self.keys.of("garbage"), *ends, "LIMIT", 0, limit, "WITHSCORES", decode=scored)


def _with_failures(keys: ShardKeys, found: Sequence[tuple[str, float]]) -> Flow[list[DeadLetter]]:
    if not found:
        return []
    values: list[bytes | None] = yield command("HMGET", keys.of("failures"), *(bytes_of(copy) for copy, _ in found))
    return [
        DeadLetter(copy, whole_ms(score), read_failure(value))
        for (copy, score), value in zip(found, values, strict=True)
    ]


def count(keys: ShardKeys, before_ms: int | None = None) -> Call[int]:
    """How many dead letters there are, of any group and reason."""
    return command("ZCOUNT", keys.of("garbage"), "-inf", "+inf" if before_ms is None else f"({before_ms}")


def named(keys: ShardKeys, ids: Sequence[str]) -> Flow[tuple[list[DeadLetter], list[str]]]:
    """The dead letters of messages, and the ids that have none. Groups that are gone are searched for last."""
    known = yield groups(keys)
    names = [NO_GROUP, *(group.name for group in known)]
    missing, letters = list(dict.fromkeys(ids)), []
    for some in chunks(list(missing), PAGE):
        letters += yield from _look_up(keys, [copy_of(name, id) for id in some for name in names])
    missing = sorted(set(missing) - {letter.id for letter in letters}, key=missing.index)
    if missing:
        letters += yield from _search(keys, set(missing))
        missing = [id for id in missing if id not in {letter.id for letter in letters}]
    return letters, missing


def _look_up(keys: ShardKeys, copies: Sequence[str]) -> Flow[list[DeadLetter]]:
    scores: list[bytes | None] = yield command("ZMSCORE", keys.of("garbage"), *map(bytes_of, copies))
    found = [(copy, float(score)) for copy, score in zip(copies, scores, strict=True) if score is not None]
    letters = yield from _with_failures(keys, found)
    return letters


def _search(keys: ShardKeys, ids: set[str]) -> Flow[list[DeadLetter]]:
    pages, found = Pages(keys, Wanted()), []
    while not pages.done:
        page = yield from pages.next_page()
        found += [letter for letter in page if letter.id in ids]
    return found


def replay(keys: ShardKeys, letters: Sequence[DeadLetter]) -> Flow[list[str]]:
    """Makes dead letters ready again. Result: for each "replayed", "unknown", "unreadable" or "no group"."""
    outcomes: list[str] = yield managing.replay(keys, [letter.copy for letter in letters])
    return outcomes


def purge(keys: ShardKeys, letters: Sequence[DeadLetter]) -> Flow[list[str]]:
    """Deletes dead letters for good. Result: "purged" as often as there was one, "unknown" for the rest."""
    purged: int = yield managing.purge(keys, [letter.copy for letter in letters])
    return ["purged"] * purged + ["unknown"] * (len(letters) - purged)


def batches(letters: Sequence[DeadLetter]) -> Iterator[Sequence[DeadLetter]]:
    """As many as one script call takes."""
    return chunks(letters, _AT_ONCE)
