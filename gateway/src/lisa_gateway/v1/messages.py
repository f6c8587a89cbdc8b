"""Operations on messages: send one, find, cancel, reschedule and list."""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from lisa_common.cli.parse import read_headers
from lisa_common.errors import InvalidInput
from lisa_common.validation import check_new_id
from lisa_gateway.aside import aside
from lisa_gateway.forms import URLENCODED, media_type
from lisa_gateway.json_text import encode
from lisa_gateway.problems import Problem, Refusal
from lisa_gateway.v1.content import OVERHEAD, Content, Ms, encode_list, encode_message, fields_of, options_of
from lisa_gateway.v1.models import Bodies, Duration, Input, MessageInput, MessageQuery, Moment, duration_of, moment_of
from lisa_gateway.v1.operation import Answer, Call, check_plain, operation, parsed, unsupported, validated
from lisa_gateway.v1.stream import STREAMS, StreamResult, send_stream
from lisa_manager import ListedMessage, State
from lisa_producer import CancelOutcome, Found, RescheduleOutcome, SendOutcome

__all__ = ["cancel_message", "find_message", "list_messages", "put_message", "reschedule_message", "send_message"]

_MESSAGES = "/v1/topics/{topic}/messages"
_MESSAGE = "/v1/topics/{topic}/messages/{id}"

_JSON = "application/json"
_FORMS = (URLENCODED, "multipart/form-data")


class Sent(TypedDict):
    """The outcome of one message."""

    id: str
    outcome: Literal["sent", "replaced", "duplicate"]
    due_ms: Ms | None


class Copy(TypedDict):
    """A group's copy of a message."""

    group: str
    state: State
    at_ms: Ms | None
    attempts: int
    reason: str | None
    error: str | None


class FoundMessage(Content):
    """A message and its copies."""

    id: str
    state: State
    due_ms: Ms | None
    attempts: int
    copies: list[Copy]
    sent_ms: NotRequired[Ms]
    ttl_ms: NotRequired[int | None]
    max_retries: NotRequired[int | None]
    priority: NotRequired[int]


class Cancelled(TypedDict):
    """The outcome of a cancel: `delivered` means that a consumer has it now, and no other delivery follows."""

    id: str
    outcome: Literal["cancelled", "delivered"]


class Rescheduled(TypedDict):
    """The outcome of a reschedule."""

    id: str
    outcome: Literal["rescheduled"]


class ListedItem(Content):
    """A message of one state, or a group's copy of it."""

    id: str
    group: str | None
    at_ms: Ms
    attempts: int
    reason: str | None
    error: str | None
    sent_ms: NotRequired[Ms]


class Listed(TypedDict):
    """A page of messages. It may be empty and not the last, which has no cursor."""

    messages: list[ListedItem]
    cursor: str | None


class Reschedule(Input):
    """A new due time: a delay, 0 for now, or a moment."""

    delay: Annotated[Duration | None, Field(description="due after this time")] = None
    at: Annotated[Moment | None, Field(description="due at this time")] = None


class MessagesQuery(Input):
    """Which messages to list."""

    model_config = ConfigDict(strict=False)

    state: Literal["waiting", "ready", "delivered", "retry", "garbage"]
    group: Annotated[str | None, Field(description="copies of this group")] = None
    limit: Annotated[int, Field(ge=1, le=1_000)] = 100
    cursor: Annotated[str | None, Field(max_length=2_000, description="that of the page before")] = None
    bodies: Annotated[Bodies, Field(description="how to write bodies")] = "text"


@operation(
    f"POST {_MESSAGES}",
    {201: Sent, 200: Sent | StreamResult},
    query=MessageQuery,
    body=MessageInput,
    takes_bytes=True,
    conflicts=True,
)
async def send_message(call: Call) -> Answer:
    """Sends one message, or a stream of them."""
    kind = media_type(call.request.headers.get("content-type", ""))
    if kind in STREAMS:
        _check_no_options(call)
        return await send_stream(call)
    if kind == _JSON:
        _check_no_options(call)
        check_plain(call.request)
        data = await call.request.body()
        fields = await aside(len(data), lambda: fields_of(validated(MessageInput, parsed(data))))
    elif kind in _FORMS:
        raise Refusal(unsupported(kind, "the type of the body; use PUT to send a form as it is"))
    else:
        fields = await _raw_fields(call, None)
    return await _send_one(call, fields)


def _check_no_options(call: Call) -> None:
    given = call.query.model_fields_set
    if given:
        raise InvalidInput("query parameter", min(given), "absent, as the JSON body holds the options")


@operation(
    f"PUT {_MESSAGE}",
    {201: Sent, 200: Sent},
    query=MessageQuery,
    takes_bytes=True,
    conflicts=True,
)
async def put_message(call: Call) -> Answer:
    """Sends the body of the request, whatever its content type, under an id."""
    return await _send_one(call, await _raw_fields(call, check_new_id(call.path["id"])))


async def _raw_fields(call: Call, id: str | None) -> dict[str, Any]:
    """Those of a message whose body is that of the request; its content type becomes a header."""
    check_plain(call.request)
    headers = read_headers(call.query.header)
    if kind := call.request.headers.get("content-type"):
        headers.setdefault("content-type", kind)
    options = options_of(call.query)
    return {"body": await call.request.body(), "id": id, "headers": headers} | options


async def _send_one(call: Call, fields: dict[str, Any]) -> Answer:
    # The producer declares the topic, once it finds nothing wrong with the message.
    await call.gateway.topics.admit(call.topic, call.caller.quota)
    result = await call.gateway.producer.send(call.topic, **fields)
    document = {"id": result.id, "outcome": result.outcome, "due_ms": result.due_ms or None}
    return Answer(document, 201 if result.outcome is SendOutcome.SENT else 200)


@operation(f"GET {_MESSAGE}", {200: FoundMessage})
async def find_message(call: Call) -> Answer:
    """Finds a message, in whatever state."""
    found = await call.gateway.producer.find(call.topic, call.path["id"])
    if found is None:
        raise _unknown(call)
    return Answer(await aside(len(found.record.body) if found.record else 0, lambda: _found(found)))


def _unknown(call: Call) -> Refusal:
    topic, id = call.topic, call.path["id"]
    detail = f"topic {topic!r} has no message {id!r}, or no longer knows it"
    return Refusal(Problem(404, "unknown-message", detail, {"topic": topic, "id": id}))


def _found(found: Found) -> bytes:
    copies = [
        {
            "group": copy.group,
            "state": copy.state,
            "at_ms": copy.at_ms,
            "attempts": copy.attempts,
            "reason": copy.failure.reason if copy.failure else None,
            "error": copy.failure.error if copy.failure else None,
        }
        for copy in found.copies
    ]
    document = {
        "id": found.id,
        "state": found.state,
        "due_ms": found.due_ms,
        "attempts": found.attempts,
        "copies": copies,
    }
    if not (record := found.record):
        return encode(document)
    limits = {"ttl_ms": record.ttl_ms, "max_retries": record.max_retries, "priority": record.priority}
    return encode_message(document | {"sent_ms": record.sent_ms} | limits, record.body, record.headers)


@operation(f"DELETE {_MESSAGE}", {200: Cancelled}, conflicts=True)
async def cancel_message(call: Call) -> Answer:
    """Cancels a message that was not delivered yet."""
    outcome = await call.gateway.producer.cancel(call.topic, call.path["id"])
    if outcome is CancelOutcome.UNKNOWN:
        raise _unknown(call)
    if outcome in (CancelOutcome.GARBAGE, CancelOutcome.FINISHED):
        raise _conflict(outcome, "waiting, ready, in retry or delivered")
    return Answer({"id": call.path["id"], "outcome": outcome})


def _conflict(state: str, expected: str) -> Refusal:
    detail = f"the message must be {expected}; it is {state}"
    return Refusal(Problem(409, "conflict", detail, {"field": "state", "value": state, "expected": expected}))


@operation(f"PATCH {_MESSAGE}", {200: Rescheduled}, body=Reschedule, conflicts=True)
async def reschedule_message(call: Call) -> Answer:
    """Gives a message that waits, or is to be retried, another due time."""
    delay, at = duration_of("delay", call.body.delay), moment_of("at", call.body.at)
    outcome = await call.gateway.producer.reschedule(call.topic, call.path["id"], delay=delay, at=at)
    if outcome is RescheduleOutcome.UNKNOWN:
        raise _unknown(call)
    if outcome is not RescheduleOutcome.RESCHEDULED:
        raise _conflict(outcome, "waiting or in retry")
    return Answer({"id": call.path["id"], "outcome": outcome})


@operation(f"GET {_MESSAGES}", {200: Listed}, query=MessagesQuery)
async def list_messages(call: Call) -> Answer:
    """Lists the messages of one state, page by page."""
    query = call.query
    page = await call.gateway.admin.messages(
        call.topic, State(query.state), group=query.group, limit=query.limit, cursor=query.cursor
    )
    size = sum(OVERHEAD + len(message.record.body if message.record else b"") for message in page.messages)
    items = (_listed(message, query.bodies) for message in page.messages)
    return Answer(await aside(size, lambda: encode_list("messages", items, cursor=page.cursor)))


def _listed(message: ListedMessage, bodies: Any) -> bytes:
    failure, record = message.failure, message.record
    document = {
        "id": message.id,
        "group": message.group,
        "at_ms": message.at_ms,
        "attempts": message.attempts,
        "reason": failure.reason if failure else None,
        "error": failure.error if failure else None,
    }
    if not record:
        return encode(document)
    return encode_message(document | {"sent_ms": record.sent_ms}, record.body, record.headers, bodies)
