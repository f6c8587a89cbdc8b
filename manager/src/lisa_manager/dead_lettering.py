"""Moving dead letters of one shard to the dead letter topic of its policy: send to the new topic, then purge.

A crash between the two repeats the send, which the id of the dead letter makes one message while the new topic's dedup
window lasts. Only dead letters that were sent are purged.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from lisa_common.errors import OF_THE_SERVER, LisaError, Refused, Resharded, ServerError
from lisa_common.model.death import FIRST_ID, Death, add_death, dead_letter_id, is_cycle
from lisa_common.model.keys import ShardKeys
from lisa_common.model.message import Outgoing
from lisa_common.model.policy import Policy
from lisa_common.model.record import Record, pack_content
from lisa_common.model.sharding import Layout, by_shard
from lisa_common.protocol import managing, paging, producing
from lisa_common.protocol.call import Flow
from lisa_common.protocol.consuming import server_time
from lisa_common.protocol.paging import Listed, Point
from lisa_common.protocol.producing import State
from lisa_common.protocol.registry import Topics
from lisa_common.protocol.scripts import Arg
from lisa_manager.resharding import known_in_former

__all__ = ["Moved", "move_page"]

_PAGE: Final = 200

_END: Final = Point(inf, b"\xff" * 1_024)
"""Behind every member, even one with a foreign score."""

_FRESH_S: Final = 10.0
"""A page read longer ago is read again. Another manager may have moved its letters meanwhile, and the new topic may
have forgotten them: it remembers each for its dedup window, which should be longer."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The result of one page of garbage."""

    rest: Point
    """Where the next page begins."""
    now_ms: int
    moved: int = 0
    kept: int = 0
    """Letters that stay garbage: in a cycle without a rejection, or without a readable record."""
    aged_out: int = 0
    """Letters that would stay, and were removed by the garbage limits."""
    oldest_kept_ms: int | None = None
    at_end: bool = False
    error: LisaError | None = None
    """Why the new topic did not take all letters; these are met again at `rest`."""


@dataclass(frozen=True, slots=True)
class _Letter:
    copy: str
    died_ms: int
    outgoing: Outgoing


def move_page(
    keys: ShardKeys,
    policy: Policy,
    topics: Topics,
    start: Point,
    *,
    excess: int = 0,
    clock: Callable[[], float] = time.monotonic,
    now_ms: Arg = "",
) -> Flow[Moved]:
    """Moves the dead letters of one page to the policy's dead letter topic, which is declared if it is missing.

    `excess` letters that would have to stay, oldest first, are removed instead, as are those older than the garbage
    retention. `topics` caches the layouts of new topics. The ids of moved letters stay known for the dedup window,
    which begins at `now_ms` or the server's time.
    """
    target = policy.dead_letter_topic
    if target is None:
        raise ValueError(f"{keys.topic} has no dead letter topic")
    began = clock()
    page, server_ms = yield [paging.list_messages(keys, State.GARBAGE, start, _END, limit=_PAGE), server_time()]
    layout = yield from topics.resolve(target)
    letters, staying = _sort(keys, page.messages, policy, layout)
    kept = yield from _age_out(keys, staying, excess, server_ms - policy.garbage_retention_ms)
    aged_out = len(staying) - len(kept)
    sent, error = letters, None
    if letters:
        if clock() - began > _FRESH_S:
            return Moved(start, server_ms, aged_out=aged_out)
        sent, error = yield from _send(topics, target, letters)
    if sent:
        copies, died_ms = [letter.copy for letter in sent], [letter.died_ms for letter in sent]
        # The ids stay known: a manager that was stopped may send a letter once more that has left this topic again.
        yield managing.purge(keys, copies, died_ms, window_ms=policy.dedup_window_ms, now_ms=now_ms)
    if len(sent) < len(letters):
        return Moved(start, server_ms, len(sent), aged_out=aged_out, error=error)
    oldest_kept_ms = min((listed.at_ms for listed in kept), default=None)
    rest = page.behind or start
    return Moved(rest, server_ms, len(sent), len(kept), aged_out, oldest_kept_ms, at_end=page.rest is None)


def _age_out(keys: ShardKeys, staying: Sequence[Listed], excess: int, oldest_ms: int) -> Flow[list[Listed]]:
    """Removes so many letters, and those that died until then. Returns the others."""
    kept, aged = list[Listed](), list[Listed]()
    for at, listed in enumerate(staying):
        (aged if at < excess or listed.at_ms <= oldest_ms else kept).append(listed)
    if aged:
        yield managing.purge(keys, [listed.member for listed in aged], [listed.at_ms for listed in aged])
    return kept


def _send(topics: Topics, target: str, letters: Sequence[_Letter]) -> Flow[tuple[list[_Letter], LisaError | None]]:
    """Sends letters. Returns the stored ones, and why the new topic refused the others."""
    layout = yield from topics.declare(target)
    parts = _by_shard(layout, letters)
    sent: list[_Letter] = []
    while parts:
        shard, part = parts.pop(0)
        try:
            known = yield from known_in_former(layout, [letter.outgoing.id for letter in part])
            new = [letter for letter in part if letter.outgoing.id not in known]
            count, error = yield from _store(shard, new)
        except Resharded:
            before, layout = layout, (yield from topics.resolve_again(target))
            if layout == before:
                return sent, Refused(f"{target} was resharded, and the registry does not say where new messages go")
            parts = _by_shard(layout, [*part, *(letter for _, rest in parts for letter in rest)])
            continue
        refused = new[count:]
        sent += [letter for letter in part if letter not in refused]
        if error:
            return sent, error
    return sent, None


def _by_shard(layout: Layout, letters: Sequence[_Letter]) -> list[tuple[ShardKeys, list[_Letter]]]:
    return list(by_shard(letters, lambda letter: layout.home(letter.outgoing.id)).items())


def _store(keys: ShardKeys, letters: Sequence[_Letter]) -> Flow[tuple[int, LisaError | None]]:
    """Stores letters in one shard.

    If it refuses many at once, tries fewer, as it may have room for some. Returns how many it stored, from the first
    on, and why not more.
    """
    size, error = len(letters), None
    while size:
        try:
            yield producing.send(keys, [letter.outgoing for letter in letters[:size]], repeatable=True)
        except ServerError as refused:
            if isinstance(refused, Resharded) or (
                isinstance(refused, OF_THE_SERVER) and not isinstance(refused, Refused)
            ):
                raise
            size, error = size // 2, refused
        else:
            break
    return size, error


def _sort(
    keys: ShardKeys, page: Sequence[Listed], policy: Policy, layout: Layout
) -> tuple[list[_Letter], list[Listed]]:
    """Makes messages for the new topic from a page of garbage. Returns these, and the letters that have to stay."""
    letters, staying = list[_Letter](), list[Listed]()
    for listed in page:
        if letter := _letter_of(keys, listed, policy, layout):
            letters.append(letter)
        else:
            staying.append(listed)
    return letters, staying


def _letter_of(keys: ShardKeys, listed: Listed, policy: Policy, layout: Layout) -> _Letter | None:
    """The message that a dead letter becomes; None where it has to stay."""
    record, failure, group = listed.record, listed.failure, listed.group or ""
    if record is None:
        return None
    if failure and failure.entry != "0-0" and _is_of_another(failure.due_ms, failure.entry, record):
        return None
    headers, history = add_death(
        record.headers,
        Death.of(
            *(keys.topic, failure.reason if failure else "unknown", listed.at_ms),
            original_ttl_ms=record.ttl_ms,
            group=group,
            id=listed.id,
            attempts=failure.attempts if failure else 0,
            error=failure.error if failure else "",
        ),
    )
    if is_cycle(history, layout.topic):
        return None
    content = pack_content(
        record.body,
        ttl_ms=layout.policy.ttl_ms,
        max_retries=record.max_retries,
        priority=record.priority,
        headers=json.dumps(headers, separators=(",", ":")).encode(),
    )
    id = dead_letter_id(keys.topic, group, listed.id, listed.at_ms, headers[FIRST_ID])
    return _Letter(listed.member, listed.at_ms, Outgoing(id, f"+{policy.dead_letter_delay_ms}", content))


def _is_of_another(due_ms: int, entry: str, record: Record) -> bool:
    """Whether a failure is of an earlier message of the same id, as `is_current` in `lua/include/forget.lua`."""
    return due_ms != record.due_ms or int(entry.partition("-")[0]) < record.sent_ms
