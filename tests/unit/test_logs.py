"""Log records: what others wrote is never obeyed; where JSON is asked for, each record is one object on one line."""

import ast
import io
import json
import logging
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from lisa_common.logs import configure_logging, event

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


def test_requests_of_httpx_are_not_logged(stream: io.StringIO) -> None:
    """Each push is one, with its URL and the headers of its answer, which may hold a secret; warnings are shown."""
    logging.getLogger("httpx").info("HTTP Request: POST https://example.org/hooks/s3cret")
    logging.getLogger("httpcore.http11").info("receive_response_headers.complete return_value=s3cret")
    logging.getLogger("httpx").warning("careful")
    assert stream.getvalue().count("\n") == 1


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


@pytest.fixture
def written(stream: io.StringIO) -> Callable[[], list[Any]]:
    """The objects that a program has logged as JSON."""
    logging.getLogger().handlers.clear()
    configure_logging("info", "json")

    def read() -> list[Any]:
        lines = stream.getvalue().splitlines()
        assert all(line.isascii() and line.isprintable() for line in lines)
        return [json.loads(line, parse_constant=pytest.fail) for line in lines]

    return read


class _Colour(StrEnum):
    RED = "red"


class _Broken:
    def __str__(self) -> str:
        raise ValueError("no")


def test_a_json_record_has_its_event_and_fields(written: Callable[[], list[Any]]) -> None:
    """Values keep their types; what there is none of is left out."""
    fields = event("messages_expired", topic="orders", shard="", group=None, count=3, seconds=0.5)
    logging.getLogger("lisa").warning("expired %d of %s", 3, "orders", extra=fields)
    [record] = written()
    assert record.pop("time").endswith("Z")
    assert record == {
        "level": "warning",
        "logger": "lisa",
        "event": "messages_expired",
        "message": "expired 3 of orders",
        "topic": "orders",
        "count": 3,
        "seconds": 0.5,
    }


def test_json_takes_whatever_a_handler_logs(written: Callable[[], list[Any]]) -> None:
    """Records of the user's own code: no event, and values that JSON does not have, or that fail."""
    loop: list[Any] = []
    loop.append(loop)
    extra = {"level": 9, "text": EVIL, "nan": float("nan"), "of": _Colour.RED, "broken": _Broken(), "loop": loop}
    logging.getLogger("app").info("%s\x7f", EVIL, extra=extra | {"map": {1: {2}}, "big": 10**30})
    [record] = written()
    assert (record["event"], record["level"], record["level_"]) == ("message", "info", 9)
    assert record["text"] == EVIL.replace("\ud800", "\\ud800")
    assert (record["nan"], record["of"], record["map"], record["big"]) == ("nan", "red", {"1": [2]}, 10**30)
    assert record["broken"] == "no text, as the __str__ of _Broken raised ValueError"


def test_a_json_record_has_its_traceback(written: Callable[[], list[Any]]) -> None:
    """In the same object."""
    try:
        _fail()
    except RuntimeError:
        logging.getLogger("lisa").exception("failed", extra=event("handler_failed"))
    [record] = written()
    assert record["traceback"].startswith("Traceback (most recent call last):")
    assert "in _fail" in record["traceback"]


def _log_calls(path: Path) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
            name = ast.unparse(node.func)
            if name == "log" or name.removeprefix("self._").startswith("logger."):
                yield node


def test_every_record_names_its_event() -> None:
    """Each log call passes `extra`, so that nobody has to parse its text."""
    paths = sorted(Path(__file__).parents[2].glob("*/src/**/*.py"))
    calls = [(path.name, call) for path in paths for call in _log_calls(path)]
    assert len(calls) > 50
    assert [f"{name}:{call.lineno}" for name, call in calls if "extra" not in {k.arg for k in call.keywords}] == []
