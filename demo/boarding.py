"""The worker: it calls the boarding of flights, and writes down every delivery. `lisa-consumer run` starts it.

Some calls fail on purpose, always the same ones: what is wrong with a flight is in the headers of its message.
"""

import asyncio
import os
from functools import cache
from pathlib import Path

import redis

from demo.events import Begun, Ended, Journal
from demo.flights import AIRPORTS
from demo.server import GROUP
from demo.servertime import ServerTime
from lisa_consumer import ConsumerSettings, Delivery, Reject, Retry, Worker

__all__ = ["worker"]

_name = os.environ.get("DEMO_WORKER", "worker")
_boarding_s = float(os.environ.get("DEMO_BOARDING_S", "0.25"))

# Measured while the module is imported: the first delivery is not to wait for it.
with redis.Redis.from_url(ConsumerSettings.load().redis_url.get_secret_value()) as _client:
    _clock = ServerTime.of(_client)

worker = Worker(group=GROUP, name=_name)


class GateTaken(Exception):
    """An aircraft still stands at the gate."""


class NoAircraft(Exception):
    """There is nothing to board, and there will not be."""


@worker.on(*AIRPORTS)
async def board(delivery: Delivery) -> None:
    """Calls a flight, and notes when by the server's clock, whatever comes of it."""
    now_ms = _clock.now_ms()
    journal = _journal()
    journal.note(Begun(delivery.id, delivery.attempt, _name, delivery.topic, delivery.due_ms, now_ms))
    try:
        await _board(delivery)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        journal.note(Ended(delivery.id, delivery.attempt, _name, _clock.now_ms(), text))
        raise
    journal.note(Ended(delivery.id, delivery.attempt, _name, _clock.now_ms()))


async def _board(delivery: Delivery) -> None:
    match delivery.headers.get("trouble"):
        case "gate taken" if delivery.attempt == 1:
            raise GateTaken("an aircraft still stands there")
        case "crew late" if delivery.attempt <= 2:  # noqa: PLR2004 - twice, that is
            raise Retry("the crew is on its way", delay=_boarding_s)
        case "no aircraft":
            raise NoAircraft("it went out of service")
        case "no such gate":
            raise Reject("the gate does not exist")
    await asyncio.sleep(_boarding_s)


@cache
def _journal() -> Journal:
    return Journal(Path(os.environ["DEMO_JOURNALS"]) / f"{_name}.jsonl")
