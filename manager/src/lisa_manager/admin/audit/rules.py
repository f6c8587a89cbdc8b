"""Audits promise 9: each live message is in exactly one place per group, and each place has its record.

It has no I/O: it derives the problems, and the steps that repair them, from the evidence of a message.
"""

from collections.abc import Iterator, Mapping, Sequence

from lisa_common.model.delivery import Entry
from lisa_common.model.keys import NO_GROUP, copy_of
from lisa_common.model.record import Head
from lisa_common.model.scores import whole_ms
from lisa_common.validation import GENERATED_SUFFIX, MAX_DELAY_S
from lisa_manager.admin.audit.evidence import Copy, Evidence, GroupState
from lisa_manager.admin.audit.problem import Kind, Problem, Step

__all__ = ["audit"]

Groups = Mapping[str, GroupState]
_ENTRY = "entry "
_LATEST_MS = (MAX_DELAY_S + 86_400) * 1000
"""The longest delay, and one day more."""
_EXACT_MS = 2**45
"""Scores of later due times have no room for the priority, and may be a millisecond less."""


def audit(evidence: Evidence, groups: Groups, now_ms: int) -> list[Problem]:
    """The problems of one message."""
    return list(_problems(evidence, groups, now_ms))


def _problems(evidence: Evidence, groups: Groups, now_ms: int) -> Iterator[Problem]:
    head = evidence.head
    if not _is_ours(evidence.id):
        yield _foreign(evidence)
        return
    if head is None:
        yield from _without_record(evidence, groups)
    elif head.cancelled:
        yield from _cancelled(evidence, head, groups)
    elif not head.readable:
        yield _unreadable(evidence, head, groups, now_ms)
    else:
        yield from _message(evidence, head, groups, now_ms)
    generated = evidence.id.endswith(GENERATED_SUFFIX)
    # A message that several groups owe gets its tombstone at the first ack.
    unacked = head is not None and (evidence.owed is None or evidence.waiting is not None)
    alive = unacked and evidence.finished is not None and evidence.finished > now_ms
    if evidence.finished is not None and _is_never(evidence.finished, now_ms):
        yield _dangling(evidence.id, "a tombstone that never expires", ("ZREM", "finished", evidence.id, ""))
    elif evidence.finished is not None and (generated or alive):
        detail = "a tombstone of a generated id" if generated else "a tombstone of a live message"
        yield _dangling(evidence.id, detail, ("ZREM", "finished", evidence.id, ""))


def _is_never(score: float, now_ms: int) -> bool:
    """Whether a time is later than any that Lisa sets."""
    return score > now_ms + _LATEST_MS


# Not ours


def _is_ours(id: str) -> bool:
    """Whether programs can read the id: it is not empty, and was valid UTF-8."""
    return bool(id) and not any("\ud800" <= character <= "\udfff" for character in id)


def _foreign(evidence: Evidence) -> Problem:
    id = evidence.id
    steps: list[Step] = [("HDEL", name, id, "") for name in ("messages", "owed")]
    steps += [("ZREM", name, id, "") for name in ("waiting", "expiring", "finished")]
    for group in evidence.copies:
        steps += _without_copy(id, group)
    return Problem(Kind.FOREIGN, id, NO_GROUP, "an id that no program can read or send", tuple(steps))


def _unreadable(evidence: Evidence, head: Head, groups: Groups, now_ms: int) -> Problem:
    """A consumer that reads it moves it to garbage. So it must have a place, and become due."""
    places = {
        group: _places(evidence, evidence.entries, group, groups) for group in {*groups, *evidence.copies, NO_GROUP}
    }
    steps: tuple[Step, ...] = ()
    if evidence.waiting is not None and _is_never(evidence.waiting, now_ms):
        steps = (("ZADD", "waiting", evidence.id, now_ms),)
    elif evidence.waiting is None and not any(places.values()):
        steps = _lost(evidence, head, list(groups)).steps
    return Problem(Kind.UNREADABLE, evidence.id, NO_GROUP, "the record is damaged, or of a later release", steps)


# Without a record


def _without_record(evidence: Evidence, groups: Groups) -> Iterator[Problem]:
    id = evidence.id
    if evidence.waiting is not None:
        yield Problem(Kind.STRAY, id, NO_GROUP, "waits, but has no record", (("ZREM", "waiting", id, ""),))
    for group, copy in evidence.copies.items():
        if copy.retry is not None or copy.garbage is not None:
            where = "retry" if copy.retry is not None else "garbage"
            yield Problem(Kind.STRAY, id, group, f"in {where}, but has no record", tuple(_without_copy(id, group)))
        elif copy.failed:
            yield _dangling_failure(id, group)
    if evidence.owed is not None:
        yield Problem(Kind.OWED, id, NO_GROUP, "owed, but has no record", (("HDEL", "owed", id, ""),))
    if evidence.expiring is not None:
        yield _dangling(id, "expiring, but has no record", ("ZREM", "expiring", id, ""))
    yield from _stray_entries(id, evidence.entries, groups)


def _without_copy(id: str, group: str) -> Iterator[Step]:
    copy = copy_of(group, id)
    yield "ZREM", "retry", copy, ""
    yield "ZREM", "garbage", copy, ""
    yield "HDEL", "failures", copy, ""


def _stray_entries(id: str, entries: Sequence[Entry], groups: Groups) -> Iterator[Problem]:
    for entry in entries:
        if _live(entry, groups):
            acks: list[Step] = [("ack", "ready", entry.entry, g) for g, s in groups.items() if entry.entry in s.pending]
            steps = (*acks, ("XDEL", "ready", entry.entry, ""))
            yield Problem(Kind.STRAY, id, entry.group or NO_GROUP, f"entry {entry.entry} has no record", steps)


def _live(entry: Entry, groups: Groups) -> bool:
    """Whether any group has the entry or may still read it. Without groups, a later group will."""
    if entry.group is not None:
        return entry.group in groups and groups[entry.group].has(entry)
    return not groups or any(state.has(entry) for state in groups.values())


def _dangling(id: str, detail: str, *steps: Step) -> Problem:
    return Problem(Kind.DANGLING, id, NO_GROUP, detail, steps)


def _dangling_failure(id: str, group: str) -> Problem:
    step: Step = ("HDEL", "failures", copy_of(group, id), "")
    return Problem(Kind.DANGLING, id, group, "a failure of a copy that does not exist", (step,))


# Cancelled


def _cancelled(evidence: Evidence, head: Head, groups: Groups) -> Iterator[Problem]:
    """A cancelled record is legitimate until a consumer has skipped its last entry."""
    if any(head.is_of(entry.due_ms) and _live(entry, groups) for entry in evidence.entries):
        return
    id = evidence.id
    steps: list[Step] = [("HDEL", "messages", id, ""), ("HDEL", "owed", id, ""), ("ZREM", "expiring", id, "")]
    for group in evidence.copies:
        steps += _without_copy(id, group)
    yield Problem(Kind.LOST, id, NO_GROUP, "cancelled, and its last entry is gone; it only blocks the id", tuple(steps))


# Alive


def _message(evidence: Evidence, head: Head, groups: Groups, now_ms: int) -> Iterator[Problem]:
    id = evidence.id
    of_others = [entry for entry in evidence.entries if not head.is_of(entry.due_ms)]
    yield from _stray_entries(id, of_others, groups)
    own = [entry for entry in evidence.entries if head.is_of(entry.due_ms)]
    places = {group: _places(evidence, own, group, groups) for group in {*groups, *evidence.copies, NO_GROUP}}
    if evidence.waiting is not None:
        yield from _waiting(evidence, head, places)
    elif _should_wait(evidence, head, now_ms) and not any(places.values()):
        yield _lost_waiting(evidence)
    else:
        yield from _copies(evidence, head, groups, places)
    yield from _dangling_failures(evidence, head, groups)
    yield from _expiry(evidence, head, places, now_ms)
    yield from _never(evidence, now_ms)


def _places(evidence: Evidence, own: Sequence[Entry], group: str, groups: Groups) -> list[str]:
    """The places of a group's copy. "No group" has dead messages that no group had, and streams without groups."""
    copy = evidence.copies.get(group, Copy())
    places = ["retry"] * (copy.retry is not None) + ["garbage"] * (copy.garbage is not None)
    if group in groups:
        owes = evidence.owed is None or group in evidence.owed
        mine = [e for e in own if e.group == group or (e.group is None and owes)]
        places += [f"{_ENTRY}{entry.entry}" for entry in mine if groups[group].has(entry)]
    elif group == NO_GROUP and not groups:
        places += [f"{_ENTRY}{entry.entry}" for entry in own if entry.group is None]
    return places


def _waiting(evidence: Evidence, head: Head, places: Mapping[str, list[str]]) -> Iterator[Problem]:
    id = evidence.id
    others = [f"{place} of {group}" if group else place for group, names in places.items() for place in names]
    if evidence.waiting is not None and not _is_score_of(evidence.waiting, head.due_ms):
        detail = f"waits until {evidence.waiting:.15g}, but its record says {head.due_ms}"
        # Scripts write both in one step, so another program wrote the score.
        yield Problem(Kind.WRONG_TIME, id, NO_GROUP, detail, () if others else (("wait", "waiting", id, ""),))
    if others:
        yield Problem(Kind.TWICE, id, NO_GROUP, f"waits, and is in {', '.join(sorted(others))}")
    elif evidence.owed is not None:
        yield Problem(Kind.OWED, id, NO_GROUP, "owed while it waits", (("HDEL", "owed", id, ""),))


def _is_score_of(score: float, due_ms: int | None) -> bool:
    due_then = whole_ms(score)
    return due_then == due_ms or (due_ms is not None and due_ms >= _EXACT_MS and due_then == due_ms - 1)


def _copies(evidence: Evidence, head: Head, groups: Groups, places: Mapping[str, list[str]]) -> Iterator[Problem]:
    for group, of_group in places.items():
        if len(of_group) > 1:
            yield Problem(Kind.TWICE, evidence.id, group, f"in {', '.join(of_group)} at once")
        if group and group not in groups and of_group:
            yield Problem(Kind.DEAD_GROUP, evidence.id, group, f"in {of_group[0]} of a dropped group")
    holders = [group for group, of_group in places.items() if of_group]
    if places[NO_GROUP]:
        if also := sorted(groups.keys() & holders):
            yield Problem(Kind.TWICE, evidence.id, NO_GROUP, f"in {places[NO_GROUP][0]} of no group, and in {also[0]}")
    elif evidence.owed is not None:
        yield from _owed(evidence, evidence.owed, head, groups, places)
    elif not holders:
        yield _lost(evidence, head, list(groups))
    elif len(holders) > 1:
        names = ",".join(sorted(holders))
        step: Step = ("HSET", "owed", evidence.id, names)
        yield Problem(Kind.OWED, evidence.id, NO_GROUP, f"in groups {names}, but owed by none of them", (step,))


def _owed(
    evidence: Evidence, owed: Sequence[str], head: Head, groups: Groups, places: Mapping[str, list[str]]
) -> Iterator[Problem]:
    id = evidence.id
    alive = [group for group in owed if group in groups]
    for group in owed:
        if group not in groups and not places.get(group):
            step: Step = ("HSET", "owed", id, ",".join(alive))
            yield Problem(Kind.DEAD_GROUP, id, group, "owed by a dropped group", (step,) if alive else ())
    for group in alive:
        if not places[group]:
            yield _lost(evidence, head, [group])
    for group, of_group in places.items():
        if of_group and group in groups and group not in owed:
            steps = [*_without_copy(id, group)]
            for place in of_group:
                if entry := place.removeprefix(_ENTRY) if place.startswith(_ENTRY) else "":
                    steps += [("ack", "ready", entry, group), ("XDEL", "ready", entry, "")]
            yield Problem(Kind.STRAY, id, group, f"in {of_group[0]}, but not owed by it", tuple(steps))


def _lost(evidence: Evidence, head: Head, names: Sequence[str]) -> Problem:
    """Repaired by making it ready in these groups, or for a later group where there are none."""
    due = head.due_ms or 0
    steps: list[Step] = [("ready", group, evidence.id, due) for group in names or [NO_GROUP]]
    if evidence.owed is None and len(names) > 1:
        steps.append(("HSET", "owed", evidence.id, ",".join(sorted(names))))
    group = names[0] if len(names) == 1 else NO_GROUP
    return Problem(Kind.LOST, evidence.id, group, "has a record, but no place", tuple(steps))


def _should_wait(evidence: Evidence, head: Head, now_ms: int) -> bool:
    # A delivered message was due: the clock was set back since.
    delivered = any(copy.failure and copy.failure.due_ms == head.due_ms for copy in evidence.copies.values())
    return head.due_ms is not None and head.due_ms > now_ms and not delivered


def _lost_waiting(evidence: Evidence) -> Problem:
    steps: list[Step] = [("HDEL", "owed", evidence.id, ""), ("wait", "waiting", evidence.id, "")]
    return Problem(Kind.LOST, evidence.id, NO_GROUP, "is due later, but does not wait", tuple(steps))


def _dangling_failures(evidence: Evidence, head: Head, groups: Groups) -> Iterator[Problem]:
    for group, copy in evidence.copies.items():
        if not copy.failed or copy.retry is not None or copy.garbage is not None:
            continue
        owes = group in groups and (evidence.owed is None or group in evidence.owed) and evidence.waiting is None
        another = copy.failure is not None and copy.failure.due_ms != head.due_ms
        if not owes or another:
            yield _dangling_failure(evidence.id, group)


def _never(evidence: Evidence, now_ms: int) -> Iterator[Problem]:
    for group, copy in evidence.copies.items():
        for name in ("retry", "garbage"):
            score = getattr(copy, name)
            if score is not None and _is_never(score, now_ms):
                step: Step = ("ZADD", name, copy_of(group, evidence.id), now_ms)
                yield Problem(Kind.WRONG_TIME, evidence.id, group, f"in {name}, until {score:.15g}", (step,))


def _expiry(evidence: Evidence, head: Head, places: Mapping[str, list[str]], now_ms: int) -> Iterator[Problem]:
    # An expiry without a time to live is legitimate: a replay removes the time to live, the next sweep the expiry.
    id = evidence.id
    alive = evidence.waiting is not None or any(
        place != "garbage" for of_group in places.values() for place in of_group
    )
    # The record itself may name such a late time, if another program wrote it.
    is_expiring = evidence.expiring is not None and (
        evidence.expiring == head.expires_ms or not _is_never(evidence.expiring, now_ms)
    )
    if not is_expiring and head.expires_ms is not None and alive:
        step: Step = ("ZADD", "expiring", id, head.expires_ms)
        yield Problem(Kind.UNWATCHED, id, NO_GROUP, "has a time to live, but will not expire", (step,))
