"""JSON as RFC 8259 has it, of which nothing is dropped in silence."""

import json
import math
from typing import Any, NoReturn

__all__ = ["strict_json"]

_MOST_SHOWN = 100


def strict_json(text: str | bytes) -> Any:
    """JSON as a value. Raises ValueError, also for NaN, numbers that are too large, and two members of one name."""
    return json.loads(text, parse_constant=_refuse, parse_float=_number, parse_int=_whole, object_pairs_hook=_members)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _number(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:_MOST_SHOWN]} is too large a number")
    return number


def _whole(text: str) -> int:
    # A function of Python: while thousands of long numbers are read, other threads get their turn between two of them.
    return int(text)


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        last = {name: at for at, (name, _) in enumerate(pairs)}
        twice = next(name for at, (name, _) in enumerate(pairs) if last[name] != at)
        raise ValueError(f"{twice[:_MOST_SHOWN]!r} occurs twice in an object")
    return members
