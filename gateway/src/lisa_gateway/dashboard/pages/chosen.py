"""Actions on the messages that were selected in a list. Those that lose something ask first."""

from collections.abc import Mapping

from starlette.responses import Response

from lisa_common.errors import InvalidInput, Verbatim
from lisa_common.model.keys import split_copy
from lisa_common.validation import check_id
from lisa_gateway.dashboard.bulk_runner import VERBS, change
from lisa_gateway.dashboard.selection import Selection
from lisa_gateway.dashboard.view import Handler, View, see_other

__all__ = ["ACTIONS"]

_PICK = "pick-"
_ASKED = ("cancel", "purge")


async def _act(view: View) -> Response:
    topic, what = view.topic, view.text("what")
    selection = Selection.of(topic, {"state": view.text("state")}, sees_bodies=False)
    if selection.state not in VERBS.get(what, ()) or what == "reschedule":
        raise InvalidInput("what", what, f"something that can be done to {selection.state} messages")
    picked = {name: value for name, value in view.form.items() if name.startswith(_PICK)}
    if not picked:
        raise InvalidInput("messages", Verbatim("none"), "selected in the list")
    copies = [split_copy(value) for value in picked.values()]
    for _, id in copies:
        check_id(id)
    if what in _ASKED and not view.text("sure"):
        return view.page(
            "chosen.html", title=f"{what} messages", topic=topic, what=what, state=selection.state, picked=picked
        )
    done, failed = await view.soon(change(view.admin, topic, copies, what))
    if done:
        await view.note(f"{what} selected", topic, done, ", ".join(id for _, id in copies)[:_NOTED])
    said = f"{what}: {done} done" + (f", {failed} not: they are elsewhere by now" if failed else "")
    return see_other("messages", topic=topic, state=selection.state, said=said)


_NOTED = 200

ACTIONS: Mapping[str, Handler] = {"chosen": _act}
