"""Operations on deliveries: read them, and settle them by their receipts."""

from collections.abc import Sequence
from contextlib import nullcontext

from lisa_common.errors import InvalidInput
from lisa_common.validation import duration_ms
from lisa_consumer import Held
from lisa_gateway.aside import aside
from lisa_gateway.handover import Handover
from lisa_gateway.polls import Poller
from lisa_gateway.problems import Busy, Forbidden
from lisa_gateway.v1 import answers
from lisa_gateway.v1.content import OVERHEAD, encode_list, encode_message
from lisa_gateway.v1.models import Extends, Nacks, Read, Receipts, Rejects, duration_of
from lisa_gateway.v1.operation import Answer, Call, operation

__all__ = ["ack", "extend", "nack", "read", "reject", "release"]


@operation(
    "POST /v1/topics/{topic}/groups/{group}/read",
    {200: answers.Deliveries},
    body=Read,
    body_required=False,
    conflicts=True,
)
async def read(call: Call) -> Answer:
    """Reads messages that are due, and waits for the first."""
    given: Read = call.body
    gateway, topic, quota = call.gateway, call.topic, call.caller.quota
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
        "receipt": call.receipts.write(delivery, held.consumer),
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
        return call.receipts.read(receipt)
    except InvalidInput as error:
        raise InvalidInput(f"receipts.{place}", receipt, error.expected) from None


@operation("POST /v1/ack", {200: answers.AckResults}, body=Receipts)
async def ack(call: Call) -> Answer:
    """Acks deliveries that were handled."""
    return Answer({"outcomes": await call.gateway.settler.ack(_held(call))})


@operation("POST /v1/nack", {200: answers.NackResults}, body=Nacks)
async def nack(call: Call) -> Answer:
    """Returns deliveries that failed: they come again, or become garbage."""
    delay = duration_of("delay", call.body.delay)
    outcomes = await call.gateway.settler.nack(_held(call), delay=delay, error=call.body.error)
    return Answer({"outcomes": outcomes})


@operation("POST /v1/reject", {200: answers.NackResults}, body=Rejects)
async def reject(call: Call) -> Answer:
    """Turns deliveries into garbage, whatever attempts are left."""
    return Answer({"outcomes": await call.gateway.settler.reject(_held(call), error=call.body.error)})


@operation("POST /v1/extend", {200: answers.Extended}, body=Extends)
async def extend(call: Call) -> Answer:
    """Renews the leases of deliveries."""
    lease = duration_of("lease", call.body.lease)
    return Answer({"kept": await call.gateway.settler.extend(_held(call), lease)})


@operation("POST /v1/release", {200: answers.Released}, body=Receipts)
async def release(call: Call) -> Answer:
    """Gives back deliveries that were not begun; no attempt is spent."""
    return Answer({"released": await call.gateway.settler.release(_held(call))})
