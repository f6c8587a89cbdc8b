"""Searches messages in bounded time, and says how far it has looked."""

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from lisa_common.errors import LisaError
from lisa_gateway.dashboard.selection import Selection
from lisa_gateway.dashboard.view import View
from lisa_manager import ListedMessage, MessagePage

__all__ = ["Findings", "count", "search"]

ON_PAGE = 50
_STEP = 200
_MOST = 10_000
"""Messages that one search looks at."""

_FURTHEST_S = 0.25
"""The share of a page's patience that is left when a search ends."""


@dataclass(slots=True)
class Findings:
    """What a search has found."""

    messages: list[ListedMessage] = field(default_factory=list)
    matched: int = 0
    looked: int = 0
    """How many messages it looked at."""
    cursor: str | None = None
    """Continues the search; None where all were looked at."""


async def search(view: View, selection: Selection, cursor: str | None) -> Findings:
    """The next messages of a selection. Raises LisaError, unless something was found before."""
    if not selection.is_filtered:
        page = await view.soon(_page(view, selection, ON_PAGE, cursor))
        return Findings(list(page.messages), len(page.messages), len(page.messages), page.cursor)
    found = Findings(cursor=cursor)
    async for chosen in _steps(view, selection, found):
        found.messages += chosen
        if len(found.messages) >= ON_PAGE:
            break
    return found


async def count(view: View, selection: Selection) -> Findings:
    """How many messages match, as far as it can look; keeps none."""
    found = Findings()
    async for _ in _steps(view, selection, found):
        continue
    return found


async def _steps(view: View, selection: Selection, found: Findings) -> AsyncIterator[list[ListedMessage]]:
    ends = time.monotonic() + view.desk.wait_s * (1 - _FURTHEST_S)
    now_ms = (await view.soon(view.admin.server_facts())).now_ms
    while True:
        try:
            page = await view.soon(_page(view, selection, _STEP, found.cursor))
        except LisaError:
            if not found.looked:
                raise
            return
        chosen = [message for message in page.messages if selection.matches(message, now_ms)]
        found.looked += len(page.messages)
        found.matched += len(chosen)
        found.cursor = page.cursor
        yield chosen
        if found.cursor is None or found.looked >= _MOST or time.monotonic() > ends:
            return


async def _page(view: View, selection: Selection, limit: int, cursor: str | None) -> MessagePage:
    topic, state = selection.topic, selection.state
    return await view.admin.messages(topic, state, group=selection.group, limit=limit, cursor=cursor)
