"""Why dead letters died: counted by cause, the latest ones of a topic, in bounded memory."""

from dataclasses import dataclass
from typing import ClassVar, Final

from pydantic import ConfigDict

from lisa_common.model.failure import first_line
from lisa_common.protocol.call import Flow
from lisa_common.validation import check_int
from lisa_manager.admin.garbage.bulk import GarbageFilter, count_all, selector_of
from lisa_manager.admin.garbage.shard import DeadLetter, Pages, read_merged
from lisa_manager.admin.groups.debts import require_group
from lisa_manager.queries import PAGE, require_topic

__all__ = ["GarbageCause", "GarbageSummary", "summarize"]

_MOST_LOOKED: Final = 10_000_000
_MOST_CAUSES: Final = 1_000
"""Errors may quote ids: then each dead letter is a cause of its own."""


@dataclass(frozen=True, slots=True)
class GarbageCause:
    """Dead letters that died for the same reason and error, in one group, by handlers of one release."""

    # For the OpenAPI document.
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(use_attribute_docstrings=True)

    reason: str
    error: str
    """The first line of the error, up to 200 characters; empty where it is lost."""
    group: str
    """The group, empty for none."""
    release: str
    """The release of the handler, empty where it is unknown."""
    count: int
    first_ms: int
    """When the first of them died: server time, in ms."""
    last_ms: int
    """When the last of them died."""
    last_id: str
    """The message that died last."""
    trace: tuple[str, ...]
    """The last frames of the traceback of that message, the innermost last."""


@dataclass(frozen=True, slots=True)
class GarbageSummary:
    """Dead letters by cause."""

    # For the OpenAPI document.
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(use_attribute_docstrings=True)

    causes: tuple[GarbageCause, ...]
    """The most frequent first: up to 1,000, those that were met first."""
    counted: int
    """Selected dead letters, those of the causes and the others."""
    others: int
    """Selected dead letters of further causes."""
    looked: int
    """Dead letters that were looked at, the latest ones."""
    total: int
    """Dead letters that there were to look at."""
    more: bool
    """Whether the limit left out earlier ones."""


@dataclass(slots=True)
class _Tally:
    """Dead letters of one cause."""

    count: int
    first_ms: int
    last: DeadLetter

    def add(self, letter: DeadLetter) -> None:
        self.count += 1
        self.first_ms = min(self.first_ms, letter.died_ms)
        # Of several shards, one is read on while another is behind.
        if letter.died_ms > self.last.died_ms:
            self.last = letter

    def as_cause(self) -> GarbageCause:
        last = self.last
        trace = last.failure.trace if last.failure else ()
        return GarbageCause(*_cause_of(last), self.count, self.first_ms, last.died_ms, last.id, trace)


def _cause_of(letter: DeadLetter) -> tuple[str, str, str, str]:
    return letter.reason, first_line(letter.error), letter.group, letter.release


def summarize(prefix: str, topic: str, where: GarbageFilter, limit: int) -> Flow[GarbageSummary]:
    """Counts the latest dead letters of all shards by cause."""
    check_int("limit", limit, 1, _MOST_LOOKED)
    layout = yield from require_topic(prefix, topic)
    selector = yield from selector_of(where)
    total = yield from count_all(layout, selector)
    size = min(PAGE, -(-limit // len(layout.served)))
    shards = [Pages(keys, selector, newest_first=True, size=size) for keys in layout.served]
    tallies, counted, looked = dict[tuple[str, ...], _Tally](), 0, 0
    for pages in read_merged(shards):
        if looked >= limit:
            break
        for letter in (yield from pages.next_page()):
            counted += 1
            cause = _cause_of(letter)
            if cause in tallies:
                tallies[cause].add(letter)
            elif len(tallies) < _MOST_CAUSES:
                tallies[cause] = _Tally(1, letter.died_ms, letter)
        looked = sum(each.seen for each in shards)
    if not counted:
        yield from require_group(layout, where.group)
    causes = sorted((tally.as_cause() for tally in tallies.values()), key=lambda cause: (-cause.count, -cause.last_ms))
    others = counted - sum(cause.count for cause in causes)
    more = looked < total and not all(pages.done for pages in shards)
    return GarbageSummary(tuple(causes), counted, others, looked, max(total, looked), more)
