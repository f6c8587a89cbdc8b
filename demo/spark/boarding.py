"""The pipeline's worker: it calls the boarding of flights. `lisa-consumer run` starts it.

Calls fail for two kinds of records: cancelled flights, and airports that no table knows.
"""

import asyncio
import os

from demo.flights import AIRPORTS
from demo.logbook import NAME, noted
from demo.server import GROUP
from lisa_consumer import Delivery, Reject, Worker

__all__ = ["worker"]

_boarding_s = float(os.environ.get("DEMO_BOARDING_S", "0.25"))

worker = Worker(group=GROUP, name=NAME)


class UnknownAirport(Exception):
    """There is no name to call."""


@worker.on(*AIRPORTS)
async def board(delivery: Delivery) -> None:
    """Calls a flight, and notes when."""
    with noted(delivery):
        flight = delivery.json()
        if flight["cancelled"]:
            raise Reject("the flight is cancelled")
        if flight["airport"] is None:
            raise UnknownAirport(f"no table has {flight['to']}")
        await asyncio.sleep(_boarding_s)
