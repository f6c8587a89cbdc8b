"""A worker that writes a line into a journal as it begins a message, and one as it ends it.

`LISA_TEST_JOURNAL` names the journal, `LISA_TEST_TOPICS` the topics. While the file that `LISA_TEST_HOLD` names is
there, handlers do not end.
"""

import asyncio
import json
import os
from pathlib import Path

from lisa_consumer import Delivery, Worker

__all__ = ["note", "worker"]

worker = Worker(os.environ.get("LISA_TEST_GROUP", "billing"), name=os.environ.get("LISA_TEST_NAME"))
_journal = os.open(os.environ["LISA_TEST_JOURNAL"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
# A kill may cut a write where a page of the file ends: a line whose length divides a page crosses none.
_LINE = 256
_hold = Path(os.environ["LISA_TEST_HOLD"])


def note(what: str, delivery: Delivery) -> None:
    """Writes a line."""
    entry_ms, _, _ = delivery.entry.entry.partition("-")
    line = {
        "what": what,
        "id": delivery.id,
        "attempt": delivery.attempt,
        "lag_ms": int(entry_ms) - delivery.due_ms,
        "process": os.getpid(),
    }
    text = json.dumps(line).encode().ljust(_LINE - 1) + b"\n"
    assert len(text) == _LINE, text
    os.write(_journal, text)


@worker.on(*os.environ["LISA_TEST_TOPICS"].split())
async def handle(delivery: Delivery) -> None:
    """Handles a message of the tests."""
    note("begun", delivery)
    while _hold.exists():  # noqa: ASYNC110, ASYNC240 - the test ends it, from another process
        await asyncio.sleep(0.01)
    note("ended", delivery)
