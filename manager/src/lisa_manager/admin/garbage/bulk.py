"""Dead letters of a whole topic: listed, counted, replayed and purged in bounded steps."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

from lisa_common.errors import InvalidInput
from lisa_common.model.keys import ShardKeys
from lisa_common.model.sharding import Layout, by_shard, home
from lisa_common.protocol.call import Flow
from lisa_common.protocol.consuming import server_time
from lisa_common.validation import Duration, check_bool, check_callable, check_int, check_name, duration_ms, moment_ms
from lisa_manager.admin.garbage import shard
from lisa_manager.admin.garbage.shard import REASONS, DeadLetter, Pages, Selector, read_merged
from lisa_manager.admin.groups.debts import require_group
from lisa_manager.queries import chunks, require_topic

__all__ = [
    "ALL_GARBAGE",
    "BulkResult",
    "GarbageFilter",
    "GarbageList",
    "OnProgress",
    "StopBulk",
    "count",
    "count_all",
    "dead_letters",
    "purge",
    "replay",
    "selector_of",
]

OnProgress = Callable[[int, int], object]
"""Called after each step with how much is done, and how much there is in all. It may raise `StopBulk`."""


class StopBulk(Exception):
    """Raised by `on_progress`: ends the call after this step. It returns what it has done so far."""


_MOST_LISTED = 1_000_000


@dataclass(frozen=True, slots=True)
class GarbageFilter:
    """Selects dead letters by the fields that are set; raises InvalidInput for a value that no dead letter can have."""

    group: str | None = None
    """Only copies of this group; "" for messages that died before any group had them."""
    reason: str | None = None
    """Only copies that died for this reason, one of `REASONS`."""
    older_than: Duration | None = None
    """Only copies that died at least so long ago, in seconds or as a timedelta."""
    error: str | None = None
    """Only copies whose error holds this text, in small or capital letters."""
    since: Duration | None = None
    """Only copies that died within the last so many seconds, or a timedelta; it has to exceed `older_than`."""
    release: str | None = None
    """Only copies that a handler of this release failed; "" for those of an unknown one."""
    as_of: datetime | None = None
    """Only copies that died before this moment, from which the ages count; None for the time of the call."""

    def __post_init__(self) -> None:
        if self.group:
            check_name("group", self.group)
        if self.reason is not None and self.reason not in REASONS:
            raise InvalidInput("reason", self.reason, f"one of {', '.join(REASONS)}")
        older_ms = 0 if self.older_than is None else duration_ms("older_than", self.older_than)
        if self.since is not None and duration_ms("since", self.since) <= older_ms:
            longer = "longer than 0 s" if self.older_than is None else f"longer than older_than, {self.older_than}"
            raise InvalidInput("since", self.since, longer)
        if self.as_of is not None:
            moment_ms("as_of", self.as_of)
        for name, text in (("error", self.error), ("release", self.release)):
            if text is not None and not isinstance(text, str):
                raise InvalidInput(name, text, "text")


ALL_GARBAGE = GarbageFilter()


@dataclass(frozen=True, slots=True)
class GarbageList:
    """Dead letters by their time of death, the latest first unless asked otherwise."""

    letters: tuple[DeadLetter, ...]
    more: bool
    """Whether the limit left out others."""


@dataclass(frozen=True, slots=True)
class BulkResult:
    """The outcome of a replay, a purge or a cancel of many."""

    done: int
    """Dead letters that were replayed or purged, or messages that were cancelled."""
    failed: Mapping[str, int]
    """How many were not, by reason: "unknown" (not in the garbage), "unreadable" (the record is damaged), "no group"
    (the group was dropped), "passed over" (named, but not selected by the filter). Of a cancel: messages that have left
    the waiting set meanwhile, by `CancelOutcome`."""
    stopped: bool = False
    """Whether `on_progress` ended it early."""
    unknown: Sequence[str] = field(default=(), compare=False)
    """The ids that were named, and are not in the garbage."""


def selector_of(where: GarbageFilter) -> Flow[Selector]:
    """The selector of a filter, whose times are those of the server's clock."""
    if not isinstance(where, GarbageFilter):
        raise InvalidInput("where", where, "a GarbageFilter")
    selector = Selector(where.group, where.reason, error=where.error, release=where.release)
    if where.older_than is None and where.since is None and where.as_of is None:
        return selector
    now: int = (yield server_time()) if where.as_of is None else moment_ms("as_of", where.as_of)
    before_ms = now if where.as_of else None
    if where.older_than is not None:
        before_ms = now - duration_ms("older_than", where.older_than)
    after_ms = None if where.since is None else now - duration_ms("since", where.since)
    return replace(selector, died_before_ms=before_ms, died_after_ms=after_ms)


def dead_letters(
    prefix: str, topic: str, where: GarbageFilter, limit: int, *, oldest_first: bool = False
) -> Flow[GarbageList]:
    """Lists dead letters of all shards."""
    check_int("limit", limit, 1, _MOST_LISTED)
    check_bool("oldest_first", oldest_first)
    layout = yield from require_topic(prefix, topic)
    selector = yield from selector_of(where)
    shards = [Pages(keys, selector, newest_first=not oldest_first) for keys in layout.served]
    letters, direction = list[DeadLetter](), 1 if oldest_first else -1
    for pages in read_merged(shards):
        # One more than the limit tells that there is more.
        if pages.edge is not None and len(letters) > limit:
            letters.sort(key=lambda letter: letter.died_ms * direction)
            if letters[limit - 1].died_ms * direction <= pages.edge * direction:
                # What is left in any shard comes later.
                break
        letters += yield from pages.next_page()
    letters.sort(key=lambda letter: letter.died_ms * direction)
    if not letters:
        yield from require_group(layout, where.group)
    return GarbageList(tuple(letters[:limit]), len(letters) > limit)


def count(prefix: str, topic: str, where: GarbageFilter = ALL_GARBAGE) -> Flow[int]:
    """How many selected dead letters a topic holds. Whatever selects by more than their times looks at each."""
    layout = yield from require_topic(prefix, topic)
    selector = yield from selector_of(where)
    if not selector.needs_look:
        return (yield from count_all(layout, selector))
    selected = 0
    for keys in layout.served:
        pages = Pages(keys, selector)
        while not pages.done:
            selected += len((yield from pages.next_page()))
    if not selected:
        yield from require_group(layout, where.group)
    return selected


def count_all(layout: Layout, selector: Selector) -> Flow[int]:
    """How many dead letters died at the times that are selected."""
    return sum((yield [shard.count(keys, selector) for keys in layout.served]))


_Verb = Callable[[ShardKeys, Sequence[DeadLetter]], Flow[list[str]]]


def replay(
    prefix: str, topic: str, ids: Sequence[str] | None, where: GarbageFilter, on_progress: OnProgress | None
) -> Flow[BulkResult]:
    """Replays the dead letters of these messages, or all with None."""
    return (yield from _run(_Bulk("replayed", shard.replay, on_progress), prefix, topic, ids, where))


def purge(
    prefix: str, topic: str, ids: Sequence[str] | None, where: GarbageFilter, on_progress: OnProgress | None
) -> Flow[BulkResult]:
    """Purges the dead letters of these messages, or all with None."""
    return (yield from _run(_Bulk("purged", shard.purge, on_progress), prefix, topic, ids, where))


def _run(bulk: "_Bulk", prefix: str, topic: str, ids: Sequence[str] | None, where: GarbageFilter) -> Flow[BulkResult]:
    check_callable("on_progress", bulk.on_progress)
    layout = yield from require_topic(prefix, topic)
    selector = yield from selector_of(where)
    stopped = False
    try:
        yield from bulk.on_all(layout, selector) if ids is None else bulk.on_named(layout, ids, selector)
    except StopBulk:
        stopped = True
    failed = {name: number for name, number in sorted(bulk.outcomes.items()) if name != bulk.done and number}
    return BulkResult(bulk.outcomes[bulk.done], failed, stopped, bulk.unknown)


@dataclass(slots=True)
class _Bulk:
    """Replays or purges dead letters batch by batch, and counts the outcomes."""

    done: str
    verb: _Verb
    on_progress: OnProgress | None
    outcomes: Counter[str] = field(default_factory=Counter)
    unknown: Sequence[str] = ()

    def on_named(self, layout: Layout, ids: Sequence[str], selector: Selector) -> Flow[None]:
        """Works on the dead letters of these messages."""
        missing, total = list(ids), len(ids)
        for shards in (layout.shards, *layout.former.values()):
            places, missing = by_shard(missing, partial(home, shards)), []
            for keys, of_shard in places.items():
                letters, unknown = yield from shard.named(keys, of_shard)
                selected = [letter for letter in letters if selector.matches(letter)]
                yield from self._work(keys, selected)
                self.outcomes["passed over"] += len({x.id for x in letters} - {x.id for x in selected})
                missing += unknown
            self._report(total - len(missing), total)
        self.outcomes["unknown"] += len(missing)
        self.unknown = missing

    def on_all(self, layout: Layout, selector: Selector) -> Flow[None]:
        """Works on all selected dead letters, oldest first. Leaves out those that die meanwhile, so it ends."""
        now = (yield server_time()) + 1
        selector = replace(selector, died_before_ms=min(now, selector.died_before_ms or now))
        total, done = (yield from count_all(layout, selector)), 0
        for keys in layout.served:
            pages = Pages(keys, selector)
            while not pages.done:
                before = pages.seen
                yield from self._work(keys, (yield from pages.next_page()))
                done += pages.seen - before
                self._report(done, max(total, done))

    def _work(self, keys: ShardKeys, letters: Sequence[DeadLetter]) -> Flow[None]:
        for batch in chunks(letters, shard.AT_ONCE):
            self.outcomes.update((yield from self.verb(keys, batch)))

    def _report(self, done: int, total: int) -> None:
        if self.on_progress is not None:
            self.on_progress(done, total)
