"""Mistakes of a first day with the libraries: each gives one clear error, and loses nothing."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis

from lisa_consumer import AsyncConsumer, Consumer, ConsumerSettings
from lisa_manager import Admin, ManagerSettings
from lisa_producer import (
    AsyncProducer,
    Closed,
    InvalidInput,
    Message,
    PartialSend,
    Producer,
    ProducerSettings,
    SendOutcome,
    SendResult,
)
from support import keys_left
from support.unspeakable import Unspeakable


@pytest.fixture
def settings(redis_url: str, prefix: str) -> ProducerSettings:
    """Of a producer, for the server and prefix of the test."""
    return ProducerSettings(redis_url=redis_url, prefix=prefix)


@pytest.fixture
def producer(settings: ProducerSettings) -> Iterator[Producer]:
    """A producer of these settings."""
    with Producer(settings=settings) as opened:
        yield opened


def _stored(client: redis.Redis, prefix: str) -> int:
    return client.hlen(f"{prefix}:{{orders}}:messages")


class _Boom(Exception):
    pass


def _messages(count: int) -> Iterator[Message]:
    return (Message(body=n, delay=60) for n in range(count))


def _breaks_after(count: int) -> Iterator[Message]:
    yield from _messages(count)
    raise _Boom("the file ended")


# send_many


def test_a_value_that_is_no_message_fails_alone(producer: Producer, client: redis.Redis, prefix: str) -> None:
    """After 700 good messages: all of them are sent, the report names the bad one, and what follows is sent, too."""
    stranger: Any = {"body": "no Message"}
    with pytest.raises(PartialSend, match="message must be a Message") as caught:
        producer.send_many("orders", [*_messages(700), stranger, *_messages(3)])
    report = caught.value.report
    assert (report.sent, report.failed, len(report.results)) == (703, 1, 704)
    assert (report.results[700].outcome, report.results[700].id) == (SendOutcome.FAILED, None)
    assert _stored(client, prefix) == 703


async def test_a_value_that_is_no_message_fails_alone_with_asyncio(settings: ProducerSettings) -> None:
    """Likewise; a callback receives its result."""
    strangers: list[Any] = ["text", None]
    results: list[SendResult] = []
    async with AsyncProducer(settings=settings) as producer:
        report = await producer.send_many("orders", [*_messages(700), *strangers], on_result=results.append)
    assert (report.sent, report.failed, len(results)) == (700, 2, 702)


def test_an_iterable_that_raises_loses_nothing(producer: Producer, client: redis.Redis, prefix: str) -> None:
    """What it yielded before is sent and reported; its own error is the cause."""
    with pytest.raises(PartialSend, match="ended after 700, as their iterable raised _Boom: the file ended") as caught:
        producer.send_many("orders", _breaks_after(700))
    assert isinstance(caught.value.__cause__, _Boom)
    assert caught.value.source_error is caught.value.__cause__
    assert (caught.value.report.sent, caught.value.report.failed) == (700, 0)
    assert _stored(client, prefix) == 700


def test_an_iterable_may_raise_an_error_without_a_text(producer: Producer) -> None:
    """Its messages are reported all the same."""

    def messages() -> Iterator[Message]:
        yield from _messages(3)
        raise Unspeakable

    with pytest.raises(PartialSend, match="raised Unspeakable: no text") as caught:
        producer.send_many("orders", messages())
    assert caught.value.report.sent == 3


async def test_an_iterable_that_raises_loses_nothing_with_asyncio(
    settings: ProducerSettings, client: redis.Redis, prefix: str
) -> None:
    """Likewise for an iterable and for an asynchronous one, also with a callback."""

    async def arrives() -> AsyncIterator[Message]:
        for message in _messages(700):
            yield message
        raise _Boom

    results: list[SendResult] = []
    async with AsyncProducer(settings=settings) as producer:
        for messages in (_breaks_after(700), arrives()):
            with pytest.raises(PartialSend):
                await producer.send_many("orders", messages, on_result=results.append)
    assert len(results) == _stored(client, prefix) == 1_400


def test_an_error_of_the_callback_stays_the_callers(producer: Producer) -> None:
    """It is no error of the iterable."""

    def refuse(_: SendResult) -> None:
        raise _Boom

    with pytest.raises(_Boom):
        producer.send_many("orders", _messages(3), on_result=refuse)


async def test_what_is_no_iterable_is_refused(
    producer: Producer, settings: ProducerSettings, client: redis.Redis, prefix: str
) -> None:
    """A single message, for example."""
    single: Any = Message(body=1)
    with pytest.raises(InvalidInput, match="messages must be an iterable of Message; got Message"):
        producer.send_many("orders", single)
    async with AsyncProducer(settings=settings) as other:
        with pytest.raises(InvalidInput, match="messages must be an iterable"):
            await other.send_many("orders", single)
    assert keys_left(client, prefix) == []


# Arguments of the wrong type


async def _never_awaited(_: object) -> None:
    raise AssertionError


@pytest.mark.parametrize("callback", [{"on_result": True}, {"on_batch": True}, {"on_result": _never_awaited}])
async def test_a_callback_that_cannot_be_called_is_refused(
    producer: Producer, settings: ProducerSettings, client: redis.Redis, prefix: str, callback: dict[str, Any]
) -> None:
    """Before anything is sent: afterwards the report would be lost."""
    [name] = callback
    with pytest.raises(InvalidInput, match=f"{name} must be a plain function; got "):
        producer.send_many("orders", _messages(3), **callback)
    async with AsyncProducer(settings=settings) as other:
        with pytest.raises(InvalidInput, match=f"{name} must be a plain function; got "):
            await other.send_many("orders", _messages(3), **callback)
    assert keys_left(client, prefix) == []


@pytest.mark.parametrize("confirm", [True, False, 1, "fsync"])
async def test_a_confirm_of_the_wrong_type_is_refused(
    producer: Producer, settings: ProducerSettings, client: redis.Redis, prefix: str, confirm: Any
) -> None:
    """Before anything is written, by each method that takes one."""
    expected = r"confirm must be a Confirm, as in Confirm\(replicas=1\); got "
    with pytest.raises(InvalidInput, match=expected):
        producer.send("orders", 1, confirm=confirm)
    with pytest.raises(InvalidInput, match=expected):
        producer.send_many("orders", _messages(1), confirm=confirm)
    for kind in (Producer, AsyncProducer):
        with pytest.raises(InvalidInput, match=expected):
            kind(settings=settings, confirm=confirm)
    async with AsyncProducer(settings=settings) as other:
        with pytest.raises(InvalidInput, match=expected):
            await other.send("orders", 1, confirm=confirm)
    assert keys_left(client, prefix) == []


@pytest.mark.parametrize("stranger", ["abc", None, 7, ["a list of deliveries"]])
async def test_what_is_no_delivery_is_refused(redis_url: str, prefix: str, stranger: Any) -> None:
    """By each verb of both consumers."""
    settings = ConsumerSettings(redis_url=redis_url, prefix=prefix)
    expected = "delivery must be a Delivery that this consumer has read; got "
    with Consumer("orders", "billing", settings=settings) as consumer:
        for verb in (consumer.ack, consumer.nack, consumer.reject, consumer.release, consumer.extend):
            with pytest.raises(InvalidInput, match=expected):
                verb(stranger)
    async with AsyncConsumer("orders", "billing", settings=settings) as twin:
        with pytest.raises(InvalidInput, match=expected):
            await twin.ack(stranger)


@pytest.mark.parametrize("topics", [None, 5, b"orders"])
def test_topics_of_the_wrong_type_are_refused(topics: Any) -> None:
    """By both consumers."""
    for kind in (Consumer, AsyncConsumer):
        with pytest.raises(InvalidInput, match="topics must be a name, or a sequence of names; got "):
            kind(topics, "billing")


@pytest.mark.parametrize("kind", [Producer, AsyncProducer])
def test_a_url_of_bytes_is_refused(kind: Any) -> None:
    """Without its password."""
    with pytest.raises(InvalidInput, match="redis_url must be text; got ") as caught:
        kind(b"redis://user:hidden@127.0.0.1:9")
    assert "hidden" not in str(caught.value)


def test_a_nack_takes_an_exception(producer: Producer, redis_url: str, prefix: str) -> None:
    """As the worker stores what a handler raises; so does a reject. Other types are refused."""
    settings = ConsumerSettings(redis_url=redis_url, prefix=prefix)
    other: Any = 7
    with Consumer("orders", "billing", settings=settings) as consumer:
        for id in ("nacked", "rejected"):
            producer.send("orders", "body", id=id)
        nacked, rejected = consumer.read(wait=30)
        with pytest.raises(InvalidInput, match="error must be text or an exception; got 7"):
            consumer.nack(nacked, error=other)
        consumer.nack(nacked, error=ValueError("x"))
        consumer.reject(rejected, error=KeyError("y"))
    for id, text in (("nacked", "ValueError: x"), ("rejected", "KeyError: 'y'")):
        found = producer.find("orders", id)
        assert found
        assert [copy.failure and copy.failure.error for copy in found.copies] == [text]


# Closed clients


async def test_a_closed_client_refuses_calls(settings: ProducerSettings, client: redis.Redis, prefix: str) -> None:
    """Nothing is written after `close`; closing twice is fine."""
    producer = Producer(settings=settings)
    producer.find("orders", "a")
    producer.close()
    producer.close()
    for use in (
        lambda: producer.send("orders", 1),
        lambda: producer.find("orders", "a"),
        lambda: producer.cancel("orders", "a"),
    ):
        with pytest.raises(Closed, match="the client is closed; make a new one"):
            use()
    with pytest.raises(PartialSend) as caught:
        producer.send_many("orders", _messages(1))
    assert isinstance(caught.value.__cause__, Closed)
    twin = AsyncProducer(settings=settings)
    await twin.close()
    with pytest.raises(Closed):
        await twin.send("orders", 1)
    assert keys_left(client, prefix) == []


async def test_other_closed_clients_refuse_calls(redis_url: str, prefix: str) -> None:
    """Consumers and operators, likewise."""
    consuming = ConsumerSettings(redis_url=redis_url, prefix=prefix)
    with Consumer("orders", "billing", settings=consuming) as consumer:
        pass
    with pytest.raises(Closed):
        consumer.read()
    async with AsyncConsumer("orders", "billing", settings=consuming) as twin:
        pass
    with pytest.raises(Closed):
        await twin.read()
    with Admin(settings=ManagerSettings(redis_url=redis_url, prefix=prefix)) as admin:
        pass
    with pytest.raises(Closed):
        admin.sizes()
