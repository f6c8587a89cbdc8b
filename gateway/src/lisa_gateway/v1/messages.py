"""Operations on messages: send one, find, cancel, reschedule and list."""

from typing import Any

from lisa_common.cli.parse import read_headers
from lisa_common.errors import InvalidInput
from lisa_common.validation import check_new_id
from lisa_gateway.aside import aside
from lisa_gateway.forms import URLENCODED
from lisa_gateway.json_text import encode
from lisa_gateway.problems import Problem, Refusal
from lisa_gateway.v1 import answers, models
from lisa_gateway.v1.content import OVERHEAD, encode_list, encode_message, message_of, options_of
from lisa_gateway.v1.operation import Answer, Call, check_plain, operation, parsed, unsupported, validated
from lisa_gateway.v1.stream import STREAMS, send_stream
from lisa_manager import ListedMessage, State
from lisa_producer import CancelOutcome, Found, Message, RescheduleOutcome, SendOutcome, SendResult

__all__ = ["cancel_message", "find_message", "list_messages", "put_message", "reschedule_message", "send_message"]

_MESSAGES = "/v1/topics/{topic}/messages"
_MESSAGE = "/v1/topics/{topic}/messages/{id}"

_JSON = "application/json"
_FORMS = (URLENCODED, "multipart/form-data")


def _media_type(call: Call) -> str:
    return call.request.headers.get("content-type", "").partition(";")[0].strip().lower()


@operation(
    f"POST {_MESSAGES}",
    {201: answers.Sent, 200: answers.Sent | answers.StreamResult},
    query=models.MessageQuery,
    body=models.MessageInput,
    takes_bytes=True,
    conflicts=True,
)
async def send_message(call: Call) -> Answer:
    """Sends one message, or a stream of them."""
    kind = _media_type(call)
    if kind in STREAMS:
        _check_no_options(call)
        return await send_stream(call)
    if kind == _JSON:
        _check_no_options(call)
        check_plain(call.request)
        data = await call.request.body()
        message = await aside(len(data), lambda: message_of(validated(models.MessageInput, parsed(data))))
    elif kind in _FORMS:
        raise Refusal(unsupported(kind, "the type of the body; use PUT to send a form as it is"))
    else:
        message = await _raw_message(call, None)
    return await _send_one(call, message)


def _check_no_options(call: Call) -> None:
    given = call.query.model_fields_set
    if given:
        raise InvalidInput("query parameter", min(given), "absent, as the JSON body holds the options")


@operation(
    f"PUT {_MESSAGE}",
    {201: answers.Sent, 200: answers.Sent},
    query=models.MessageQuery,
    takes_bytes=True,
    conflicts=True,
)
async def put_message(call: Call) -> Answer:
    """Sends the body of the request, whatever its content type, under an id."""
    return await _send_one(call, await _raw_message(call, check_new_id(call.path["id"])))


async def _raw_message(call: Call, id: str | None) -> Message:
    """A message whose body is that of the request; its content type becomes a header."""
    check_plain(call.request)
    headers = read_headers(call.query.header)
    if kind := call.request.headers.get("content-type"):
        headers.setdefault("content-type", kind)
    options = options_of(call.query)
    return Message(body=await call.request.body(), id=id, headers=headers, **options)


async def _send_one(call: Call, message: Message) -> Answer:
    # The producer declares the topic, once it finds nothing wrong with the message.
    await call.gateway.topics.admit(call.topic, call.caller.quota)
    result: SendResult = await call.gateway.producer.send(
        call.topic,
        message.body,
        delay=message.delay,
        at=message.at,
        id=message.id,
        ttl=message.ttl,
        max_retries=message.max_retries,
        priority=message.priority,
        headers=message.headers,
        key=message.key,
        if_exists=message.if_exists,
    )
    document = {"id": result.id, "outcome": result.outcome, "due_ms": result.due_ms or None}
    return Answer(document, 201 if result.outcome is SendOutcome.SENT else 200)


@operation(f"GET {_MESSAGE}", {200: answers.FoundMessage})
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


@operation(f"DELETE {_MESSAGE}", {200: answers.Cancelled}, conflicts=True)
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


@operation(f"PATCH {_MESSAGE}", {200: answers.Rescheduled}, body=models.Reschedule, conflicts=True)
async def reschedule_message(call: Call) -> Answer:
    """Gives a message that waits, or is to be retried, another due time."""
    delay, at = models.duration_of("delay", call.body.delay), models.moment_of("at", call.body.at)
    outcome = await call.gateway.producer.reschedule(call.topic, call.path["id"], delay=delay, at=at)
    if outcome is RescheduleOutcome.UNKNOWN:
        raise _unknown(call)
    if outcome is not RescheduleOutcome.RESCHEDULED:
        raise _conflict(outcome, "waiting or in retry")
    return Answer({"id": call.path["id"], "outcome": outcome})


@operation(f"GET {_MESSAGES}", {200: answers.Listed}, query=models.MessagesQuery)
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
