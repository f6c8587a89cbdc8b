"""Dead letters of a whole topic: listed, counted, replayed and purged in bounded steps."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from lisa_common.errors import InvalidInput
from lisa_common.model.keys import ShardKeys
from lisa_common.model.sharding import Layout, by_shard, home
from lisa_common.protocol.call import Flow
from lisa_common.protocol.consuming import server_time
from lisa_common.validation import Duration, check_callable, check_int, check_name, duration_ms
from lisa_manager.admin import garbage
from lisa_manager.admin.garbage import REASONS, DeadLetter, Pages, Selector
from lisa_manager.admin.queries import existing

__all__ = [
    "ALL_GARBAGE",
    "BulkResult",
    "GarbageFilter",
    "GarbageList",
    "OnProgress",
    "StopBulk",
    "count",
    "dead_letters",
    "purge",
    "replay",
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

    def __post_init__(self) -> None:
        if self.group:
            check_name("group", self.group)
        if self.reason is not None and self.reason not in REASONS:
            raise InvalidInput("reason", self.reason, f"one of {', '.join(REASONS)}")
        if self.older_than is not None:
            duration_ms("older_than", self.older_than)


ALL_GARBAGE = GarbageFilter()


@dataclass(frozen=True, slots=True)
class GarbageList:
    """Dead letters, the latest first."""

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


def _selector(where: GarbageFilter) -> Flow[Selector]:
    if not isinstance(where, GarbageFilter):
        raise InvalidInput("where", where, "a GarbageFilter")
    if where.older_than is None:
        return Selector(where.group, where.reason)
    now: int = yield server_time()
    return Selector(where.group, where.reason, now - duration_ms("older_than", where.older_than))


def dead_letters(prefix: str, topic: str, where: GarbageFilter, limit: int) -> Flow[GarbageList]:
    """Lists dead letters of all shards."""
    check_int("limit", limit, 1, _MOST_LISTED)
    layout = yield from existing(prefix, topic)
    selector = yield from _selector(where)
    letters, more = list[DeadLetter](), False
    for keys in layout.served:
        pages, of_shard = Pages(keys, selector, newest_first=True), list[DeadLetter]()
        while not pages.done and len(of_shard) < limit:
            of_shard += yield from pages.next_page()
        letters += of_shard
        more = more or not pages.done
    letters.sort(key=lambda letter: -letter.died_ms)
    return GarbageList(tuple(letters[:limit]), more or len(letters) > limit)


def count(prefix: str, topic: str, where: GarbageFilter = ALL_GARBAGE) -> Flow[int]:
    """How many selected dead letters a topic holds. A group or a reason takes a look at each of them."""
    layout = yield from existing(prefix, topic)
    selector = yield from _selector(where)
    if selector.group is None and selector.reason is None:
        return (yield from _count(layout, selector.died_before_ms))
    selected = 0
    for keys in layout.served:
        pages = Pages(keys, selector)
        while not pages.done:
            selected += len((yield from pages.next_page()))
    return selected


def _count(layout: Layout, before_ms: int | None = None) -> Flow[int]:
    return sum((yield [garbage.count(keys, before_ms) for keys in layout.served]))


_Verb = Callable[[ShardKeys, Sequence[DeadLetter]], Flow[list[str]]]


def replay(
    prefix: str, topic: str, ids: Sequence[str] | None, where: GarbageFilter, on_progress: OnProgress | None
) -> Flow[BulkResult]:
    """Replays the dead letters of these messages, or all with None."""
    return (yield from _run(_Bulk("replayed", garbage.replay, on_progress), prefix, topic, ids, where))


def purge(
    prefix: str, topic: str, ids: Sequence[str] | None, where: GarbageFilter, on_progress: OnProgress | None
) -> Flow[BulkResult]:
    """Purges the dead letters of these messages, or all with None."""
    return (yield from _run(_Bulk("purged", garbage.purge, on_progress), prefix, topic, ids, where))


def _run(bulk: "_Bulk", prefix: str, topic: str, ids: Sequence[str] | None, where: GarbageFilter) -> Flow[BulkResult]:
    check_callable("on_progress", bulk.on_progress)
    layout = yield from existing(prefix, topic)
    selector = yield from _selector(where)
    stopped = False
    try:
        yield from bulk.on_all(layout, selector) if ids is None else bulk.on_named(layout, ids, selector)
    except StopBulk:
        stopped = True
    failed = {name: number for name, number in sorted(bulk.outcomes.items()) if name != bulk.done and number}
    return BulkResult(bulk.outcomes[bulk.done], failed, stopped)


@dataclass(slots=True)
class _Bulk:
    """Replays or purges dead letters batch by batch, and counts the outcomes."""

    done: str
    verb: _Verb
    on_progress: OnProgress | None
    outcomes: Counter[str] = field(default_factory=Counter)

    def on_named(self, layout: Layout, ids: Sequence[str], selector: Selector) -> Flow[None]:
        """Works on the dead letters of these messages."""
        missing, total = list(ids), len(ids)
        for shards in (layout.shards, *layout.former.values()):
            places, missing = by_shard(missing, partial(home, shards)), []
            for keys, of_shard in places.items():
                letters, unknown = yield from garbage.named(keys, of_shard)
                selected = [letter for letter in letters if selector.matches(letter)]
                yield from self._work(keys, selected)
                self.outcomes["passed over"] += len({x.id for x in letters} - {x.id for x in selected})
                missing += unknown
            self._report(total - len(missing), total)
        self.outcomes["unknown"] += len(missing)

    def on_all(self, layout: Layout, selector: Selector) -> Flow[None]:
        """Works on all selected dead letters, oldest first. Leaves out those that die meanwhile, so it ends."""
        now = (yield server_time()) + 1
        selector = replace(selector, died_before_ms=min(now, selector.died_before_ms or now))
        total, done = (yield from _count(layout, selector.died_before_ms)), 0
        for keys in layout.served:
            pages = Pages(keys, selector)
            while not pages.done:
                before = pages.seen
                yield from self._work(keys, (yield from pages.next_page()))
                done += pages.seen - before
                self._report(done, max(total, done))

    def _work(self, keys: ShardKeys, letters: Sequence[DeadLetter]) -> Flow[None]:
        for batch in garbage.batches(letters):
            self.outcomes.update((yield from self.verb(keys, batch)))

    def _report(self, done: int, total: int) -> None:
        if self.on_progress is not None:
            self.on_progress(done, total)
