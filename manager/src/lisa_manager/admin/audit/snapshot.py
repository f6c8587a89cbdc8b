"""Reads a shard for an audit, page by page, so that no other client waits long; and one message, atomically.

Messages of a busy topic move between the pages. A snapshot only raises suspicions; a look at the message decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lisa_common.model.delivery import Entry, entry_of, entry_place
from lisa_common.model.failure import read_failure
from lisa_common.model.keys import ShardKeys, bytes_of, split_copy, text_of
from lisa_common.model.record import read_head
from lisa_common.model.scores import unparked
from lisa_common.protocol.call import Call, Flow, command, script
from lisa_common.protocol.scanning import Scan, scan
from lisa_manager.admin.audit.evidence import Copy, Evidence, GroupState
from lisa_manager.admin.audit.problem import Step
from lisa_manager.queries import PAGE, GroupInfo, entries, groups, pending

__all__ = ["Look", "Snapshot", "forget_stranger", "look", "read_entries", "read_snapshot", "repair"]

_RECORDS = 100
"""Records in one page. The server reads whole records, and they may be large."""

_START = "0-0"
_SLASH = b"/"


@dataclass(slots=True)
class Snapshot:
    """All messages of a shard, by id."""

    evidence: dict[str, Evidence] = field(default_factory=dict)
    groups: dict[str, GroupState] = field(default_factory=dict)
    last: str = _START
    """The last entry read."""
    strangers: list[tuple[str, bytes]] = field(default_factory=list)
    """Members that name no copy, as pairs of key name and member."""

    def of(self, id: str) -> Evidence:
        """The evidence of a message; adds it if it is missing."""
        if id not in self.evidence:
            self.evidence[id] = Evidence(id)
        return self.evidence[id]

    def copy(self, member: bytes) -> Copy:
        """One group's copy of a message, by its name in a key; adds it if it is missing."""
        group, id = split_copy(text_of(member))
        return self.of(id).copy(group)


def read_snapshot(keys: ShardKeys) -> Flow[Snapshot]:
    """Reads everything except the bodies. A message that moves meanwhile may appear twice, or not at all."""
    snapshot = Snapshot()
    yield from _read_records(keys, snapshot)
    for name in ("waiting", "expiring", "finished", "retry", "garbage"):
        yield from _read_scores(keys, snapshot, name)
    for name in ("owed", "failures"):
        yield from _read_values(keys, snapshot, name)
    yield from read_entries(keys, snapshot)
    yield from _read_groups(keys, snapshot)
    return snapshot


def _read_records(keys: ShardKeys, snapshot: Snapshot) -> Flow[None]:
    pages = Scan(lambda cursor: script("scan", keys, cursor=cursor, limit=_RECORDS))
    while not pages.done:
        for id, data in (yield from pages.next_page()):
            snapshot.of(text_of(id)).head = read_head(data)


def _read_scores(keys: ShardKeys, snapshot: Snapshot, name: str) -> Flow[None]:
    pages = scan(keys, name, count=PAGE)
    while not pages.done:
        for member, score in (yield from pages.next_page()):
            moment = unparked(score) if name in {"waiting", "retry"} else float(score)
            if name not in {"retry", "garbage"}:
                setattr(snapshot.of(text_of(member)), name, moment)
            elif _SLASH not in member:
                snapshot.strangers.append((name, member))
            else:
                setattr(snapshot.copy(member), name, moment)


def _read_values(keys: ShardKeys, snapshot: Snapshot, name: str) -> Flow[None]:
    pages = scan(keys, name, count=PAGE)
    while not pages.done:
        for member, value in (yield from pages.next_page()):
            if name == "owed":
                snapshot.of(text_of(member)).owed = _names(value)
            elif _SLASH not in member:
                snapshot.strangers.append((name, member))
            else:
                copy = snapshot.copy(member)
                copy.failed, copy.failure = True, read_failure(value)


def read_entries(keys: ShardKeys, snapshot: Snapshot) -> Flow[None]:
    """Adds the entries that came since the snapshot, or since the last call."""
    while True:
        page: list[Entry] = yield entries(keys, f"({snapshot.last}")
        for entry in page:
            if entry.id:
                snapshot.of(entry.id).entries.append(entry)
        if page:
            snapshot.last = page[-1].entry
        if len(page) < PAGE:
            return


def _read_groups(keys: ShardKeys, snapshot: Snapshot) -> Flow[None]:
    known: list[GroupInfo] = yield groups(keys)
    for group in known:
        entry_ids = yield from _pending(keys, group.name)
        snapshot.groups[group.name] = GroupState(group.last, frozenset(entry_ids))


def _pending(keys: ShardKeys, group: str) -> Flow[list[str]]:
    entry_ids: list[str] = []
    while True:
        page: list[Any] = yield pending(keys, group, f"({entry_ids[-1]}" if entry_ids else "-")
        entry_ids += [row[0].decode() for row in page]
        if len(page) < PAGE:
            return entry_ids


@dataclass(frozen=True, slots=True)
class Look:
    """One message at one moment."""

    evidence: Evidence
    groups: dict[str, GroupState]
    whole: bool
    """False where more entries came since the snapshot than one look reads."""
    print: bytes
    """A fingerprint, by which a repair notices any change since the look."""
    suspect: Evidence
    since: str


def look(keys: ShardKeys, suspect: Evidence, since: str) -> Call[Look]:
    """Reads one message again, in one script."""

    def decode(reply: list[Any]) -> Look:
        *facts, whole, fingerprint = reply
        evidence, states = _read_look(suspect.id, facts)
        return Look(evidence, states, bool(whole), fingerprint, suspect, since)

    hints = [(entry.entry,) for entry in suspect.entries]
    return script("inspect", keys, hints, decode=decode, id=bytes_of(suspect.id), since=since, names=_named(suspect))


def repair(keys: ShardKeys, looked: Look, steps: Sequence[Step]) -> Call[bool]:
    """Takes steps to repair a message, unless anything has changed since the look. Returns whether it took them."""
    return script(
        "repair",
        keys,
        [tuple(bytes_of(part) if isinstance(part, str) else part for part in step) for step in steps],
        decode=bool,
        repeatable=False,
        now_ms="",
        fingerprint=looked.print,
        id=bytes_of(looked.suspect.id),
        since=looked.since,
        names=_named(looked.suspect),
        hints=",".join(entry.entry for entry in looked.suspect.entries),
    )


def _named(evidence: Evidence) -> bytes:
    return bytes_of(",".join(sorted({*evidence.copies, *(evidence.owed or ())} - {""})))


def forget_stranger(keys: ShardKeys, name: str, member: bytes) -> Call[bool]:
    """Removes a member that names no copy. Returns whether it existed."""
    return command("HDEL" if name == "failures" else "ZREM", keys.of(name), member, decode=bool)


def _read_look(id: str, facts: list[Any]) -> tuple[Evidence, dict[str, GroupState]]:
    record, waiting, expiring, finished, owing, copies, stream, names = facts
    evidence = Evidence(
        id,
        head=None if record is None else read_head(record),
        waiting=None if waiting is None else unparked(waiting),
        expiring=_score(expiring),
        finished=_score(finished),
        owed=None if owing is None else _names(owing),
    )
    for group, retry, garbage, failure in copies:
        copy = evidence.copy(text_of(group))
        copy.retry, copy.garbage = None if retry is None else unparked(retry), _score(garbage)
        copy.failed, copy.failure = failure is not None, read_failure(failure)
    group_names = [text_of(name) for name in names]
    last = dict.fromkeys(group_names, _START)
    held: dict[str, set[str]] = {name: set() for name in group_names}
    for name, values, states in stream:
        entry = entry_of(name, values)
        evidence.entries.append(entry)
        for group, state in zip(group_names, states, strict=True):
            if state == b"pending":
                held[group].add(entry.entry)
            if state != b"undelivered":
                # The group's last delivery matters only if it is among these entries.
                last[group] = max(last[group], entry.entry, key=entry_place)
    return evidence, {name: GroupState(last[name], frozenset(held[name])) for name in group_names}


def _names(value: bytes) -> tuple[str, ...]:
    return tuple(name for name in text_of(value).split(",") if name)


def _score(value: bytes | None) -> float | None:
    return None if value is None else float(value)
