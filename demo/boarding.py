"""The worker: it calls the boarding of flights, and notes every delivery. `lisa-consumer run` starts it.

Some calls fail on purpose, always the same: a header of the message names the trouble.
"""

import asyncio
import os

from demo.flights import AIRPORTS
from demo.logbook import NAME, noted
from demo.server import GROUP
from lisa_consumer import Delivery, Reject, Retry, Worker

__all__ = ["worker"]

_boarding_s = float(os.environ.get("DEMO_BOARDING_S", "0.25"))

worker = Worker(group=GROUP, name=NAME)


class GateTaken(Exception):
    """An aircraft still stands at the gate."""


class NoAircraft(Exception):
    """There is nothing to board, and there will not be."""


@worker.on(*AIRPORTS)
async def board(delivery: Delivery) -> None:
    """Calls a flight, and notes when."""
    with noted(delivery):
        await _board(delivery)


async def _board(delivery: Delivery) -> None:
    match delivery.headers.get("trouble"):
        case "gate taken" if delivery.attempt == 1:
            raise GateTaken("an aircraft still stands there")
        case "crew late" if delivery.attempt <= 2:  # noqa: PLR2004 - it fails twice
            raise Retry("the crew is on its way", delay=_boarding_s)
        case "no aircraft":
            raise NoAircraft("it went out of service")
        case "no such gate":
            raise Reject("the gate does not exist")
    await asyncio.sleep(_boarding_s)
