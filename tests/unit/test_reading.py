"""What is read quickly, entries and records of most messages, is read as one by one."""

import struct

from hypothesis import given, settings, strategies as st

from lisa_common.model.delivery import Delivery, Entry, delivery_of, entries_of, entry_of, entry_place, plain_deliveries
from lisa_common.model.keys import ShardKeys
from lisa_common.model.record import HEAD_BYTES, UnreadableRecord, pack_content, unpack_record

KEYS = ShardKeys("lisa", "orders", "3")
DUE_MS = 1_795_600_000_000

_NAMES = st.sampled_from([b"1795600000000-0", b"1795600000000-1", b"1795600000001-0", b"5-3", b"0-1"])
_DUE = st.sampled_from(
    [b"1795600000000", b"1795600000001", b"0", b"", b"-1", b"+5", b" 7", b"1_0", b"9" * 15, b"9" * 16]
)
_FIELDS = st.fixed_dictionaries(
    {},
    optional={
        b"id": st.sampled_from([b"a", b"b~", b"", b"\xff", "é".encode()]),
        b"due": _DUE,
        b"n": st.sampled_from([b"1", b"2", b"01", b"", b"x", b"-1"]),
        b"g": st.sampled_from([b"billing", b"other"]),
        b"at": _DUE,
        b"alone": st.just(b"1"),
    },
)
_PLAIN = st.builds(lambda id, due: {b"id": id, b"due": due, b"n": b"1"}, st.sampled_from([b"a", b"b"]), _DUE)
_ROWS = st.lists(st.tuples(_NAMES, st.one_of(_PLAIN, _FIELDS, st.none())), max_size=6)


def _flat(fields: dict[bytes, bytes] | None) -> list[bytes] | None:
    return None if fields is None else [text for pair in fields.items() for text in pair]


@given(_ROWS)
def test_entries(rows: list[tuple[bytes, dict[bytes, bytes] | None]]) -> None:
    """However odd some of them are, and whichever come before and after."""
    read = [(name, _flat(fields)) for name, fields in rows]
    assert entries_of(read) == [entry_of(*row) for row in read]


def _record(sent_ms: int, due_ms: int, version: int, content: bytes) -> bytes:
    return struct.pack(">B", version) + sent_ms.to_bytes(6, "big") + due_ms.to_bytes(6, "big") + content


def _own_record(entry: Entry, sent_ms: int) -> bytes:
    return _record(sent_ms, entry.due_ms, 1, pack_content(b"body"))


_TIMES = st.sampled_from([0, 5, DUE_MS, DUE_MS + 1])
_CONTENTS = st.one_of(
    st.just(pack_content(b"body")),
    st.builds(pack_content, st.just(b""), ttl_ms=st.sampled_from([None, 0, 9]), max_retries=st.sampled_from([None, 3])),
    st.just(pack_content(b"", headers=b'{"a": "b"}')),
    st.binary(max_size=3),
)
_RECORDS = st.one_of(st.none(), st.just(b""), st.builds(_record, _TIMES, _TIMES, st.sampled_from([0, 1, 2]), _CONTENTS))
_ENTRIES = st.builds(
    Entry,
    _NAMES.map(bytes.decode),
    st.sampled_from(["a", None]),
    _TIMES,
    st.just(1),
    st.sampled_from([None, "billing", "other"]),
    st.sampled_from([None, DUE_MS + 7]),
    st.booleans(),
)


_OWN = _ENTRIES.flatmap(lambda entry: st.tuples(st.just(entry), st.builds(_own_record, st.just(entry), _TIMES)))
"""Entries with plain records of their own due times."""


def _plain(entry: Entry, data: bytes | None) -> Delivery | None:
    """The delivery of an entry, by the readers of any record."""
    if data is None or entry.id is None or entry.group not in {None, "billing"}:
        return None
    try:
        record = unpack_record(data)
    except UnreadableRecord:
        return None
    is_own = record.due_ms == entry.due_ms and entry.made_ms >= record.sent_ms
    # By its flags: what they name may change nothing, as a priority of 0, and a flag may be unknown.
    is_plain = data[HEAD_BYTES - 1] == 0
    return delivery_of(KEYS, "billing", entry, record, 10) if is_own and is_plain else None


@settings(max_examples=500)
@given(st.lists(st.one_of(_OWN, st.tuples(_ENTRIES, _RECORDS)), max_size=6))
def test_deliveries(read: list[tuple[Entry, bytes | None]]) -> None:
    """The quick reader makes the same delivery, or none."""
    read = sorted(read, key=lambda each: entry_place(each[0].entry))
    entries, records = [entry for entry, _ in read], [data for _, data in read]
    found = plain_deliveries(KEYS, "billing", entries, records, 10)
    assert found == [_plain(entry, data) for entry, data in read]
