"""The head of a record: what an audit reads of it."""

import pytest

from lisa_common.model.record import VERSION, Head, pack_content, read_head, unpack_record

SENT_MS, DUE_MS = 1_000, 2_000
TIMES = bytes((VERSION,)) + SENT_MS.to_bytes(6, "big") + DUE_MS.to_bytes(6, "big")


@pytest.mark.parametrize("ttl_ms", [None, 500])
def test_a_head_agrees_with_its_record(ttl_ms: int | None) -> None:
    """Of the first 20 bytes, as of the whole record."""
    data = TIMES + pack_content(b"body of some length", ttl_ms=ttl_ms, max_retries=3, headers=b"{}")
    record = unpack_record(data)
    assert read_head(data) == read_head(data[:20]) == Head(record.due_ms, record.expires_ms)


@pytest.mark.parametrize("data", [b"", b"\x01", TIMES, b"\x02" + TIMES[1:] + b"\0", TIMES + b"\x01" + b"\0" * 5])
def test_a_damaged_head_is_unreadable(data: bytes) -> None:
    """Too short, or of a later release."""
    assert read_head(data) == Head(None, readable=False)


def test_a_cancelled_head_has_its_due_time() -> None:
    """Except one of an early release; it belongs to entries of any time."""
    assert read_head(b"\0" + TIMES[1:]) == Head(DUE_MS, cancelled=True)
    early = read_head(b"\0")
    assert early == Head(None, cancelled=True)
    assert early.is_of(7)
    assert not read_head(b"\0" + TIMES[1:]).is_of(7)
