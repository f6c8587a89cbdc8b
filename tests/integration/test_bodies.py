"""Typed bodies and codecs, from the sender to the handler."""

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from lisa_common.errors import InvalidInput
from lisa_consumer import AsyncConsumer, Consumer, Delivery, Worker
from lisa_producer import AsyncProducer, Message, PartialSend, Producer
from lisa_testing import Lisa
from support.unspeakable import Unspeakable

_ID, _AT = UUID(int=7), datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


class Colour(Enum):
    """A choice."""

    RED = "red"


class Line(BaseModel):
    """A part of an order."""

    sku: str
    price: Decimal = Field(alias="unitPrice")


class Order(BaseModel):
    """A pydantic model, with others in it."""

    id: UUID
    at: datetime
    lines: list[Line]


@dataclass
class Reminder:
    """A dataclass."""

    id: UUID
    day: date
    after: timedelta
    colour: Colour = Colour.RED


class Mail(TypedDict):
    """A TypedDict, whose values need a form in JSON."""

    to: str
    order: UUID
    at: datetime
    total: Decimal


_ORDER = Order(id=_ID, at=_AT, lines=[Line(sku="a", unitPrice=Decimal("1.10"))])
_REMINDER = Reminder(_ID, date(2030, 1, 2), timedelta(minutes=5))
_MAIL = Mail(to="ann", order=_ID, at=_AT, total=Decimal("2.50"))


@pytest.fixture
def lisa_server(redis_url: str) -> str:
    """The test kit, on the server of this run."""
    return redis_url


@pytest.mark.parametrize(
    ("body", "as_type"),
    [
        pytest.param(_ORDER, Order, id="model"),
        pytest.param(_REMINDER, Reminder, id="dataclass"),
        pytest.param(_MAIL, Mail, id="TypedDict"),
        pytest.param([_ORDER, _ORDER], list[Order], id="list"),
        pytest.param({"a": _ID}, dict[str, UUID], id="dict"),
        pytest.param("text", str, id="text"),
        pytest.param(b"\xff\x00", bytes, id="bytes"),
        pytest.param(7, int, id="number"),
    ],
)
def test_a_value_arrives_as_it_was_sent(lisa: Lisa, body: Any, as_type: Any) -> None:
    """Sent as it is; the handler and the consumer find an equal value of the type."""
    worker, values = Worker("g"), list[Any]()
    worker.on("orders", body=as_type)(lambda delivery: values.append(delivery.value))
    lisa.attach(worker)
    with Consumer("orders", "audit", body=as_type) as consumer:
        consumer.read()
        lisa.send("orders", body)
        lisa.assert_sent("orders", body=body)
        assert len(lisa.drain(worker).handled) == 1
        assert [values, [delivery.value for delivery in consumer.read()]] == [[body], [body]]


def test_what_does_not_fit_is_garbage_with_the_reason(lisa: Lisa) -> None:
    """The handler is not called; the reason names the fields and shows no values; an attempt is not wasted on it."""
    worker, values = Worker("g"), list[Any]()
    worker.on("orders", body=Order)(lambda delivery: values.append(delivery.value))
    lisa.attach(worker)
    lisa.send("orders", {"id": "secret", "lines": []}, id="fields")
    lisa.send("orders", b"{", id="json")
    lisa.send("orders", _ORDER)
    lisa.drain(worker)
    assert values == [_ORDER]
    errors = {letter.id: letter.failure.error for letter in lisa.garbage("orders") if letter.failure}
    assert errors["fields"].startswith("body must be a valid Order: id: Input should be a valid UUID")
    assert "at: Field required" in errors["fields"]
    assert "secret" not in errors["fields"]
    assert errors["json"].startswith("body must be a valid Order: Invalid JSON")
    assert {letter.reason for letter in lisa.garbage("orders")} == {"rejected"}


async def test_a_consumer_rejects_what_does_not_fit(lisa: Lisa) -> None:
    """And returns the others, after as long a wait as it was asked for."""
    async with AsyncProducer() as producer, AsyncConsumer("orders", "g", body=Order) as consumer:
        await consumer.read()
        await producer.send("orders", 1, id="bad")
        assert await consumer.read(wait=0.05) == []
        await producer.send("orders", 2, id="worse")
        await producer.send("orders", _ORDER)
        (delivery,) = await consumer.read(wait=30)
        assert delivery.value.lines[0].price == Decimal("1.10")
        await consumer.ack(delivery)
    assert sorted(letter.id for letter in lisa.garbage("orders")) == ["bad", "worse"]


def test_batches_have_values(lisa: Lisa) -> None:
    """What does not fit never reaches the batch."""
    worker, values = Worker("g"), list[Any]()
    worker.on("orders", body=int, batch=10)(lambda batch: values.extend(each.value for each in batch))
    lisa.attach(worker)
    for body in (1, "x", 2):
        lisa.send("orders", body)
    lisa.drain(worker)
    assert values == [1, 2]
    assert len(lisa.garbage("orders")) == 1


@pytest.mark.parametrize("batch", [None, 10])
def test_a_type_that_is_not_defined_yet_costs_no_message(lisa: Lisa, batch: int | None) -> None:
    """The fault is the program's: its messages are retried, and are handled once it is mended."""

    class Unfinished(TypedDict):
        line: "Later"  # type: ignore[name-defined] # noqa: F821

    worker = Worker("g")
    worker.on("orders", body=Unfinished, batch=batch)(lambda _: None)
    lisa.attach(worker)
    lisa.send("orders", {"line": 1}, id="valid", max_retries=5)
    lisa.drain(worker)
    assert lisa.garbage("orders") == []
    found = lisa.find("orders", "valid")
    assert found is not None
    assert "PydanticUserError" in found.copies[0].failure.error  # type: ignore[union-attr]


class Reversed:
    """A codec that anybody can tell from JSON."""

    def encode(self, value: Any) -> bytes:
        """JSON, backwards."""
        return json.dumps(value).encode()[::-1]

    def decode(self, data: bytes) -> Any:
        """What `encode` was given."""
        return json.loads(data[::-1])


def test_a_codec_replaces_json(lisa: Lisa) -> None:
    """At both ends, in single sends and many; bytes and text do not pass it; values are validated."""
    worker, values = Worker("g", codec=Reversed()), list[Any]()
    worker.on("orders", body=Mail)(lambda delivery: values.append(delivery.value))
    lisa.attach(worker)
    with Producer(codec=Reversed()) as producer, Consumer("orders", "audit", body=Any, codec=Reversed()) as consumer:  # type: ignore[arg-type]
        consumer.read()
        mail = {"to": "ann", "order": str(_ID), "at": _AT.isoformat(), "total": "2.50"}
        producer.send("orders", mail)
        producer.send_many("orders", [Message(body={"to": 1}), Message(body="text")])
        assert [sent.body for sent in lisa.sent] == [Reversed().encode(mail), Reversed().encode({"to": 1}), b"text"]
        lisa.drain(worker)
        assert values == [_MAIL]
        assert len(lisa.garbage("orders")) == 2
        assert [delivery.value for delivery in consumer.read()] == [mail, {"to": 1}]
        with pytest.raises(InvalidInput, match="body must be a value that the codec encodes"):
            producer.send("orders", object())
        with pytest.raises(PartialSend) as caught:
            producer.send_many("orders", [Message(body=object()), Message(body=1)])
        assert (caught.value.report.sent, caught.value.report.failed) == (1, 1)


class _Failing(Reversed):
    def encode(self, _: Any) -> bytes:
        raise Unspeakable

    def decode(self, _: bytes) -> Any:
        raise Unspeakable


class _Panic(BaseException):
    """As bindings of other languages raise it."""


class _Panicking(Reversed):
    def decode(self, _: bytes) -> Any:
        raise _Panic


@pytest.mark.parametrize("batch", [None, 2])
def test_a_codec_may_panic(lisa: Lisa, batch: int | None) -> None:
    """The worker goes on; the message has failed."""
    worker = Worker("g", codec=_Panicking())
    worker.on("orders", body=Mail, **({"batch": batch} if batch else {}))(print)
    lisa.attach(worker)
    with Producer() as producer:
        producer.send("orders", {"to": 1}, id="a", max_retries=0)
    lisa.drain(worker)
    [copy] = lisa.garbage("orders")
    assert copy.failure
    assert copy.failure.error.startswith("_Panic")


def test_a_codec_may_fail_without_a_text(lisa: Lisa) -> None:
    """A sender's names the body; a reader's makes garbage of the message, with the reason."""
    worker = Worker("g", codec=_Failing())
    worker.on("orders", body=Mail)(print)
    lisa.attach(worker)
    with Producer(codec=_Failing()) as producer, pytest.raises(InvalidInput, match="encodes \\(Unspeakable: no text"):
        producer.send("orders", {"to": 1})
    with Producer() as producer:
        producer.send("orders", {"to": 1})
    lisa.drain(worker)
    [copy] = lisa.garbage("orders")
    assert copy.failure
    assert copy.failure.reason == "rejected"
    assert copy.failure.error.endswith("Unspeakable: no text, as the __str__ of Unspeakable raised SystemExit")


@pytest.mark.parametrize(
    "body",
    [object(), {"a": b"x"}, {1, 2}, (n for n in ()), ValueError("x"), Order],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_form_in_json_is_refused(lisa: Lisa, body: object) -> None:
    """Pydantic would take some of these."""
    with pytest.raises(InvalidInput, match="body must be bytes, text or a JSON value"):
        lisa.send("orders", body)
    lisa.assert_not_sent("orders")


def test_bad_types_and_codecs_are_refused() -> None:
    """When they are named, not when a message comes."""
    for bad, field in (
        (lambda: Worker("g").on("orders", body=lambda: None), "body"),
        (lambda: Worker("g").on("orders", body="Order"), "body"),
        (lambda: Consumer("orders", "g", body=object()), "body"),  # type: ignore[arg-type]
        (lambda: Worker("g", codec=json), "codec"),  # type: ignore[arg-type]
        (lambda: Producer(codec=Reversed), "codec"),  # type: ignore[arg-type]
        (lambda: Consumer("orders", "g", codec="json"), "codec"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidInput) as caught:
            bad()
        assert caught.value.field == field


def test_an_untyped_handler_has_no_value(lisa: Lisa) -> None:
    """The body is decoded only where a type was asked for."""
    worker, got = Worker("g"), list[Delivery]()
    worker.on("orders")(got.append)
    lisa.send("orders", b"{")
    lisa.drain(worker)
    assert [delivery.value for delivery in got] == [None]
