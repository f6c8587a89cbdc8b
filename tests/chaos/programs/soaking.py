"""The programs of a soak: a producer at full speed, and a worker whose handler does nothing.

`python -m chaos.programs.soaking FIRST LAST AHEAD` sends messages of these numbers, at most AHEAD of them before the
worker; `lisa-consumer run chaos.programs.soaking:worker` handles them.
"""

import signal
import sys
import time

import redis

from chaos.programs.setting import PREFIX, URL
from lisa_common.model.keys import ShardKeys
from lisa_consumer import Delivery, Worker
from lisa_producer import Message, Producer, ProducerSettings

__all__ = ["GROUP", "TOPIC", "main"]

TOPIC, GROUP = "orders", "billing"
_BATCH = 1_000
_BODY = b"x" * 200
_PAUSE_S = 0.005

worker = Worker(GROUP)


@worker.on(TOPIC)
async def handle(delivery: Delivery) -> None:
    """Does nothing: the soak measures Lisa."""


def main(first: int, last: int, ahead: int) -> None:
    """Sends; ends early on SIGTERM."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    messages = ShardKeys(PREFIX, TOPIC).of("messages")
    settings = ProducerSettings(redis_url=URL, prefix=PREFIX)
    with redis.Redis.from_url(URL, protocol=2) as client, Producer(settings=settings) as producer:
        for start in range(first, last, _BATCH):
            # A worker is slower than a producer: without this the backlog would grow all the time.
            while not asked and client.hlen(messages) > ahead:
                time.sleep(_PAUSE_S)
            if asked:
                return
            numbers = range(start, min(start + _BATCH, last))
            producer.send_many(TOPIC, [Message(body=_BODY, id=f"order-{number}") for number in numbers])
            print(numbers.stop - first, flush=True)  # noqa: T201 - how far it is


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
