"""One message: all that is known of it."""

from dataclasses import dataclass

from starlette.responses import Response

from lisa_common.errors import LisaError
from lisa_common.validation import check_id
from lisa_gateway.access import ALL_TOPICS, Forbidden
from lisa_gateway.dashboard.bodies import MOST_EDITED, show_body
from lisa_gateway.dashboard.security import HEADERS
from lisa_gateway.dashboard.view import View
from lisa_manager import Found, Hop, Record, State

__all__ = ["download", "show"]


@dataclass(frozen=True, slots=True)
class _Event:
    """A moment in the life of a message."""

    at_ms: int
    what: str


def _timeline(found: Found, *, sees_bodies: bool) -> list[_Event]:
    """What is known to have happened, and what is to come, in order."""
    record, events = found.record, list[_Event]()
    if record:
        events += [_Event(record.sent_ms, "sent"), _Event(record.due_ms, "due")]
        if record.expires_ms is not None:
            events.append(_Event(record.expires_ms, "expires, unless it was delivered"))
    for copy in found.copies:
        of = f" in group {copy.group}" if copy.group else ""
        if copy.failure and copy.failure.at_ms:
            events.append(_Event(copy.failure.at_ms, f"failed{of}: {copy.failure.reason}"))
        if copy.at_ms and copy.state is State.RETRY:
            events.append(_Event(copy.at_ms, f"retry due{of}"))
        if copy.at_ms and copy.state is State.GARBAGE:
            events.append(_Event(copy.at_ms, f"became garbage{of}"))
    # What a header says.
    for death in found.deaths if sees_bodies else ():
        events.append(_Event(death.last_ms, f"died in {death.queue}: {death.reason}, {death.count} times"))
    return sorted(dict.fromkeys(events), key=lambda event: event.at_ms)


def _actions(found: Found) -> list[str]:
    """What can be done to a message now."""
    states = {found.state, *(copy.state for copy in found.copies)}
    actions = []
    if states & {State.WAITING, State.RETRY}:
        actions += ["due-now", "reschedule"]
    if State.GARBAGE in states:
        actions += ["replay", "purge"]
        if found.record and len(found.record.body) <= MOST_EDITED and _is_text(found.record.body):
            actions.append("replay-edited")
    if states & {State.WAITING, State.READY, State.RETRY, State.DELIVERED}:
        actions.append("cancel")
    return actions


def _is_text(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


async def show(view: View) -> Response:
    """The page."""
    topic, id = view.topic, check_id(view.text("id"))
    found = await view.soon(view.admin.find(topic, id))
    if found is None:
        detail = f"topic {topic!r} has no message {id!r}, or no longer knows it"
        return view.page("error.html", status=404, title="No such message", detail=detail)
    hops, untraced = await _trace(view, topic, id)
    known = view.desk.sampler.topics.get(topic)
    sees_bodies = view.sees_bodies(topic)
    record = found.record if sees_bodies else None
    actions = _actions(found) if view.user.operates(topic) else []
    return view.page(
        "message.html",
        title=id,
        topic=topic,
        found=found,
        record=found.record,
        body=show_body(record.body, view.text("view")) if record else None,
        editable=record.body.decode() if record and "replay-edited" in actions else "",
        actions=[each for each in actions if each != "replay-edited" or record],
        timeline=_timeline(found, sees_bodies=sees_bodies),
        sees_bodies=sees_bodies,
        hops=hops,
        has_dead_letters=bool(known is None or known.policy.dead_letter_topic),
        untraced=untraced,
        asked_for_trace=bool(view.text("trace")),
    )


async def _trace(view: View, topic: str, id: str) -> tuple[tuple[Hop, ...], str]:
    if not view.text("trace"):
        return (), ""
    try:
        hops = await view.soon(view.admin.trace(topic, id))
    except LisaError as error:
        # It may name topics that the user may not see.
        return (), str(error) if view.user.sees(ALL_TOPICS) else "it cannot be followed now"
    return tuple(hop for hop in hops if view.user.sees(hop.topic)), ""


async def download(view: View) -> Response:
    """The body as it is, to be saved: browsers never show it as a page."""
    topic, id = view.topic, check_id(view.text("id"))
    if not view.sees_bodies(topic):
        raise Forbidden("you may not see bodies of messages")
    found = await view.soon(view.admin.find(topic, id))
    record: Record | None = found.record if found else None
    if record is None:
        return view.page("error.html", status=404, title="No such message", detail="the message has no body now")
    headers = HEADERS | {"content-disposition": 'attachment; filename="body"', "cache-control": "no-store"}
    return Response(record.body, 200, headers, "application/octet-stream")
