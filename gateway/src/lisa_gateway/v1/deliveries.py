"""Operations on deliveries: read them, and settle them by their receipts."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from lisa_common.cli.parse import read_duration
from lisa_common.errors import InvalidInput
from lisa_common.validation import duration_ms
from lisa_consumer import Held, NackOutcome
from lisa_gateway.aside import aside
from lisa_gateway.handover import Handover
from lisa_gateway.polls import MAX_BATCH, Poller
from lisa_gateway.problems import Busy, Forbidden
from lisa_gateway.settings import MAX_WAIT_S
from lisa_gateway.v1.content import OVERHEAD, Content, Ms, encode_list, encode_message
from lisa_gateway.v1.models import Bodies, Duration, DurationText, Input, duration_of, few
from lisa_gateway.v1.operation import Answer, Call, operation

__all__ = ["ack", "extend", "nack", "read", "reject", "release"]


class Delivery(Content):
    """A message that is delivered, and its receipt."""

    receipt: str
    topic: str
    group: str
    id: str
    attempt: Annotated[int, Field(description="1 for the first delivery in this group")]
    due_ms: Ms
    sent_ms: Ms


class Deliveries(TypedDict):
    """Deliveries; none if none was ready in the time to wait."""

    deliveries: list[Delivery]


class AckResults(TypedDict):
    """One outcome for each receipt."""

    outcomes: list[Literal["acked", "late", "stale"]]


class NackResults(TypedDict):
    """One outcome for each receipt."""

    outcomes: list[NackOutcome]


class Extended(TypedDict):
    """For each receipt, whether its lease goes on; false: it is lost."""

    kept: list[bool]


class Released(TypedDict):
    """How many deliveries were given back."""

    released: int


_LONGEST = f"at most {MAX_WAIT_S:g} s"


def _wait(value: str) -> str:
    if read_duration("wait", value) > MAX_WAIT_S:
        raise InvalidInput("wait", value, _LONGEST)
    return value


_Wait = (
    Annotated[float, Field(ge=0, le=MAX_WAIT_S, allow_inf_nan=False)] | Annotated[DurationText, AfterValidator(_wait)]
)


class Read(Input):
    """What to read, and for how long to wait and to hold it."""

    limit: Annotated[int, Field(ge=1, le=MAX_BATCH, description="most deliveries")] = 1
    wait: Annotated[
        _Wait | None, Field(description=f"how long to wait for the first, {_LONGEST}; by default not at all")
    ] = None
    lease: Annotated[
        Duration | None, Field(description="how long they belong to the reader; by default the visibility timeout")
    ] = None
    bodies: Annotated[Bodies, Field(description="how to write bodies")] = "text"


class Receipts(Input):
    """Deliveries, by the receipts that came with them."""

    receipts: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=2_000)]],
        few(MAX_BATCH, "receipts"),
        Field(min_length=1, max_length=MAX_BATCH),
    ]


class Rejects(Receipts):
    """Deliveries that can never be handled."""

    error: Annotated[str, Field(max_length=2_000, description="why, for operators")] = ""


class Nacks(Receipts):
    """Deliveries that failed."""

    delay: Annotated[
        Duration | None, Field(description="deliver again after this time; by default the topic's backoff decides")
    ] = None
    error: Annotated[str, Field(max_length=2_000, description="why, for operators")] = ""


class Extends(Receipts):
    """Deliveries that take longer."""

    lease: Annotated[Duration | None, Field(description="from now on; by default the topic's visibility timeout")] = (
        None
    )


@operation(
    "POST /v1/topics/{topic}/groups/{group}/read",
    {200: Deliveries},
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


@operation("POST /v1/ack", {200: AckResults}, body=Receipts)
async def ack(call: Call) -> Answer:
    """Acks deliveries that were handled."""
    return Answer({"outcomes": await call.gateway.settler.ack(_held(call))})


@operation("POST /v1/nack", {200: NackResults}, body=Nacks)
async def nack(call: Call) -> Answer:
    """Returns deliveries that failed: they come again, or become garbage."""
    delay = duration_of("delay", call.body.delay)
    outcomes = await call.gateway.settler.nack(_held(call), delay=delay, error=call.body.error)
    return Answer({"outcomes": outcomes})


@operation("POST /v1/reject", {200: NackResults}, body=Rejects)
async def reject(call: Call) -> Answer:
    """Turns deliveries into garbage, whatever attempts are left."""
    return Answer({"outcomes": await call.gateway.settler.reject(_held(call), error=call.body.error)})


@operation("POST /v1/extend", {200: Extended}, body=Extends)
async def extend(call: Call) -> Answer:
    """Renews the leases of deliveries."""
    lease = duration_of("lease", call.body.lease)
    return Answer({"kept": await call.gateway.settler.extend(_held(call), lease)})


@operation("POST /v1/release", {200: Released}, body=Receipts)
async def release(call: Call) -> Answer:
    """Gives back deliveries that were not begun; no attempt is spent."""
    return Answer({"released": await call.gateway.settler.release(_held(call))})
