"""JSON as RFC 8259 has it, of which nothing is dropped in silence."""

import json
from typing import Any, NoReturn

__all__ = ["strict_json"]

_MOST_SHOWN = 100


def strict_json(text: str | bytes) -> Any:
    """JSON as a value. Raises ValueError, also for NaN, infinity, and two members of an object of one name."""
    return json.loads(text, parse_constant=_refuse, object_pairs_hook=_members)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        last = {name: at for at, (name, _) in enumerate(pairs)}
        twice = next(name for at, (name, _) in enumerate(pairs) if last[name] != at)
        raise ValueError(f"{twice[:_MOST_SHOWN]!r} occurs twice in an object")
    return members
