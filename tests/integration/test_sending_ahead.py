"""Batches that are prepared while the server stores the ones before."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from lisa_common.errors import InvalidInput
from lisa_producer import Message, PartialSend, Producer, ProducerSettings
from support import Server, wait_until

Producers = Callable[..., Any]


class Source:
    """Messages of batches of two, and what happens with them, in order."""

    def __init__(self, count: int) -> None:
        self.events: list[str] = []
        self.messages = [Message(body={"n": number}, delay=60) for number in range(count)]

    def __iter__(self) -> Iterator[Message]:
        for number, message in enumerate(self.messages):
            self.events.append(f"take {number}")
            yield message

    def encode(self, value: Any) -> bytes:
        """As a codec, which is asked when a message is prepared."""
        self.events.append(f"prepare {value['n']}")
        return b"x"

    def decode(self, data: bytes) -> Any:
        """A codec must have it."""
        raise NotImplementedError(data)

    def note(self, result: Any) -> None:
        """Takes a result."""
        self.events.append(f"sent {result.position}")


async def test_a_batch_of_a_list_is_prepared_ahead(producers: Producers) -> None:
    """One batch ahead, no more; results come in order."""
    source = Source(5)
    producer = producers(batch_messages=2, codec=source)
    report = await producer.send_many("orders", source.messages, on_result=source.note)
    assert report.sent == 5
    assert source.events == [
        *("prepare 0", "prepare 1", "prepare 2", "prepare 3", "sent 0", "sent 1"),
        *("prepare 4", "sent 2", "sent 3", "sent 4"),
    ]


async def test_an_iterable_may_say_that_it_does_not_wait(producers: Producers) -> None:
    """By default it is asked for more only after the results of what it has yielded."""
    waits, ahead = Source(4), Source(4)
    producer = producers(batch_messages=2)
    await producer.send_many("orders", iter(waits), on_result=waits.note)
    assert waits.events == ["take 0", "take 1", "sent 0", "sent 1", "take 2", "take 3", "sent 2", "sent 3"]
    await producer.send_many("orders", iter(ahead), on_result=ahead.note, ahead=True)
    assert ahead.events == ["take 0", "take 1", "take 2", "take 3", "sent 0", "sent 1", "sent 2", "sent 3"]
    report = await producer.send_many("orders", list(ahead), ahead=False)
    assert report.sent == 4


async def test_ahead_must_be_a_flag(producers: Producers) -> None:
    """Another value is refused before anything is sent."""
    with pytest.raises(InvalidInput, match="ahead must be True or False; got 3"):
        await producers().send_many("orders", [Message(body=b"x")], ahead=3)


async def test_what_came_before_an_error_is_sent(producers: Producers, client: redis.Redis, prefix: str) -> None:
    """Also where the iterable raises while a batch is under way."""

    def messages() -> Iterator[Message]:
        yield from Source(3).messages
        raise OSError("the file ended")

    with pytest.raises(PartialSend, match="the file ended") as caught:
        await producers(batch_messages=2).send_many("orders", messages(), ahead=True)
    assert (caught.value.report.sent, caught.value.report.failed) == (3, 0)
    assert client.zcard(f"{prefix}:{{orders}}:waiting") == 3


async def test_a_refused_batch_ends_the_send(producers: Producers, client: redis.Redis, prefix: str) -> None:
    """What was prepared behind it is not sent, and the report does not count it."""
    producer = producers(batch_messages=2, patience_s=0)
    await producer.send("orders", b"x", delay=60)
    client.set(f"{prefix}:{{orders}}:closed", "a key that ends every send")
    with pytest.raises(PartialSend) as caught:
        await producer.send_many("orders", Source(6).messages)
    assert (caught.value.report.sent, caught.value.report.failed) == (0, 2)
    assert client.zcard(f"{prefix}:{{orders}}:waiting") == 1


def test_an_interrupt_meanwhile_mixes_up_no_replies(own_server: Callable[..., Server]) -> None:
    """The reply that is under way belongs to nobody; later calls get their own."""
    server = own_server()

    def messages() -> Iterator[Message]:
        yield from Source(3).messages
        raise KeyboardInterrupt

    settings = ProducerSettings(redis_url=server.url, batch_messages=2)
    with Producer(settings=settings) as producer, server.client() as client:
        # Else the first round trip would declare the topic.
        producer.send("orders", b"x", delay=60)
        with pytest.raises(KeyboardInterrupt):
            producer.send_many("orders", messages(), ahead=True)
        wait_until(lambda: client.zcard("lisa:{orders}:waiting") == 3)
        sent = producer.send("orders", b"x", id="later", delay=60)
        assert (sent.id, sent.duplicate) == ("later", False)
        assert producer.find("orders", "nothing") is None
