"""A plain consumer, which gives up some reads, and settles in every way, also long after its leases have run out."""

import asyncio
import os
import random
import signal
import sys
from contextlib import suppress

from chaos.history import Begun, Ended, now
from chaos.load import plan_of
from chaos.programs.setting import PREFIX, SEED, TOPICS, URL, recorder
from chaos.recording import RecordingCore
from chaos.topics import FOREIGN
from lisa_common.errors import LisaError
from lisa_consumer import AsyncConsumer, ConsumerSettings, Delivery

__all__ = ["main"]

_LATE_S = 5.0
"""Longer than the longest visibility timeout of the load."""

_PAUSE_S = 0.2

_GIVEN_UP = 0.3
"""Share of reads that are given up, unless they end sooner, and after how long."""
_PATIENCE_S = (0.002, 0.01, 0.1)


async def main(group: str) -> None:
    """Reads and settles until SIGTERM."""
    dice = random.Random(f"{SEED} consumer")
    history = recorder(f"consumer-{group}")
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    print("ready", flush=True)  # noqa: T201 - its log
    settings = ConsumerSettings(redis_url=URL, prefix=PREFIX, patience_s=5, block_s=0.2, timeout_s=5)
    async with AsyncConsumer([*TOPICS, FOREIGN], group, settings=settings) as consumer:
        consumer._core = RecordingCore(PREFIX, group, None, history)

        def handle(delivery: Delivery) -> bool:
            if delivery.topic == FOREIGN:
                return True
            place = list(delivery.place)
            history.write(Begun(now(), delivery.group, place))
            failed = plan_of(delivery.body).what in ("failall", "reject")
            history.write(Ended(now(), delivery.group, place, "as told" if failed else ""))
            return not failed

        while not stopping.is_set():
            try:
                deliveries = await _read(consumer, dice)
                if not deliveries:
                    continue
                done = [delivery for delivery in deliveries if handle(delivery)]
                failed = [delivery for delivery in deliveries if delivery not in done]
                await _settle(consumer, dice, done, failed)
            except LisaError as error:
                print(error, file=sys.stderr, flush=True)  # noqa: T201 - its log
                # Errors may come at once and repeatedly.
                await asyncio.sleep(_PAUSE_S)


async def _read(consumer: AsyncConsumer, dice: random.Random) -> list[Delivery]:
    with suppress(TimeoutError):
        async with asyncio.timeout(dice.choice(_PATIENCE_S) if dice.random() < _GIVEN_UP else None):
            return await consumer.read(20, wait=0.5)
    return []


async def _settle(consumer: AsyncConsumer, dice: random.Random, done: list[Delivery], failed: list[Delivery]) -> None:
    if dice.random() < 0.02:
        await asyncio.sleep(_LATE_S)
    elif dice.random() < 0.1:
        await consumer.extend(*done)
    elif dice.random() < 0.05:
        await consumer.release(*done)
        done = []
    if done:
        await consumer.ack(*done)
    if failed:
        await consumer.nack(*failed, delay=0.2, error="as told")


if __name__ == "__main__":
    asyncio.run(main(os.environ.get("LISA_CHAOS_GROUP", "billing")))
