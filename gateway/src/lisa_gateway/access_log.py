"""The access log: a line for each request, where a setting asks for it."""

import logging
from typing import Any

from lisa_common.logs import event
from lisa_gateway.access import caller_of

__all__ = ["log_request"]

logger = logging.getLogger(__name__)

_MOST_CHARACTERS = 200
"""Of a path: it may hold a topic and an id, and whatever a client makes up."""


def log_request(scope: Any, status: str, took_s: float) -> None:
    """Logs a request once it is over. Never its query, which may hold bodies; nor headers, which may hold tokens."""
    path = scope["path"]
    path = path if len(path) <= _MOST_CHARACTERS else f"{path[:_MOST_CHARACTERS]}…"
    client = scope.get("client")
    peer, caller, took_ms = client[0] if client else "", caller_of(scope).name, round(took_s * 1000, 1)
    fields = event(
        "request", method=scope["method"], path=path, status=status, took_ms=took_ms, caller=caller, peer=peer
    )
    text = "%s %s: %s in %.1f ms, by %s from %s"
    logger.info(text, scope["method"], path, status, took_ms, caller, peer or "a socket", extra=fields)
