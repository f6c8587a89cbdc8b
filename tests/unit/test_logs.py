"""What others wrote does not speak to whoever reads a log: it is on one line, and nothing in it is obeyed."""

import io
import logging
from collections.abc import Iterator

import pytest

from lisa_common.logs import configure_logging

EVIL = "x\n2026-01-01T00:00:00.000Z INFO    lisa: all is well\r\x1b[2J\u202e\ud800\x00\x9b\u2028"


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What a program's logging writes."""
    root, before = logging.getLogger(), logging.getLogger().handlers[:]
    root.handlers.clear()
    written = io.StringIO()
    monkeypatch.setattr("sys.stderr", written)
    configure_logging("info")
    yield written
    root.handlers[:] = before


def test_a_record_is_one_line(stream: io.StringIO) -> None:
    """Names, policies and errors of others are escaped, wherever in the message they stand."""
    logging.getLogger("lisa").warning("group %s of %s: %r", EVIL, EVIL, EVIL)
    [line] = stream.getvalue().splitlines()
    assert line.isprintable()
    assert "all is well\\r\\x1b[2J\\u202e\\ud800\\x00\\x9b\\u2028" in line


def _fail() -> None:
    raise RuntimeError(EVIL)


def test_a_traceback_begins_no_line_as_a_record_does(stream: io.StringIO) -> None:
    """The error of a handler keeps its traceback, below the line that tells of it."""
    try:
        _fail()
    except RuntimeError:
        logging.getLogger("lisa").exception("the handler of %s failed", EVIL)
    first, *rest = stream.getvalue().removesuffix("\n").split("\n")
    assert first.endswith("failed")
    assert rest[0] == "  Traceback (most recent call last):"
    assert all(line.startswith("  ") and line.isprintable() for line in rest)
