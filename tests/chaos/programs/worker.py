"""A worker that does what messages tell it: succeed, fail, hang, run long, or kill its process.

Run as `lisa-consumer run chaos.programs.worker:worker`; `LISA_CHAOS_GROUP` names its group.
"""

import asyncio
import os
import signal

from chaos.history import Begun, Ended, Fault, now
from chaos.load import plan_of
from chaos.programs.setting import PREFIX, recorder
from chaos.recording import RecordingCore
from lisa_consumer import Delivery, Reject, Retry, Worker

__all__ = ["worker"]

_LONG_S = 4.0
"""Longer than any visibility timeout of the load."""
_TIMEOUT_S = 6.0
"""What ends a handler that hangs."""

group = os.environ.get("LISA_CHAOS_GROUP", "billing")
history = recorder(f"worker-{group}")
worker = Worker(group)
worker._core = RecordingCore(PREFIX, group, None, history)


@worker.on("orders", "mail", "shaky", timeout=_TIMEOUT_S)
async def handle(delivery: Delivery) -> None:
    """Does as the message says."""
    entry = (delivery.topic, delivery.group, delivery.entry.entry)
    history.write(Begun(now(), *entry))
    try:
        await _obey(plan_of(delivery.body).what, delivery.attempt)
    except BaseException as error:
        history.write(Ended(now(), *entry, type(error).__name__))
        raise
    history.write(Ended(now(), *entry))


async def _obey(what: str, attempt: int) -> None:
    match what:
        case "fail1" | "fail2" if attempt <= int(what[-1]):
            raise Retry("as told")
        case "failall":
            raise RuntimeError("as told, for ever")
        case "retry" if attempt == 1:
            raise Retry("later", delay=0.1)
        case "reject":
            raise Reject("as told")
        case "long" if attempt == 1:
            await asyncio.sleep(_LONG_S)
        case "hang" if attempt == 1:
            await asyncio.Event().wait()
        case "die" if attempt == 1:
            history.write(Fault(now() + 1.0, now(), "a handler kills its process"))
            os.kill(os.getpid(), signal.SIGKILL)
