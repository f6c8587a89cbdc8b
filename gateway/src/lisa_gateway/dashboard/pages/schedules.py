"""Schedules: what they send when, and their actions."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from starlette.responses import Response

from lisa_common.errors import InvalidInput, UnknownSchedule
from lisa_common.validation import check_name
from lisa_gateway.access import ALL_TOPICS
from lisa_gateway.dashboard.bodies import show_body
from lisa_gateway.dashboard.view import Handler, View, see_other
from lisa_gateway.problems import Forbidden
from lisa_manager import ScheduleState

__all__ = ["ACTIONS", "show", "show_one"]

_ON_PAGE = 200
_RUNS = 10


def _topic(state: ScheduleState) -> str:
    """The topic that decides who may see a schedule; of a damaged one, all topics."""
    return state.schedule.topic if state.schedule else ALL_TOPICS


async def _schedule(view: View) -> ScheduleState:
    """The schedule that a request names. Raises UnknownSchedule, also where the user may not know of it."""
    state = await view.soon(view.admin.schedule(check_name("schedule", view.text("name"))))
    try:
        view.check(_topic(state))
    except Forbidden:
        raise UnknownSchedule(state.name) from None
    return _without_damage(view, state)


def _without_damage(view: View, state: ScheduleState) -> ScheduleState:
    """The same; without what may quote its body, for a user who may not see it."""
    if not state.damage or view.sees_bodies(_topic(state)):
        return state
    return replace(state, damage="it cannot be read")


async def show(view: View) -> Response:
    """All schedules: those with problems first, then by their next run."""
    text = view.text("q")[:200].lower()
    page = view.number("page_number", 0, 0, 100_000)
    states = [each for each in await view.soon(view.admin.list_schedules()) if view.sees(_topic(each))]
    matching = [each for each in states if text in each.name.lower() or text in _topic(each).lower()]
    matching.sort(key=lambda each: (not each.damage, not each.is_overdue, each.next_ms or float("inf"), each.name))
    first = page * _ON_PAGE
    return view.page(
        "schedules.html",
        title="Schedules",
        rows=[
            (_without_damage(view, each), view.operates(_topic(each))) for each in matching[first : first + _ON_PAGE]
        ],
        count=len(matching),
        all=len(states),
        text=text,
        page=page,
        is_last=first + _ON_PAGE >= len(matching),
    )


async def show_one(view: View) -> Response:
    """One schedule with its next ten runs."""
    state = await _schedule(view)
    schedule = state.schedule if view.sees_bodies(_topic(state)) else None
    return view.page(
        "schedule.html",
        title=state.name,
        state=state,
        schedule=state.schedule,
        runs=state.next_ticks(_RUNS),
        body=show_body(schedule.body, "") if schedule else None,
        operates=view.operates(_topic(state)),
    )


_Act = Callable[[View, str], Awaitable[str]]
"""Does something to a schedule. Result: what to say; empty if nothing changed."""


def _handler(what: str, act: _Act) -> Handler:
    async def handle(view: View) -> Response:
        state = await _schedule(view)
        name = state.name
        if state.schedule is None:
            raise InvalidInput("name", name, "the name of a schedule that can be read")
        topic = state.schedule.topic
        said = await act(view, name)
        if said:
            await view.note(what, topic, detail=f"{name}: {said}")
        return see_other("schedule", name=name, said=said or "nothing to change")

    return handle


async def _pause(view: View, name: str) -> str:
    return "paused" if await view.soon(view.admin.pause_schedule(name)) else ""


async def _resume(view: View, name: str) -> str:
    return "resumed" if await view.soon(view.admin.resume_schedule(name)) else ""


async def _run_now(view: View, name: str) -> str:
    return f"sent as {await view.soon(view.admin.run_now(name))}"


async def _skip(view: View, name: str) -> str:
    tick = await view.soon(view.admin.skip_tick(name))
    return "" if tick is None else "the next run is left out"


ACTIONS: Mapping[str, Handler] = {
    "pause-schedule": _handler("pause schedule", _pause),
    "resume-schedule": _handler("resume schedule", _resume),
    "run-now": _handler("run now", _run_now),
    "skip": _handler("skip", _skip),
}
