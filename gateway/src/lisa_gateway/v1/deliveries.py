"""Operations on deliveries: read them, and settle them by their receipts."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from lisa_common.errors import InvalidInput
from lisa_common.validation import duration_ms
from lisa_consumer import Held
from lisa_gateway.access import Forbidden
from lisa_gateway.aside import aside
from lisa_gateway.handover import Handover
from lisa_gateway.polls import Poller
from lisa_gateway.problems import Busy
from lisa_gateway.v1 import answers
from lisa_gateway.v1.content import OVERHEAD, encode_list, encode_message
from lisa_gateway.v1.models import Extends, Input, Nacks, Read, Receipts, Rejects, duration_of
from lisa_gateway.v1.operation import Answer, Call, Operation

__all__ = ["OPERATIONS"]


async def _read(call: Call) -> Answer:
    """Reads deliveries; waits for the first, up to `wait`."""
    given: Read = call.body
    gateway, topic, quota = call.state.gateway, call.topic, call.caller.quota
    wait_s, lease_s = duration_of("wait", given.wait) or 0.0, duration_of("lease", given.lease)
    if lease_s is not None:
        # Checked before anything is read: a lease of 0 would mean the visibility timeout.
        duration_ms("lease", lease_s, low_ms=1)
    policy = await gateway.topics.ensure(topic, quota)
    if lease_s is None:
        lease_s = policy.visibility_ms / 1000
    desk = gateway.desk(call.path["group"], quota)
    most = gateway.settings.max_polls
    if wait_s and desk.polls.count_of(topic) >= most:
        raise Busy(f"{most} reads wait for topic {topic!r} already")
    poller = Poller(topic, given.limit, lease_s, by_id=False)
    async with Handover(desk.polls, poller, call.request.receive) as handover:
        with quota.poll() if wait_s else nullcontext():
            read = await gateway.topics.unless_dropped(topic, handover.read(wait_s))
        held = [Held(delivery, desk.lender.name) for delivery in read]
        size = sum(OVERHEAD + len(each.delivery.body) for each in held)
        items = (_delivery(call, each, given) for each in held)
        return Answer(await aside(size, lambda: encode_list("deliveries", items)), handover=handover)


def _delivery(call: Call, held: Held, given: Read) -> bytes:
    delivery = held.delivery
    members = {
        "receipt": call.state.receipts.write(delivery, held.consumer),
        "topic": delivery.topic,
        "group": delivery.group,
        "id": delivery.id,
        "attempt": delivery.attempt,
        "due_ms": delivery.due_ms,
        "sent_ms": delivery.sent_ms,
    }
    return encode_message(members, delivery.body, delivery.headers, given.bodies)


def _held(call: Call) -> Sequence[Held]:
    """The deliveries of a request; raises Forbidden unless the caller may consume all of their topics."""
    held = [_receipt(call, place, receipt) for place, receipt in enumerate(call.body.receipts)]
    for place, each in enumerate(held):
        if not call.shows(each.delivery.topic):
            # Its topic may be one that the caller does not know.
            raise Forbidden(f"receipts.{place} is of a topic for which {call.caller.name!r} may not consume")
    return held


def _receipt(call: Call, place: int, receipt: str) -> Held:
    try:
        return call.state.receipts.read(receipt)
    except InvalidInput as error:
        raise InvalidInput(f"receipts.{place}", receipt, error.expected) from None


async def _ack(call: Call) -> Answer:
    return Answer({"outcomes": await call.state.gateway.settler.ack(_held(call))})


async def _nack(call: Call) -> Answer:
    delay = duration_of("delay", call.body.delay)
    outcomes = await call.state.gateway.settler.nack(_held(call), delay=delay, error=call.body.error)
    return Answer({"outcomes": outcomes})


async def _reject(call: Call) -> Answer:
    return Answer({"outcomes": await call.state.gateway.settler.reject(_held(call), error=call.body.error)})


async def _extend(call: Call) -> Answer:
    lease = duration_of("lease", call.body.lease)
    return Answer({"kept": await call.state.gateway.settler.extend(_held(call), lease)})


async def _release(call: Call) -> Answer:
    return Answer({"released": await call.state.gateway.settler.release(_held(call))})


def _settling(name: str, summary: str, answer: Any, body: type[Input], result: Any) -> Operation:
    return Operation(
        method="POST",
        path=f"/v1/{name}",
        name=name,
        summary=summary,
        answer=answer,
        answers={200: result},
        body=body,
        problems=(413, 415),
    )


OPERATIONS = (
    Operation(
        method="POST",
        path="/v1/topics/{topic}/groups/{group}/read",
        name="read",
        summary="Reads messages that are due, and waits for the first",
        answer=_read,
        answers={200: answers.Deliveries},
        body=Read,
        body_required=False,
        problems=(409, 413, 415),
    ),
    _settling("ack", "Acks deliveries that were handled", _ack, Receipts, answers.AckResults),
    _settling("nack", "Returns deliveries that failed: they come again, or become garbage", _nack, Nacks,
              answers.NackResults),
    _settling("reject", "Turns deliveries into garbage, whatever attempts are left", _reject, Rejects,
              answers.NackResults),
    _settling("extend", "Renews the leases of deliveries", _extend, Extends, answers.Extended),
    _settling("release", "Gives back deliveries that were not begun; no attempt is spent", _release, Receipts,
              answers.Released),
)  # fmt: skip
