"""One message: all that is known of it, and the actions on it. Each is noted in Activity, and leads back to it."""

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from starlette.responses import Response

from lisa_common.errors import InvalidInput, LisaError
from lisa_common.validation import check_id
from lisa_gateway.access import ALL_TOPICS
from lisa_gateway.dashboard.bodies import MOST_EDITED, as_text, show_body
from lisa_gateway.dashboard.selection import read_due
from lisa_gateway.dashboard.site import HEADERS
from lisa_gateway.dashboard.view import Handler, View, see_other
from lisa_gateway.problems import Forbidden
from lisa_manager import (
    AbortOutcome,
    BulkResult,
    CancelOutcome,
    Found,
    GarbageFilter,
    Hop,
    Record,
    RescheduleOutcome,
    State,
)

__all__ = ["ACTIONS", "download", "show"]


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
        if found.record and len(found.record.body) <= MOST_EDITED and as_text(found.record.body) is not None:
            actions.append("replay-edited")
    if states & {State.WAITING, State.READY, State.RETRY, State.DELIVERED}:
        actions.append("cancel")
    if State.DELIVERED in states:
        actions.append("abort")
    return actions


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
    actions = _actions(found) if view.operates(topic) else []
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
        return (), str(error) if view.sees(ALL_TOPICS) else "it cannot be followed now"
    return tuple(hop for hop in hops if view.sees(hop.topic)), ""


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


_Act = Callable[[View, str, str], Awaitable[tuple[bool, str]]]
"""Does something to a message of a topic. Returns whether it was done, and what to say."""

_KEPT_OF_ID = 100


def _handler(what: str, act: _Act) -> Handler:
    async def handle(view: View) -> Response:
        topic, id = view.topic, check_id(view.text("id"))
        done, said = await act(view, topic, id)
        if done:
            await view.note(what, topic, detail=id)
        return see_other("message", topic=topic, id=id, said=said)

    return handle


async def _abort(view: View, topic: str, id: str) -> tuple[bool, str]:
    outcome = await view.soon(view.admin.abort(topic, id))
    done = outcome is AbortOutcome.ABORTED
    return done, "aborted" if done else f"not aborted: the message is {outcome}"


async def _cancel(view: View, topic: str, id: str) -> tuple[bool, str]:
    outcome = (await view.soon(view.admin.cancel(topic, [id])))[id]
    said = {
        CancelOutcome.CANCELLED: "cancelled",
        CancelOutcome.DELIVERED: "cancelled: a consumer has it now, and it will not be delivered again",
    }
    return outcome in said, said.get(outcome, f"not cancelled: the message is {outcome}")


async def _due_now(view: View, topic: str, id: str) -> tuple[bool, str]:
    return await _reschedule_to(view, topic, id, "now", {})


async def _reschedule(view: View, topic: str, id: str) -> tuple[bool, str]:
    text = view.text("when").strip()
    due = read_due("when", text)
    return await _reschedule_to(view, topic, id, text, {"at" if isinstance(due, datetime) else "delay": due})


async def _reschedule_to(view: View, topic: str, id: str, text: str, due: dict[str, Any]) -> tuple[bool, str]:
    outcome = (await view.soon(view.admin.reschedule(topic, [id], **due)))[id]
    done = outcome is RescheduleOutcome.RESCHEDULED
    return done, f"due {text}" if done else f"not rescheduled: the message is {outcome}"


def _where(view: View) -> GarbageFilter:
    """One group's copy, if the form names a group; the empty group is a field with the value "-"."""
    group = view.text("group")
    return GarbageFilter("" if group == "-" else group or None)


def _said(result: BulkResult, done: str) -> tuple[bool, str]:
    if result.done:
        return True, f"{done}: {result.done} {'copy' if result.done == 1 else 'copies'}"
    reasons = ", ".join(f"{name}: {number}" for name, number in result.failed.items())
    return False, f"not {done}: {reasons or 'there is no such dead letter'}"


async def _replay(view: View, topic: str, id: str) -> tuple[bool, str]:
    return _said(await view.soon(view.admin.replay(topic, [id], _where(view))), "replayed")


async def _purge(view: View, topic: str, id: str) -> tuple[bool, str]:
    return _said(await view.soon(view.admin.purge(topic, [id], _where(view))), "purged")


async def _replay_edited(view: View) -> Response:
    """Sends a dead letter's headers and limits with another body, as a new message; then deletes the dead letter.

    If the second step fails, both are there, and nothing is lost. The new id comes from the old message and the body:
    so a form that is sent twice sends one message.
    """
    topic, id = view.topic, check_id(view.text("id"))
    if not view.sees_bodies(topic):
        raise Forbidden("you may not see bodies of messages")
    found = await view.soon(view.admin.find(topic, id))
    if found is None or found.record is None or not any(copy.state == "garbage" for copy in found.copies):
        raise InvalidInput("id", id, "the id of a dead letter that can be read")
    new_id = await _send_edited(view, topic, id, found.record)
    said = f"sent with the edited body as {new_id}"
    try:
        purged = await view.soon(view.admin.purge(topic, [id]))
    except LisaError as error:
        said += f"; but the dead letter {id} could not be purged: {error}"
    else:
        said += "" if purged.done else f"; the dead letter {id} was no longer there"
    return see_other("message", topic=topic, id=new_id, said=said)


async def _send_edited(view: View, topic: str, id: str, record: Record) -> str:
    """Sends the body of the form with the headers and limits of a record. Returns the new id."""
    body = view.text("body").encode("utf-8", "surrogateescape")
    if b"\r\n" not in record.body:
        # Browsers send each end of a line so.
        body = body.replace(b"\r\n", b"\n")
    sent = hashlib.sha256(f"{id}\n{record.sent_ms}\n".encode() + body)
    kept = id.encode()[:_KEPT_OF_ID].decode(errors="ignore").rstrip("~")
    new_id = f"{kept}.edited-{sent.hexdigest()[:12]}"
    send = view.desk.gateway.producer.send(
        topic,
        body,
        id=new_id,
        ttl=None if record.ttl_ms is None else record.ttl_ms / 1000,
        max_retries=record.max_retries,
        priority=record.priority,
        headers=dict(record.headers),
    )
    if not (await view.soon(send)).duplicate:
        await view.note("replay edited", topic, detail=f"{id} as {new_id}")
    return new_id


ACTIONS: Mapping[str, Handler] = {
    "abort": _handler("abort", _abort),
    "cancel": _handler("cancel", _cancel),
    "due-now": _handler("due now", _due_now),
    "reschedule": _handler("reschedule", _reschedule),
    "replay": _handler("replay", _replay),
    "purge": _handler("purge", _purge),
    "replay-edited": _replay_edited,
}
