"""Actions on one message. Each is noted in Activity, and leads back to the message."""

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC

from starlette.responses import Response

from lisa_common.cli import read_duration, read_moment
from lisa_common.errors import InvalidInput, LisaError
from lisa_common.validation import check_id
from lisa_gateway.access import Forbidden
from lisa_gateway.dashboard.view import Handler, View, see_other
from lisa_manager import BulkResult, CancelOutcome, GarbageFilter, Record, RescheduleOutcome

__all__ = ["ACTIONS"]

_Act = Callable[[View, str, str], Awaitable[tuple[bool, str]]]
"""Does something to a message of a topic. Result: whether it was done, and what to say."""

_KEPT_OF_ID = 100


def _handler(what: str, act: _Act) -> Handler:
    async def handle(view: View) -> Response:
        topic, id = view.topic, check_id(view.text("id"))
        done, said = await act(view, topic, id)
        if done:
            await view.note(what, topic, detail=id)
        return see_other("message", topic=topic, id=id, said=said)

    return handle


async def _cancel(view: View, topic: str, id: str) -> tuple[bool, str]:
    outcome = (await view.soon(view.admin.cancel(topic, [id])))[id]
    said = {
        CancelOutcome.CANCELLED: "cancelled",
        CancelOutcome.DELIVERED: "cancelled: a consumer has it now, and it will not be delivered again",
    }
    return outcome in said, said.get(outcome, f"not cancelled: the message is {outcome}")


async def _due_now(view: View, topic: str, id: str) -> tuple[bool, str]:
    return await _reschedule_to(view, topic, id, None)


async def _reschedule(view: View, topic: str, id: str) -> tuple[bool, str]:
    text = view.text("when").strip()
    if not text:
        raise InvalidInput("when", text, "a time from now, as in 15m, or a moment, as in 2026-01-31T12:00:00+01:00")
    return await _reschedule_to(view, topic, id, text)


async def _reschedule_to(view: View, topic: str, id: str, text: str | None) -> tuple[bool, str]:
    if text is None:
        call = view.admin.reschedule(topic, [id])
    elif any(mark in text for mark in ("T", "-", " ")):
        call = view.admin.reschedule(topic, [id], at=read_moment("when", text).astimezone(UTC))
    else:
        call = view.admin.reschedule(topic, [id], delay=read_duration("when", text))
    outcome = (await view.soon(call))[id]
    done = outcome is RescheduleOutcome.RESCHEDULED
    return done, f"due {'now' if text is None else text}" if done else f"not rescheduled: the message is {outcome}"


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

    If the second step fails, both are there, and nothing is lost. The new id comes from the old one and the body, so a
    form that is sent twice sends one message.
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
    """Sends the body of the form with the headers and limits of a record. Result: the new id."""
    body = view.text("body").encode("utf-8", "surrogateescape")
    if b"\r\n" not in record.body:
        # Browsers send each end of a line so.
        body = body.replace(b"\r\n", b"\n")
    new_id = f"{id.rstrip('~')[:_KEPT_OF_ID]}.edited-{hashlib.sha256(body).hexdigest()[:12]}"
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


async def _stop(view: View) -> Response:
    """Asks for the end of an operation."""
    id = view.text("operation")
    operations = await view.soon(view.admin.operations())
    known = next((each for each in operations if each.id == id and view.user.operates(each.topic)), None)
    if known is None:
        raise InvalidInput("operation", id, "the id of an operation that is known")
    stopped = await view.soon(view.admin.stop_operation(id))
    if stopped:
        await view.note(f"stop {known.what}", known.topic, detail=known.selection)
    return see_other("activity", said="it stops after its present step" if stopped else "it has ended already")


ACTIONS: Mapping[str, Handler] = {
    "cancel": _handler("cancel", _cancel),
    "due-now": _handler("due now", _due_now),
    "reschedule": _handler("reschedule", _reschedule),
    "replay": _handler("replay", _replay),
    "purge": _handler("purge", _purge),
    "replay-edited": _replay_edited,
    "stop": _stop,
}
