"""The server: its health and memory, the managers, the clock."""

import time
from collections.abc import Awaitable
from typing import TypeVar

from starlette.responses import Response

from lisa_common.errors import LisaError
from lisa_gateway.dashboard.view import View

__all__ = ["show"]

T = TypeVar("T")


async def show(view: View) -> Response:
    """The page. What cannot be read is left out, and the reason shown."""
    asked = time.time()
    facts, facts_error = await _try(view, view.admin.server_facts())
    answered = time.time()
    health, health_error = await _try(view, view.admin.doctor())
    offset_ms = round(facts.now_ms - 500 * (asked + answered)) if facts else None
    return view.page(
        "server.html",
        title="Server",
        facts=facts,
        health=health,
        error=facts_error or health_error,
        offset_ms=offset_ms,
        round_trip_ms=round(1000 * (answered - asked), 1),
    )


async def _try(view: View, work: Awaitable[T]) -> tuple[T | None, str]:
    try:
        return await view.soon(work), ""
    except LisaError as error:
        return None, str(error)
