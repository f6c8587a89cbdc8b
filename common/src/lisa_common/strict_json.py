"""JSON as RFC 8259 has it, of which nothing is dropped in silence."""

import json
import math
import sys
from typing import Any, NoReturn

__all__ = ["strict_json"]

_MOST_SHOWN = 100

_MOST_DIGITS = sys.float_info.max_10_exp


def strict_json(text: str) -> Any:
    """JSON as a value. Raises ValueError, also for two members of one name, NaN, and what no double can hold."""
    return json.loads(text, parse_constant=_refuse, parse_float=_number, parse_int=_whole, object_pairs_hook=_members)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _number(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise _too_large(text)
    return number


def _whole(text: str) -> int:
    # Most programs read an infinity where there are more digits; to convert them takes quadratic time.
    if len(text) > _MOST_DIGITS:
        raise _too_large(text)
    return int(text)


def _too_large(text: str) -> ValueError:
    return ValueError(f"{text[:_MOST_SHOWN]} is too large a number")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        last = {name: at for at, (name, _) in enumerate(pairs)}
        twice = next(name for at, (name, _) in enumerate(pairs) if last[name] != at)
        raise ValueError(f"{twice[:_MOST_SHOWN]!r} occurs twice in an object")
    return members
