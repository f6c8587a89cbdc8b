"""Batches of a list that are prepared while the server stores the ones before."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from lisa_common.errors import Unreachable
from lisa_common.model.keys import ShardKeys, topics_key
from lisa_common.model.policy import Policy
from lisa_producer import Message, PartialSend, Producer, ProducerSettings, batch_sending as module
from support import Server

Producers = Callable[..., Any]


class Record:
    """What happens to messages, in order. As a codec, it is asked when a message is prepared."""

    def __init__(self, failing: tuple[int, BaseException] | None = None) -> None:
        self.events: list[str] = []
        self._failing = failing

    def messages(self, count: int) -> Iterator[Message]:
        """Messages, as an iterable that says when one is taken."""
        for number in range(count):
            self.events.append(f"take {number}")
            yield Message(body={"n": number}, delay=60, headers=self._headers(number))

    def _headers(self, number: int) -> Any:
        return _Failing(self._failing[1]) if self._failing and self._failing[0] == number else None

    def encode(self, value: Any) -> bytes:
        """See `Codec`."""
        self.events.append(f"prepare {value['n']}")
        return b"x"

    def decode(self, data: bytes) -> Any:
        """See `Codec`."""
        raise NotImplementedError(data)

    def note(self, result: Any) -> None:
        """Takes a result."""
        self.events.append(f"sent {result.position}")


class _Failing(dict[str, str]):
    """Headers whose reading raises."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(name="value")
        self._error = error

    def items(self) -> Any:
        raise self._error


@pytest.fixture
def producer(redis_url: str, prefix: str) -> Iterator[Producer]:
    """A blocking producer of batches of two, whose topic is declared."""
    settings = ProducerSettings(redis_url=redis_url, prefix=prefix, batch_messages=2, patience_s=0)
    with Producer(settings=settings) as producer:
        producer.send("orders", b"x", id="first", delay=60)
        yield producer


def _stored(client: redis.Redis, prefix: str) -> int:
    """Messages beside the first."""
    return int(client.zcard(ShardKeys(prefix, "orders").of("waiting"))) - 1


def test_a_batch_of_a_list_is_prepared_ahead(redis_url: str, prefix: str) -> None:
    """One batch ahead, no more; results come in order."""
    record = Record()
    messages = list(record.messages(5))
    record.events.clear()
    settings = ProducerSettings(redis_url=redis_url, prefix=prefix, batch_messages=2)
    with Producer(settings=settings, codec=record) as producer:
        report = producer.send_many("orders", messages, on_result=record.note)
    assert report.sent == 5
    assert record.events == [
        *("prepare 0", "prepare 1", "prepare 2", "prepare 3", "sent 0", "sent 1"),
        *("prepare 4", "sent 2", "sent 3", "sent 4"),
    ]


def test_many_shards_are_sent_to_in_rounds(redis_url: str, prefix: str, client: redis.Redis) -> None:
    """A round fills sixteen calls, however many shards there are; the next one is prepared before its results come."""
    client.hset(topics_key(prefix), "orders", Policy(shards=40).dump())
    record = Record()
    messages = list(record.messages(96))
    record.events.clear()
    settings = ProducerSettings(redis_url=redis_url, prefix=prefix, batch_messages=2)
    with Producer(settings=settings, codec=record) as producer:
        report = producer.send_many("orders", messages, on_result=record.note)
    assert report.sent == 96
    prepared = [f"prepare {number}" for number in range(96)]
    sent = [f"sent {number}" for number in range(96)]
    assert record.events == [*prepared[:64], *sent[:32], *prepared[64:], *sent[32:]]


async def test_other_iterables_are_asked_after_the_results(producers: Producers) -> None:
    """They may wait for the results of what they have yielded."""
    record = Record()
    await producers(batch_messages=2).send_many("orders", record.messages(4), on_result=record.note)
    assert record.events == ["take 0", "take 1", "sent 0", "sent 1", "take 2", "take 3", "sent 2", "sent 3"]


def test_preparing_ahead_ends_soon(producer: Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The results of a batch do not wait for the whole next one, if that takes long to prepare."""
    monkeypatch.setattr(module, "_AHEAD_S", 0)
    record = Record()
    slow = Producer(settings=producer._settings, codec=record)
    messages = list(record.messages(6))
    record.events.clear()
    with slow:
        assert slow.send_many("orders", messages, on_result=record.note).sent == 6
    assert record.events[:6] == ["prepare 0", "prepare 1", "prepare 2", "sent 0", "sent 1", "prepare 3"]


def test_a_refused_batch_ends_the_send(producer: Producer, client: redis.Redis, prefix: str) -> None:
    """What was prepared behind it is not sent; the report does not count it, as it was not taken from anybody."""
    client.set(f"{prefix}:{{orders}}:closed", "a key that ends every send")
    with pytest.raises(PartialSend) as caught:
        producer.send_many("orders", list(Record().messages(6)))
    assert (caught.value.report.sent, caught.value.report.failed) == (0, 2)
    assert _stored(client, prefix) == 0


@pytest.mark.parametrize("error", [KeyError("x"), StopIteration([]), Unreachable("not the server's")], ids=repr)
def test_what_preparing_raises_is_no_reply(
    producer: Producer, client: redis.Redis, prefix: str, error: Exception
) -> None:
    """The batch under way gets its results before the caller gets the error, as without preparing ahead."""
    told: list[int] = []
    # Python makes a RuntimeError of a StopIteration.
    with pytest.raises((type(error), RuntimeError)):
        producer.send_many(
            "orders", list(Record((3, error)).messages(6)), on_result=lambda result: told.append(result.position)
        )
    assert told == [0, 1]
    assert _stored(client, prefix) == 2


def test_an_interrupt_meanwhile_mixes_up_no_replies(producer: Producer, client: redis.Redis, prefix: str) -> None:
    """The reply that is under way belongs to nobody; later calls get their own."""
    with pytest.raises(KeyboardInterrupt):
        producer.send_many("orders", list(Record((3, KeyboardInterrupt())).messages(6)))
    sent = producer.send("orders", b"x", id="later", delay=60)
    assert (sent.id, sent.duplicate) == ("later", False)
    assert producer.find("orders", "nothing") is None
    assert _stored(client, prefix) == 3


def test_the_iterable_is_closed_when_a_send_ends_early(producer: Producer, client: redis.Redis, prefix: str) -> None:
    """Files and cursors of a generator must not stay open in the caller's error handling."""
    closed: list[bool] = []

    def messages() -> Iterator[Message]:
        try:
            yield from Record().messages(6)
        finally:
            closed.append(True)

    client.set(f"{prefix}:{{orders}}:closed", "a key that ends every send")
    try:
        producer.send_many("orders", messages())
    except PartialSend:
        assert closed == [True]
    else:
        pytest.fail("the send did not end")


def test_a_slow_server_still_gets_smaller_calls(own_server: Callable[..., Server]) -> None:
    """Preparing ahead does not hide how long the server takes."""
    server = own_server()
    settings = ProducerSettings(redis_url=server.url, batch_messages=200)
    with Producer(settings=settings) as producer, server.client() as client:
        producer.send("orders", b"x", delay=60)
        # Few: a server that is quick again soon gets larger calls again.
        messages = [Message(body=b"x", delay=60) for _ in range(400)]
        for _ in itertools.takewhile(lambda _: producer._pace.messages == 200, range(50)):
            client.execute_command("CLIENT", "PAUSE", 100, "ALL")
            producer.send_many("orders", messages)
        assert producer._pace.messages < 200
