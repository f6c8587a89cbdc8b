"""A worker that does what messages tell it: succeed, fail, hang, run long, or kill its process.

Run as `lisa-consumer run chaos.programs.worker:worker`; `LISA_CHAOS_GROUP` names its group.
"""

import asyncio
import os
import signal
import time

from chaos.history import Fault, now
from chaos.kinds import CRASH
from chaos.load import plan_of
from chaos.programs.setting import PREFIX, recorder
from chaos.recording import RecordingCore, recorded
from chaos.topics import FOREIGN
from lisa_consumer import Delivery, Reject, Retry, Worker

__all__ = ["worker"]

_LONG_S = 4.0
"""Longer than any visibility timeout of the load."""
_TIMEOUT_S = 8.0
"""The timeout that ends a handler that hangs: longer than a drain, which then cancels it."""

group = os.environ.get("LISA_CHAOS_GROUP", "billing")
history = recorder(f"worker-{group}")
worker = Worker(group)
worker._core = RecordingCore(PREFIX, group, None, history)


@worker.on("orders", "shaky", "metered", "returned", "keyed", timeout=_TIMEOUT_S)
async def handle(delivery: Delivery) -> None:
    """Follows the plan of the message."""
    with recorded(history, delivery):
        what = plan_of(delivery.body).what
        if delivery.attempt == 1 and what == "long":
            await asyncio.sleep(_LONG_S)
        if delivery.attempt == 1 and what == "hang":
            await asyncio.Event().wait()
        _obey(what, delivery.attempt)


@worker.on("mail", timeout=_TIMEOUT_S, concurrency=4)
def handle_in_thread(delivery: Delivery) -> None:
    """The same in a thread, which nothing can end: so it hangs only for a while.

    It has few slots: what waits behind long ones for a visibility timeout is given back.
    """
    with recorded(history, delivery):
        what = plan_of(delivery.body).what
        if delivery.attempt == 1 and what in ("long", "hang"):
            time.sleep(_LONG_S)
        _obey(what, delivery.attempt)


@worker.on(FOREIGN)
async def see(delivery: Delivery) -> None:
    """Accepts whatever a neighbour sends: the checker does not judge it."""


def _obey(what: str, attempt: int) -> None:
    match what:
        case "fail1" | "fail2" if attempt <= int(what[-1]):
            raise Retry("as told")
        case "failall":
            raise RuntimeError("as told, for ever")
        case "retry" if attempt == 1:
            raise Retry("later", delay=0.1)
        case "reject":
            raise Reject("as told")
        case "die" if attempt == 1:
            history.write(Fault(now() + 1.0, now(), CRASH))
            os.kill(os.getpid(), signal.SIGKILL)
