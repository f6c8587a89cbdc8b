"""The journal that a worker keeps of its deliveries."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from demo.events import Begun, Ended, Journal
from demo.servertime import ServerTime
from lisa_common.client.connection import Connection
from lisa_consumer import ConsumerSettings, Delivery

__all__ = ["NAME", "noted"]

NAME = os.environ.get("DEMO_WORKER", "worker")

# Measured on import, so that the first delivery need not wait for it.
with Connection.of(ConsumerSettings.load(), name="lisa-demo") as _connection:
    _clock = ServerTime.of(_connection)


@contextmanager
def noted(delivery: Delivery) -> Iterator[None]:
    """Notes when the handling of a delivery begins and ends, by the server's clock, also if it fails."""
    now_ms = _clock.now_ms()
    journal = _journal()
    journal.note(Begun(delivery.id, delivery.attempt, NAME, delivery.topic, delivery.due_ms, now_ms, delivery.sent_ms))
    try:
        yield
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        journal.note(Ended(delivery.id, delivery.attempt, NAME, _clock.now_ms(), text))
        raise
    journal.note(Ended(delivery.id, delivery.attempt, NAME, _clock.now_ms()))


@cache
def _journal() -> Journal:
    return Journal(Path(os.environ["DEMO_JOURNALS"]) / f"{NAME}.jsonl")
