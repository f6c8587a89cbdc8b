"""What callers pass in: taken as promised, or refused naming field, value and limit (promise 13)."""

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest
from hypothesis import given, strategies as st

from lisa_common.errors import InvalidInput, LisaError
from lisa_common.validation import (
    MAX_DELAY_S,
    body_bytes,
    check_id,
    check_int,
    check_name,
    check_new_id,
    duration_ms,
    headers_json,
    moment_ms,
)


class Unknowing(tzinfo):
    """A time zone that does not know its offset: what bears it is as good as naive."""

    def utcoffset(self, _: datetime | None) -> None:
        """Nothing."""

    def dst(self, _: datetime | None) -> None:
        """Nothing."""

    def tzname(self, _: datetime | None) -> None:
        """Nothing."""


CYCLE: list[Any] = []
CYCLE.append(CYCLE)
NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001 - what is refused here


@pytest.mark.parametrize(
    ("check", "field", "value", "limit"),
    [
        *(
            (check_name, "topic", bad, "1 to 128")
            for bad in ("", "x" * 129, "a b", "a/b", "{a}", "ä", "a\n", None, 7, b"a")
        ),
        *(
            (check_id, "id", bad, "1 to 200 bytes")
            for bad in ("", "x" * 201, "é" * 101, "a\nb", "\0", "\ud800", None, 7)
        ),
        (check_new_id, "id", "made~", "'~'"),
        *((check_int, "max_retries", bad, "0 to 1000") for bad in (-1, 1_001, 1.0, "1", True, None)),
        *(
            (duration_ms, "delay", bad, "10 years")
            for bad in (-1, -0.001, float("nan"), float("inf"), MAX_DELAY_S + 1, 10**400, "5", None, True, 1j)
        ),
        (duration_ms, "delay", timedelta(days=-1), "10 years"),
        (duration_ms, "delay", timedelta(days=4_000), "10 years"),
        (moment_ms, "due_at", NAIVE, "time zone"),
        (moment_ms, "due_at", NAIVE.replace(tzinfo=Unknowing()), "time zone"),
        (moment_ms, "due_at", 1_700_000_000, "time zone"),
        (moment_ms, "due_at", datetime(1969, 12, 31, tzinfo=UTC), "1970"),
        (moment_ms, "due_at", datetime.max.replace(tzinfo=UTC), "1970"),
        *(
            (headers_json, "headers", bad, "text to text")
            for bad in ({"a": 1}, {1: "a"}, {"a": None}, ["a"], "a", [], "", 0)
        ),
    ],
)
def test_refused(check: Any, field: str, value: object, limit: str) -> None:
    """The error names the field, what it must be and the value, in one line."""
    bounds = (0, 1_000) if check is check_int else ()
    takes_field = check in (check_name, check_int, duration_ms, moment_ms)
    with pytest.raises(InvalidInput, match=re.escape(limit)) as caught:
        check(field, value, *bounds) if takes_field else check(value)
    error = caught.value
    assert isinstance(error, LisaError | ValueError)
    assert error.field == field
    assert error.value is value
    assert str(error).startswith(f"{field} must be ")
    assert "\n" not in str(error)
    assert len(str(error)) < 300


@pytest.mark.parametrize(
    ("value", "limit"),
    [
        (object(), "JSON"),
        ({"a": float("nan")}, "JSON"),
        ([float("inf")], "JSON"),
        ({1, 2}, "JSON"),
        (CYCLE, "JSON"),
        ("\ud800", "UTF-8"),
        ({"a": "\ud800"}, "JSON"),
        (b"x" * 11, "at most 10 bytes"),
        ("é" * 6, "at most 10 bytes"),
        ([1] * 9, "at most 10 bytes"),
    ],
)
def test_body_refused(value: object, limit: str) -> None:
    """What JSON or UTF-8 cannot hold, and what is too large, is refused."""
    with pytest.raises(InvalidInput, match=limit) as caught:
        body_bytes(value, 10)
    assert caught.value.field == "body"
    assert len(str(caught.value)) < 300


def test_a_long_value_is_cut() -> None:
    """An error shows enough of a value to find it, and its length."""
    with pytest.raises(InvalidInput, match=r"… \(1002 characters\)"):
        check_name("topic", "x" * 1_000)


class Shy:
    """A value that cannot be shown."""

    def __repr__(self) -> str:
        """Fails."""
        raise LookupError("no")


def test_a_value_that_cannot_be_shown_is_named_by_its_type() -> None:
    """It is refused as any other: Python shows no numbers of thousands of digits, and no lists of too many levels."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value, kind in ((10**5_000, "int"), (deep, "list"), (Shy(), "Shy")):
        with pytest.raises(InvalidInput, match=rf"^body must be bytes, text or a .*; got a value of type {kind}$"):
            body_bytes(value, 10)


@pytest.mark.parametrize(
    ("body", "stored"),
    [
        (b"\0\xff", b"\0\xff"),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"ab"), b"ab"),
        ("é", b"\xc3\xa9"),
        ("", b""),
        ({"a": [1, None, "é"]}, '{"a":[1,null,"é"]}'.encode()),
        (None, b"null"),
        (1.5, b"1.5"),
        (True, b"true"),
    ],
)
def test_bodies(body: object, stored: bytes) -> None:
    """Bytes and text as they are, everything else as compact JSON."""
    assert body_bytes(body, 100) == stored


@pytest.mark.parametrize("name", ["a", "A.b_c:d-9", "x" * 128])
def test_names(name: str) -> None:
    """Letters, digits and `_.:-`."""
    assert check_name("topic", name) == name


@pytest.mark.parametrize("id", ["a", "order/7", "ünïcode 7", "x" * 200, "~a"])
def test_ids(id: str) -> None:
    """Any printable text."""
    assert check_new_id(id) == id


@pytest.mark.parametrize(
    ("value", "milliseconds"),
    [
        (0, 0),
        (0.0001, 1),
        (0.1 + 0.2, 300),
        (1.001, 1_001),
        (2, 2_000),
        (timedelta(microseconds=1), 1),
        (timedelta(days=1), 86_400_000),
        (MAX_DELAY_S, MAX_DELAY_S * 1_000),
    ],
)
def test_durations(value: Any, milliseconds: int) -> None:
    """Seconds or timedelta, rounded up to the millisecond; the last bits of a float do not count."""
    assert duration_ms("delay", value) == milliseconds


def test_duration_bounds() -> None:
    """A lower bound, and an upper one, are named in the error."""
    assert duration_ms("ttl", 0.001, low_ms=1) == 1
    with pytest.raises(InvalidInput, match=r"^ttl must be .*0\.001 s.*; got 0$"):
        duration_ms("ttl", 0, low_ms=1)
    with pytest.raises(InvalidInput, match=r"from 0 s to 60 s"):
        duration_ms("wait", 61, high_s=60)


@given(st.integers(0, MAX_DELAY_S * 1_000))
def test_whole_milliseconds_stay(milliseconds: int) -> None:
    """A number of milliseconds survives being said in seconds."""
    assert duration_ms("delay", milliseconds / 1_000) == milliseconds
    assert duration_ms("delay", timedelta(milliseconds=milliseconds)) == milliseconds


def test_moments() -> None:
    """An aware datetime of any zone, rounded up: never early."""
    east = timezone(timedelta(hours=5, minutes=30))
    assert moment_ms("due_at", datetime(1970, 1, 1, 5, 30, 1, tzinfo=east)) == 1_000
    assert moment_ms("due_at", datetime(2020, 1, 1, 0, 0, 0, 1, tzinfo=UTC)) == 1_577_836_800_001


def test_headers() -> None:
    """A mapping of text to text; none is empty; too much is refused."""
    assert headers_json(None) == headers_json({}) == b""
    assert headers_json({"a": "é"}) == '{"a":"é"}'.encode()
    with pytest.raises(InvalidInput, match=r"headers .* UTF-8"):
        headers_json({"a": "\ud800"})
    with pytest.raises(InvalidInput, match="at most 16384 bytes"):
        headers_json({"a": "x" * 16_384})
