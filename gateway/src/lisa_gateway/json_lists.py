"""Settings that are lists of tables: in a flag or the environment they are JSON."""

import json
from typing import Any

__all__ = ["json_list"]


def json_list(value: Any) -> Any:
    """Reads text as JSON, and leaves other values as they are; empty text is an empty list. Raises ValueError."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value.strip() else ()
    except (ValueError, RecursionError):
        raise ValueError("a JSON list of tables") from None
