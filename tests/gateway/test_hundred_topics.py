"""A client as the Java SDK is: two gateways, any one for each call, polls without a pause, acks elsewhere."""

import asyncio
import random
import time
from collections import Counter

import pytest

from support.wire import AsyncWire

from .conftest import Stage

_TOPICS = 100


class _Client:
    """Knows the interface alone."""

    def __init__(self, addresses: list[str], prefix: str) -> None:
        self._addresses = addresses
        self._prefix = prefix
        self._dice = random.Random(prefix)
        self._idle: list[AsyncWire] = []
        self.due_ms: dict[str, int] = {}
        self.handled: Counter[str] = Counter()
        self.late_ms: list[float] = []

    async def call(self, name: str, **parameters: object) -> dict[str, object]:
        """Makes a call at any server, on a connection that is kept."""
        address = self._dice.choice(self._addresses)
        wire = next((wire for wire in self._idle if wire.address == address), None)
        if wire is None:
            wire = AsyncWire(address)
        else:
            self._idle.remove(wire)
        try:
            reply = await wire.post(name, **parameters)
        except BaseException:
            await wire.hang_up()
            raise
        assert (reply.status, reply.code) == (200, 200), reply
        self._idle.append(wire)
        return dict(reply.content)

    async def send(self, count: int, low_ms: int, high_ms: int) -> None:
        """Sends so many messages to each topic, forty at once."""
        places = [(topic, number) for number in range(count) for topic in range(_TOPICS)]
        left = iter(places)

        async def work() -> None:
            for topic, number in left:
                delay = self._dice.randint(low_ms, high_ms)
                answer = await self.call(
                    "sendMsg", topic=f"{self._prefix}-{topic}", msg=f"{topic}/{number}", delayMillis=delay,
                    ttlMillis=-1, maxRetry=-1,
                )  # fmt: skip
                message = answer["delayMsg"]
                assert isinstance(message, dict)
                self.due_ms[message["msgId"]] = message["triggerTime"]

        await asyncio.gather(*(work() for _ in range(40)))

    async def listen(self, topic: int) -> None:
        """Polls a topic until it is cancelled."""
        name = f"{self._prefix}-{topic}"
        while True:
            answer = await self.call(
                "longPollingMsg", topic=name, batch=-1, ackTimeoutMillis=30_000, longPollingTimeoutMillis=10_000
            )
            now_ms = time.time() * 1000
            messages = answer["delayMsgList"]
            assert isinstance(messages, list)
            for message in messages:
                self.late_ms.append(now_ms - message["triggerTime"])
                self.handled[message["msgId"]] += 1
                await self.call("ackMsg", topic=name, msgId=message["msgId"], ack="true")

    async def close(self) -> None:
        """Closes the connections."""
        for wire in self._idle:
            await wire.hang_up()


async def _run(stage: Stage, prefix: str, count: int, delays_ms: tuple[int, int], within_s: float) -> _Client:
    client = _Client([stage.first.address, stage.second.address], prefix)
    listeners = [asyncio.create_task(client.listen(topic)) for topic in range(_TOPICS)]
    await client.send(count, *delays_ms)
    assert len(client.due_ms) == count * _TOPICS
    async with asyncio.timeout(within_s):
        while len(client.handled) < count * _TOPICS:
            assert not [task for task in listeners if task.done()]
            await asyncio.sleep(0.1)
    for task in listeners:
        task.cancel()
    await asyncio.gather(*listeners, return_exceptions=True)
    await client.close()
    late = sorted(client.late_ms)
    mean = sum(late) / len(late)
    print(f"{len(late)} deliveries, late by {mean:.1f} ms on average, {late[-1]:.0f} ms at most")  # noqa: T201
    assert client.handled.keys() == client.due_ms.keys()
    # This machine's clock and that of the server are one.
    assert late[0] > -1
    return client


@pytest.mark.slow
async def test_a_hundred_topics(stage: Stage, topic: str) -> None:
    """Each message once, and none early."""
    client = await _run(stage, topic, 20, (500, 5_000), 90)
    assert set(client.handled.values()) == {1}
