"""Records and failures are read and written in Lua and in Python: both must agree."""

import pytest
import redis
from hypothesis import HealthCheck, given, settings, strategies as st

from lisa_common.model.failure import Failure, read_failure
from lisa_common.model.record import UnreadableRecord, is_cancelled, pack_content, unpack_record
from lisa_common.protocol.scripts import _read
from lisa_common.validation import headers_json

WITH_CLIENT = settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
times = st.integers(0, 2**48 - 1)
words = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=12)


@pytest.fixture(scope="module")
def lua() -> dict[str, str]:
    """The includes."""
    texts = {name: _read(f"include/{name}") for name in ("stamp", "record", "failure")}
    return texts | {"record": texts["stamp"] + texts["record"]}


@WITH_CLIENT
@given(
    sent=times,
    due=times,
    other_due=times,
    body=st.binary(max_size=300),
    ttl_ms=st.none() | st.integers(1, 2**48 - 1),
    max_retries=st.none() | st.integers(0, 1_000),
    priority=st.integers(0, 255),
    headers=st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=4),
)
def test_records(
    client: redis.Redis,
    lua: dict[str, str],
    *,
    sent: int,
    due: int,
    other_due: int,
    body: bytes,
    ttl_ms: int | None,
    max_retries: int | None,
    priority: int,
    headers: dict[str, str],
) -> None:
    """What a producer packs and a script stamps, scripts and consumers read alike, also once changed."""
    content = pack_content(
        body, ttl_ms=ttl_ms, max_retries=max_retries, priority=priority, headers=headers_json(headers)
    )
    reply = client.eval(
        lua["record"]
        + """
        local record = stamp(tonumber(ARGV[1]), tonumber(ARGV[2])) .. ARGV[3]
        local f = read_record(record)
        local function shown(n) return n and string.format('%.0f', n) or '' end
        local function said(due, ms)
          local entry = string.format('%.0f-3', math.max(ms, 0))
          return (is_of(record, due, entry) and 1 or 0) + (is_of(cancelled_record(record), due, entry) and 2 or 0)
        end
        return {
          record, shown(f.sent), shown(f.due), shown(f.ttl), shown(f.expires), shown(f.max_retries),
          shown(f.priority), with_due(record, tonumber(ARGV[4])), without_ttl(record), cancelled_record(record),
          said(f.due, f.sent), said(f.due + 1, f.sent), said(f.due, f.sent - 1)
        }
        """,
        0,
        str(sent),
        str(due),
        content,
        str(other_due),
    )
    record = unpack_record(reply[0])
    assert (record.sent_ms, record.due_ms, record.body, record.headers) == (sent, due, body, headers)
    assert (record.ttl_ms, record.max_retries, record.priority) == (ttl_ms, max_retries, priority)
    facts = (sent, due, ttl_ms, record.expires_ms, max_retries, priority)
    assert [part.decode() for part in reply[1:7]] == ["" if fact is None else str(fact) for fact in facts]
    moved, lifted, cancelled, same, other, older = reply[7:]
    assert unpack_record(moved).due_ms == other_due
    assert unpack_record(moved).body == body
    assert unpack_record(lifted).ttl_ms is None
    assert (unpack_record(lifted).body, unpack_record(lifted).headers) == (body, headers)
    assert is_cancelled(cancelled)
    assert (same, other, older) == (3, 0, 0 if sent else 3)


@WITH_CLIENT
@given(
    failure=st.builds(
        Failure,
        attempts=st.integers(0, 1_001),
        entry=st.just("1700000000000-7"),
        next_entry=st.none() | st.just("1700000000000-8"),
        due_ms=times,
        at_ms=times,
        reason=words.map(str.lower),
        error=st.text(max_size=100),
    )
)
def test_failures(client: redis.Redis, lua: dict[str, str], failure: Failure) -> None:
    """What a script writes of a failure, with any error text, Python and Lua read back."""
    written = client.eval(
        lua["failure"]
        + """
        local value = write_failure({
          attempts = tonumber(ARGV[1]), entry = ARGV[2], next = ARGV[3], due = tonumber(ARGV[4]),
          at = tonumber(ARGV[5]), reason = ARGV[6], error = ARGV[7],
        })
        return write_failure(read_failure(value))
        """,
        0,
        str(failure.attempts),
        failure.entry,
        failure.next_entry or "-",
        str(failure.due_ms),
        str(failure.at_ms),
        failure.reason,
        failure.error,
    )
    assert read_failure(written) == failure


@WITH_CLIENT
@given(data=st.binary(max_size=30), flags=st.integers(0, 7))
def test_damaged_records(client: redis.Redis, lua: dict[str, str], data: bytes, flags: int) -> None:
    """A record that Python cannot read does not break a script, and is nothing to it either."""
    for record in (data, b"\1" + data, b"\1" + bytes(12) + bytes((flags,)) + data[:9]):
        read = client.eval(lua["record"] + "return read_record(ARGV[1]) and 1 or 0", 0, record)
        assert read == _readable(record) or _has_headers(record)


def _readable(data: bytes) -> bool:
    try:
        unpack_record(data)
    except UnreadableRecord:
        return False
    return True


def _has_headers(data: bytes) -> bool:
    # Scripts pass over them, whatever they hold.
    return len(data) > 13 and bool(data[13] & 8)
