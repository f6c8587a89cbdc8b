"""Records and failures: what is packed is read back, what is damaged is told."""

from contextlib import suppress

import pytest
from hypothesis import given, strategies as st

from lisa_common.model.failure import Failure, read_failure
from lisa_common.model.record import Record, UnreadableRecord, is_cancelled, pack_content, unpack_record
from lisa_common.validation import headers_json

STAMP = b"\1" + (5).to_bytes(6, "big") + (7).to_bytes(6, "big")


@given(
    body=st.binary(),
    ttl_ms=st.none() | st.integers(0, 2**48 - 1),
    max_retries=st.none() | st.integers(0, 2**16 - 1),
    priority=st.integers(0, 255),
    headers=st.dictionaries(st.text(), st.text(), max_size=5),
)
def test_round_trip(
    *, body: bytes, ttl_ms: int | None, max_retries: int | None, priority: int, headers: dict[str, str]
) -> None:
    """Every body arrives byte for byte (promise 10), every limit and header as it was given."""
    content = pack_content(
        body, ttl_ms=ttl_ms, max_retries=max_retries, priority=priority, headers=headers_json(headers)
    )
    record = unpack_record(STAMP + content)
    assert record == Record(5, 7, body, ttl_ms, max_retries, priority, headers)
    assert record.expires_ms == (None if ttl_ms is None else 7 + ttl_ms)
    assert not is_cancelled(STAMP + content)


def test_a_plain_message_costs_little() -> None:
    """Without limits and headers a record is its body and 14 bytes."""
    assert len(STAMP + pack_content(b"body")) == 14 + 4


@pytest.mark.parametrize("data", [b"", b"\1", STAMP, b"\2" + STAMP[1:] + b"\0", b"\0", b"\0" + STAMP[1:]])
def test_unreadable(data: bytes) -> None:
    """What is too short, or of another version, is refused with a reason."""
    with pytest.raises(UnreadableRecord, match="bytes of version"):
        unpack_record(data)


@pytest.mark.parametrize("flags", [1, 2, 3, 4, 7, 8, 15])
def test_cut_off(flags: int) -> None:
    """A record that ends within its limits or headers is refused."""
    with pytest.raises(UnreadableRecord):
        unpack_record(STAMP + bytes((flags,)))


@given(data=st.binary(max_size=40))
def test_damage_is_told(data: bytes) -> None:
    """Whatever stands there, reading it gives a record or says that it cannot."""
    for candidate in (data, b"\1" + data):
        with suppress(UnreadableRecord):
            unpack_record(candidate)


@pytest.mark.parametrize("value", [None, b"", b"rubbish", b"1 2 3", b"x 1-1 - 1 1 nack text"])
def test_no_failure(value: bytes | None) -> None:
    """None stands for no failure, and for a damaged one."""
    assert read_failure(value) is None


def test_failure() -> None:
    """The text goes to the end of the value, whatever it holds."""
    assert read_failure(b"2 5-1 - 7 9 nack two\nlines \xff") == Failure(
        2, "5-1", None, 7, 9, "nack", "two\nlines \ufffd"
    )
    assert read_failure(b"0 5-1 6-1 7 9 released ") == Failure(0, "5-1", "6-1", 7, 9, "released", "")
