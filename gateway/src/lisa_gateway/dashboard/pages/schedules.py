"""Schedules: what they send when, and their actions."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from starlette.responses import Response

from lisa_common.errors import InvalidInput, UnknownSchedule
from lisa_common.validation import check_name
from lisa_gateway.dashboard.bodies import show_body
from lisa_gateway.dashboard.view import Handler, View, see_other
from lisa_gateway.problems import Forbidden
from lisa_manager import ScheduleState

__all__ = ["ACTIONS", "show", "show_one"]

_ON_PAGE = 200
_RUNS = 10


async def _schedule(view: View) -> ScheduleState:
    """The schedule that a request names. Raises UnknownSchedule, also where the user may not know of it."""
    topic, name = check_name("topic", view.text("topic")), check_name("schedule", view.text("name"))
    try:
        view.check(topic)
    except Forbidden:
        raise UnknownSchedule(topic, name) from None
    return _without_damage(view, await view.soon(view.admin.schedule(topic, name)))


def _without_damage(view: View, state: ScheduleState) -> ScheduleState:
    """The same; without what may quote its body, for a user who may not see it."""
    if not state.damage or view.sees_bodies(state.topic):
        return state
    return replace(state, damage="it cannot be read")


async def show(view: View) -> Response:
    """All schedules: those with problems first, then by their next run."""
    text = view.text("q")[:200].lower()
    page = view.number("page_number", 0, 0, 100_000)
    states = [each for each in await view.soon(view.admin.list_schedules()) if view.sees(each.topic)]
    matching = [each for each in states if text in each.name.lower() or text in each.topic.lower()]
    matching.sort(
        key=lambda each: (not each.damage, not each.is_overdue, each.next_ms or float("inf"), each.topic, each.name)
    )
    first = page * _ON_PAGE
    return view.page(
        "schedules.html",
        title="Schedules",
        rows=[(_without_damage(view, each), view.operates(each.topic)) for each in matching[first : first + _ON_PAGE]],
        count=len(matching),
        all=len(states),
        text=text,
        page=page,
        is_last=first + _ON_PAGE >= len(matching),
    )


async def show_one(view: View) -> Response:
    """One schedule with its next ten runs."""
    state = await _schedule(view)
    schedule = state.schedule if view.sees_bodies(state.topic) else None
    return view.page(
        "schedule.html",
        title=state.name,
        state=state,
        schedule=state.schedule,
        runs=state.next_ticks(_RUNS),
        body=show_body(schedule.body, "") if schedule else None,
        operates=view.operates(state.topic),
    )


_Act = Callable[[View, str, str], Awaitable[str]]
"""Does something to a schedule. Returns what to say; empty if nothing changed."""


def _handler(what: str, act: _Act) -> Handler:
    async def handle(view: View) -> Response:
        state = await _schedule(view)
        name = state.name
        if state.schedule is None:
            raise InvalidInput("name", name, "the name of a schedule that can be read")
        said = await act(view, state.topic, name)
        if said:
            await view.note(what, state.topic, detail=f"{name}: {said}")
        return see_other("schedule", topic=state.topic, name=name, said=said or "nothing to change")

    return handle


async def _pause(view: View, topic: str, name: str) -> str:
    return "paused" if await view.soon(view.admin.pause_schedule(topic, name)) else ""


async def _resume(view: View, topic: str, name: str) -> str:
    return "resumed" if await view.soon(view.admin.resume_schedule(topic, name)) else ""


async def _run_now(view: View, topic: str, name: str) -> str:
    return f"sent as {await view.soon(view.admin.run_now(topic, name))}"


async def _skip(view: View, topic: str, name: str) -> str:
    tick = await view.soon(view.admin.skip_tick(topic, name))
    return "" if tick is None else "the next run is left out"


ACTIONS: Mapping[str, Handler] = {
    "pause-schedule": _handler("pause schedule", _pause),
    "resume-schedule": _handler("resume schedule", _resume),
    "run-now": _handler("run now", _run_now),
    "skip": _handler("skip", _skip),
}
