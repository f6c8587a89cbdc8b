"""The messages of a topic in one state, searched in bounded time; and the search by id."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

from starlette.responses import Response

from lisa_common.errors import InvalidInput, LisaError, OutcomeUnknown, UnknownGroup
from lisa_common.validation import check_id
from lisa_gateway.dashboard.bodies import excerpt
from lisa_gateway.dashboard.bulk_runner import VERBS
from lisa_gateway.dashboard.selection import STATES, Selection
from lisa_gateway.dashboard.view import View, see_other
from lisa_gateway.problems import problem_of
from lisa_manager import REASONS, GarbageSummary, ListedMessage, MessagePage, State

__all__ = ["count", "find", "show"]

_ON_PAGE = 50
_STEP = 200
_MOST = 10_000
"""Messages that one search looks at."""

_LEFT = 0.25
"""The share of a page's patience that is left when a search ends."""

_MOST_TOPICS = 1_000
"""Topics in which one search by id looks."""

_AT_ONCE = 50


async def show(view: View) -> Response:
    """The page."""
    topic = view.topic
    sees_bodies = view.sees_bodies(topic)
    selection = Selection.as_typed(topic, view.query, sees_bodies=sees_bodies)
    sampler = view.desk.sampler
    with sampler.watching([topic]):
        await sampler.first([topic], wait_s=view.desk.wait_s)
    found = _Findings()
    try:
        found = await _search(view, selection.check(), view.text("cursor") or None)
    except (InvalidInput, UnknownGroup) as error:
        view.refusal = problem_of(error)
    known = sampler.known.get(topic)
    return view.page(
        "messages.html",
        title=f"{topic}: {selection.state}",
        topic=topic,
        selection=selection,
        states=STATES,
        sizes={state: getattr(known.status, state) for state in STATES} if known else {},
        found=found,
        reasons=REASONS,
        verbs=[
            verb
            for verb, states in VERBS.items()
            if selection.state in states and verb != "reschedule" and not view.refusal
        ],
        operates=view.operates(topic),
        sees_bodies=sees_bodies,
        excerpt=excerpt,
        now_ms=await view.soon(view.desk.gateway.now_ms()),
        summary=await _summary(view, selection) if sees_bodies else None,
    )


async def _summary(view: View, selection: Selection) -> GarbageSummary | None:
    """Why the latest dead letters of the selection died; None where that is not known in time."""
    if selection.state is not State.GARBAGE or selection.needs_look:
        return None
    try:
        where = selection.garbage_filter
        return await view.soon(view.admin.summarize_garbage(selection.topic, where, limit=_MOST))
    except (InvalidInput, UnknownGroup, OutcomeUnknown):
        return None


async def find(view: View) -> Response:
    """Looks for a message by its id: in one topic, or in all."""
    id = check_id(view.text("id").strip())
    named = view.text("topic").strip()
    if named:
        return see_other("message", topic=named, id=id)
    sampler = view.desk.sampler
    await sampler.first(wait_s=view.desk.wait_s)
    names = [name for name in sampler.topics if view.sees(name)]
    places, looked = await _look(view, names[:_MOST_TOPICS], id)
    if len(places) == 1:
        return see_other("message", topic=places[0], id=id)
    return view.page("found.html", title=f"Message {id}", id=id, places=places, looked=looked, count=len(names))


async def _look(view: View, names: list[str], id: str) -> tuple[list[str], int]:
    """The topics that know the message, and in how many it has looked."""
    places: list[str] = []
    looked = 0

    async def look() -> None:
        nonlocal looked
        for first in range(0, len(names), _AT_ONCE):
            some = names[first : first + _AT_ONCE]
            found = await asyncio.gather(*(view.admin.find(name, id) for name in some), return_exceptions=True)
            for name, each in zip(some, found, strict=True):
                if each is not None and not isinstance(each, BaseException):
                    places.append(name)
                elif isinstance(each, BaseException) and not isinstance(each, LisaError):
                    raise each
            looked += len(some)

    try:
        await view.soon(look())
    except LisaError:
        # What was found until then is shown, and how far it has looked.
        return places, looked
    return places, looked


@dataclass(slots=True)
class _Findings:
    """What a search has found."""

    messages: list[ListedMessage] = field(default_factory=list)
    matched: int = 0
    looked: int = 0
    """How many messages it looked at."""
    cursor: str | None = None
    """Continues the search; None where all were looked at."""


async def _search(view: View, selection: Selection, cursor: str | None) -> _Findings:
    """The next messages of a selection. Raises LisaError, unless something was found before."""
    if not selection.is_filtered:
        page = await view.soon(_page(view, selection, _ON_PAGE, cursor))
        return _Findings(list(page.messages), len(page.messages), len(page.messages), page.cursor)
    found = _Findings(cursor=cursor)
    async for chosen in _steps(view, selection, found):
        found.messages += chosen
        if len(found.messages) >= _ON_PAGE:
            break
    return found


async def count(view: View, selection: Selection) -> _Findings:
    """How many messages match, as far as it can look; keeps none."""
    found = _Findings()
    async for _ in _steps(view, selection, found):
        continue
    return found


async def _steps(view: View, selection: Selection, found: _Findings) -> AsyncIterator[list[ListedMessage]]:
    ends = time.monotonic() + view.desk.wait_s * (1 - _LEFT)
    if selection.as_of is None:
        selection = replace(selection, as_of=await view.soon(view.admin.server_time()))
    while True:
        try:
            page = await view.soon(_page(view, selection, _STEP, found.cursor))
        except LisaError:
            if not found.looked:
                raise
            return
        chosen = [message for message in page.messages if selection.matches(message)]
        found.looked += len(page.messages)
        found.matched += len(chosen)
        found.cursor = page.cursor
        yield chosen
        if found.cursor is None or found.looked >= _MOST or time.monotonic() > ends:
            return


async def _page(view: View, selection: Selection, limit: int, cursor: str | None) -> MessagePage:
    topic, state = selection.topic, selection.state
    return await view.admin.messages(
        topic, state, group=selection.group, limit=limit, cursor=cursor, newest_first=selection.newest_first
    )
