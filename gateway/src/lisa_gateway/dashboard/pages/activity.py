"""Actions on all messages that a filter selects: a page that names their number and asks, and their progress.

Activity shows them, and who did what.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from starlette.responses import Response

from lisa_common.errors import InvalidInput, LisaError
from lisa_common.validation import check_id, duration_ms
from lisa_gateway.dashboard.bulk_runner import VERBS
from lisa_gateway.dashboard.fragments import Part
from lisa_gateway.dashboard.pages.messages import count
from lisa_gateway.dashboard.selection import Selection, read_due, without_contents
from lisa_gateway.dashboard.view import MOST_FIELDS, Handler, View, see_other
from lisa_gateway.forms import read_fields
from lisa_manager import Operation

__all__ = ["ACTIONS", "confirm", "part", "show"]

_ON_PAGE = 100

_SINGLE = {
    "cancel": "Cancel this message? It will not be delivered.",
    "abort": "Abort this message? Its handler is cancelled, and it becomes a dead letter.",
    "purge": "Delete this dead letter for good? Its body is lost.",
}


async def confirm(view: View) -> Response:
    """Asks whether to go on, with the number of messages."""
    topic, what = view.topic, view.text("what")
    asked: dict[str, Any] = {"selection": None, "number": 1, "at_least": False, "question": "", "id": "", "group": ""}
    if not view.text("id_only"):
        # The number is that of this moment, and so is what will be changed.
        as_of = await view.soon(view.admin.server_time())
        asked["selection"] = selection = replace(_selection(view, topic, what), as_of=as_of)
        asked["number"], asked["at_least"] = await _count(view, selection)
    elif what in _SINGLE:
        asked |= {"question": _SINGLE[what], "id": check_id(view.text("id")), "group": view.text("group")}
    else:
        raise InvalidInput("what", what, f"one of {', '.join(_SINGLE)}")
    title = f"{what} a message" if asked["question"] else f"{what} messages"
    return view.page("confirm.html", title=title, topic=topic, what=what, **asked)


def _selection(view: View, topic: str, what: str) -> Selection:
    if what not in VERBS:
        raise InvalidInput("what", what, f"one of {', '.join(VERBS)}")
    given = view.form.get("selection")
    fields = view.query if given is None else read_fields(given.encode("utf-8", "surrogateescape"), MOST_FIELDS)
    selection = Selection.of(topic, fields, sees_bodies=view.sees_bodies(topic))
    if selection.state not in VERBS[what]:
        raise InvalidInput("state", str(selection.state), f"{' or '.join(VERBS[what])} for {what}")
    return selection


async def _count(view: View, selection: Selection) -> tuple[int, bool]:
    """How many messages are selected; and whether there may be more, as not all could be looked at."""
    if not selection.is_filtered:
        [sizes] = await view.soon(view.admin.sizes(selection.topic))
        return getattr(sizes, selection.state), False
    if selection.state == "garbage" and not selection.needs_look:
        try:
            return await view.soon(view.admin.count_garbage(selection.topic, selection.garbage_filter)), False
        except LisaError:
            # Too many to be counted in time: count what can be.
            pass
    found = await count(view, selection)
    return found.matched, found.cursor is not None


async def _start(view: View) -> Response:
    topic, what = view.topic, view.text("what")
    selection = _selection(view, topic, what)
    if what == "reschedule" and selection.target is None:
        selection.given["to"] = await _read_target(view)
    [sizes] = await view.soon(view.admin.sizes(topic))
    await view.soon(view.desk.runner.start(view.caller.name, what, selection, getattr(sizes, selection.state)))
    return see_other("activity", said=f"started: {what} in {topic}")


async def _read_target(view: View) -> str:
    """The new due time that was typed, as a moment: an operation that is resumed later must not mean a later one."""
    due = read_due("to", view.text("to").strip())
    if not isinstance(due, datetime):
        due = await view.soon(view.admin.server_time()) + timedelta(milliseconds=duration_ms("to", due))
    return due.isoformat()


async def _operation(view: View) -> Operation:
    """The operation that a form names. Raises InvalidInput, also where the user may not stop it."""
    id = view.text("operation")
    operations = await view.soon(view.admin.operations())
    known = next((each for each in operations if each.id == id and view.operates(each.topic)), None)
    if known is None:
        raise InvalidInput("operation", id, "the id of an operation that is known")
    return known


async def _stop(view: View) -> Response:
    """Asks for the end of an operation."""
    known = await _operation(view)
    stopped = await view.soon(view.admin.stop_operation(known.id))
    if stopped:
        await view.note(f"stop {known.what}", known.topic, detail=known.selection)
    return see_other("activity", said="it stops after its present step" if stopped else "it has ended already")


async def _resume(view: View) -> Response:
    """Starts an operation anew that did not come to its end: what is done is no longer selected."""
    known = await _operation(view)
    if known.status in ("running", "done"):
        raise InvalidInput("operation", known.id, "the id of an operation that has ended before it was done")
    view.form = {"topic": known.topic, "what": known.what, "selection": known.selection}
    return await _start(view)


async def show(view: View) -> Response:
    """The page."""
    view.desk.sampler.want()
    before = view.text("before") or None
    actions = await view.soon(view.admin.activity(limit=_ON_PAGE, before=before))
    return view.page(
        "activity.html",
        title="Activity",
        # An action on no topic names workers or patterns of any: it is for those who may see all.
        actions=[
            each if view.sees_bodies(each.topic) else replace(each, detail=without_contents(each.detail))
            for each in actions
            if view.sees(each.topic or "*")
        ],
        next=actions[-1].entry if len(actions) == _ON_PAGE else "",
        part=await _part(view),
    )


def part(view: View) -> Part:
    """The operations."""
    return Part(f"activity {view.rights}", list, partial(_part, view))


async def _part(view: View) -> str:
    operations = await view.soon(view.admin.operations())
    rows = [
        each
        if view.sees_bodies(each.topic)
        else replace(
            each, selection=without_contents(each.selection), error=each.error and "see the log of the gateway"
        )
        for each in operations
        if view.sees(each.topic)
    ]
    return view.fragment("_activity.html", operations=[(each, view.operates(each.topic)) for each in rows])


ACTIONS: Mapping[str, Handler] = {"bulk": _start, "resume": _resume, "stop": _stop}
