"""Activity: operations with their progress, and who did what."""

from dataclasses import replace
from functools import partial

from starlette.responses import Response

from lisa_common.errors import InvalidInput
from lisa_gateway.dashboard.fragments import Part
from lisa_gateway.dashboard.selection import without_contents
from lisa_gateway.dashboard.view import View

__all__ = ["part", "show"]

_ON_PAGE = 100
_ENTRY_LENGTH = 40


async def show(view: View) -> Response:
    """The page."""
    view.desk.sampler.want()
    before = view.text("before") or None
    if before is not None and not (len(before) <= _ENTRY_LENGTH and before.replace("-", "", 1).isdigit()):
        raise InvalidInput("before", before, "the place of an action in the list")
    actions = await view.soon(view.admin.activity(limit=_ON_PAGE, before=before))
    return view.page(
        "activity.html",
        title="Activity",
        # An action on no topic is for all who may see anything.
        actions=[
            each if view.sees_bodies(each.topic) else replace(each, detail=without_contents(each.detail))
            for each in actions
            if not each.topic or view.sees(each.topic)
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
