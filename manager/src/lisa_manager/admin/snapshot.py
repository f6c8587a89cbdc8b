"""Reads a topic for an audit: page by page, so that no other client waits long; and one message, atomically.

A topic that is in use moves on between the pages. What a snapshot shows is a suspicion, and a look decides.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from lisa_common.model.delivery import Entry, entry_of, entry_place
from lisa_common.model.failure import read_failure
from lisa_common.model.keys import ShardKeys, bytes_of, split_copy, text_of
from lisa_common.protocol.call import Call, Flow, command, script
from lisa_manager.admin.evidence import Evidence, GroupState, Head
from lisa_manager.admin.problem import Step
from lisa_manager.admin.queries import PAGE, GroupInfo, entries, groups

__all__ = ["Look", "Snapshot", "forget_stranger", "look", "read_entries", "read_snapshot", "repair"]

_RECORDS = 100
"""Records in one page: the server reads them whole, and they may be large."""

_START = "0-0"
_SLASH = b"/"
_HEAD, _CANCELLED_HEAD, _HEAD_WITH_TTL, _HAS_TTL, _VERSION = 14, 13, 20, 1, 1


@dataclass(slots=True)
class Snapshot:
    """All messages of a topic, by id."""

    evidence: dict[str, Evidence] = field(default_factory=dict)
    groups: dict[str, GroupState] = field(default_factory=dict)
    last: str = _START
    """The last entry that was seen."""
    strangers: list[tuple[str, bytes]] = field(default_factory=list)
    """Members that name no copy, after the key where they are."""

    def of(self, id: str) -> Evidence:
        """The evidence of a message, made if need be."""
        if id not in self.evidence:
            self.evidence[id] = Evidence(id)
        return self.evidence[id]


def read_snapshot(keys: ShardKeys) -> Flow[Snapshot]:
    """Reads everything but the bodies. What moves on while it is read may be seen twice, or nowhere."""
    found = Snapshot()
    yield from _read_records(keys, found)
    for name in ("waiting", "expiring", "finished", "retry", "garbage"):
        yield from _read_scores(keys, found, name)
    for name in ("owed", "failures"):
        yield from _read_values(keys, found, name)
    yield from read_entries(keys, found)
    yield from _read_groups(keys, found)
    return found


def _read_records(keys: ShardKeys, found: Snapshot) -> Flow[None]:
    cursor = b"0"
    while True:
        cursor, flat = yield script("scan", keys, cursor=cursor, limit=_RECORDS)
        for id, data in _pairs(flat):
            found.of(text_of(id)).head = _head(data)
        if cursor == b"0":
            return


def _head(data: bytes) -> Head:
    if data[:1] == b"\0":
        return Head(int.from_bytes(data[7:13], "big") if len(data) >= _CANCELLED_HEAD else None, cancelled=True)
    has_ttl = len(data) >= _HEAD and bool(data[_HEAD - 1] & _HAS_TTL)
    if data[:1] != bytes((_VERSION,)) or len(data) < (_HEAD_WITH_TTL if has_ttl else _HEAD):
        return Head(None, readable=False)
    due_ms = int.from_bytes(data[7:13], "big")
    return Head(due_ms, due_ms + int.from_bytes(data[14:20], "big") if has_ttl else None)


def _read_scores(keys: ShardKeys, found: Snapshot, name: str) -> Flow[None]:
    cursor = b"0"
    while True:
        cursor, flat = yield command("ZSCAN", keys.of(name), cursor, "COUNT", PAGE)
        for member, score in _pairs(flat):
            if name in {"retry", "garbage"}:
                if _SLASH not in member:
                    found.strangers.append((name, member))
                    continue
                group, id = split_copy(text_of(member))
                setattr(found.of(id).copy(group), name, float(score))
            else:
                setattr(found.of(text_of(member)), name, float(score))
        if cursor == b"0":
            return


def _read_values(keys: ShardKeys, found: Snapshot, name: str) -> Flow[None]:
    cursor = b"0"
    while True:
        cursor, flat = yield command("HSCAN", keys.of(name), cursor, "COUNT", PAGE)
        for member, value in _pairs(flat):
            if name == "owed":
                found.of(text_of(member)).owed = _names(value)
            elif _SLASH not in member:
                found.strangers.append((name, member))
            else:
                group, id = split_copy(text_of(member))
                copy = found.of(id).copy(group)
                copy.failed, copy.failure = True, read_failure(value)
        if cursor == b"0":
            return


def read_entries(keys: ShardKeys, found: Snapshot) -> Flow[None]:
    """Adds the entries that came since the snapshot, or since this was last asked for."""
    while True:
        page: list[Entry] = yield entries(keys, f"({found.last}")
        for entry in page:
            if entry.id:
                found.of(entry.id).entries.append(entry)
        if page:
            found.last = page[-1].entry
        if len(page) < PAGE:
            return


def _read_groups(keys: ShardKeys, found: Snapshot) -> Flow[None]:
    known: list[GroupInfo] = yield groups(keys)
    for group in known:
        pending = yield from _pending(keys, group.name)
        found.groups[group.name] = GroupState(group.last, frozenset(pending))


def _pending(keys: ShardKeys, group: str) -> Flow[list[str]]:
    found: list[str] = []

    def decode(reply: Any) -> list[str]:
        # A group may have gone meanwhile.
        return [] if isinstance(reply, Exception) else [row[0].decode() for row in reply]

    while True:
        start = f"({found[-1]}" if found else "-"
        page: list[str] = yield command(
            "XPENDING", keys.of("ready"), bytes_of(group), start, "+", PAGE, decode=decode, takes_errors=True
        )
        found += page
        if len(page) < PAGE:
            return found


@dataclass(frozen=True, slots=True)
class Look:
    """One message as it stood at one moment."""

    evidence: Evidence
    groups: dict[str, GroupState]
    whole: bool
    """False when so much came since the snapshot that not all of it was looked at."""
    print: bytes
    """Tells, when it is mended, whether anything has changed."""
    suspect: Evidence
    since: str


def look(keys: ShardKeys, suspect: Evidence, since: str) -> Call[Look]:
    """Looks at one message again, in one script."""

    def decode(reply: list[Any]) -> Look:
        *told, whole, found_print = reply
        evidence, found_groups = _read_look(suspect.id, told)
        return Look(evidence, found_groups, bool(whole), found_print, suspect, since)

    hints = [(entry.entry,) for entry in suspect.entries]
    return script("look", keys, hints, decode=decode, id=bytes_of(suspect.id), since=since, names=_named(suspect))


def repair(keys: ShardKeys, looked: Look, steps: Sequence[Step]) -> Call[bool]:
    """Takes steps to mend a message, unless anything has changed since the look. Result: whether it did."""
    return script(
        "repair",
        keys,
        [tuple(bytes_of(part) if isinstance(part, str) else part for part in step) for step in steps],
        decode=bool,
        repeatable=False,
        now_ms="",
        print=looked.print,
        id=bytes_of(looked.suspect.id),
        since=looked.since,
        names=_named(looked.suspect),
        hints=",".join(entry.entry for entry in looked.suspect.entries),
    )


def _named(evidence: Evidence) -> bytes:
    return bytes_of(",".join(sorted({*evidence.copies, *(evidence.owed or ())} - {""})))


def forget_stranger(keys: ShardKeys, name: str, member: bytes) -> Call[bool]:
    """Removes a member that names no copy. Result: whether it was there."""
    return command("HDEL" if name == "failures" else "ZREM", keys.of(name), member, decode=bool)


def _read_look(id: str, told: list[Any]) -> tuple[Evidence, dict[str, GroupState]]:
    record, waiting, expiring, finished, owing, copies, found, names = told
    evidence = Evidence(
        id,
        head=None if record is None else _head(record),
        waiting=_score(waiting),
        expiring=_score(expiring),
        finished=_score(finished),
        owed=None if owing is None else _names(owing),
    )
    for group, retry, garbage, failure in copies:
        copy = evidence.copy(text_of(group))
        copy.retry, copy.garbage = _score(retry), _score(garbage)
        copy.failed, copy.failure = failure is not None, read_failure(failure)
    group_names = [text_of(name) for name in names]
    last = dict.fromkeys(group_names, _START)
    pending: dict[str, set[str]] = {name: set() for name in group_names}
    for name, values, states in found:
        entry = entry_of(name, values)
        evidence.entries.append(entry)
        for group, state in zip(group_names, states, strict=True):
            if state == b"pending":
                pending[group].add(entry.entry)
            if state != b"undelivered":
                # Of what a group was delivered last, only what lies between these entries matters.
                last[group] = max(last[group], entry.entry, key=entry_place)
    return evidence, {name: GroupState(last[name], frozenset(pending[name])) for name in group_names}


def _names(value: bytes) -> tuple[str, ...]:
    return tuple(name for name in text_of(value).split(",") if name)


def _score(value: bytes | None) -> float | None:
    return None if value is None else float(value)


def _pairs(flat: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)
