"""Workers of topics whose messages never fail by themselves, for `lisa-consumer run`.

`chaos.programs.spared:carrier` handles big bodies behind a slow link. `chaos.programs.spared:taster` handles innocents,
and poison, which kills the process: by a signal or by `os._exit`, as its mark says.
"""

import asyncio
import os
import signal

from chaos.history import Fault, now
from chaos.kinds import CRASH
from chaos.load import POISON, POISON_CODE, plan_of
from chaos.programs.setting import PREFIX, recorder
from chaos.recording import RecordingCore, recorded
from chaos.topics import PARCELS, PILLS, groups_of
from lisa_consumer import Delivery, Worker

__all__ = ["carrier", "taster"]

_NAP_S = 0.3
"""How long an innocent runs."""
_WORKING_S = 0.1
"""Seconds until poison works: innocents that were read with it have begun by then."""

history = recorder("worker-spared")


def _new_worker(topic: str) -> Worker:
    group = groups_of(topic)[0]
    worker = Worker(group)
    worker._core = RecordingCore(PREFIX, group, None, history)
    return worker


carrier, taster = _new_worker(PARCELS), _new_worker(PILLS)


@carrier.on(PARCELS)
async def carry(delivery: Delivery) -> None:
    """Takes it."""
    with recorded(history, delivery):
        plan_of(delivery.body)


@taster.on(PILLS)
async def taste(delivery: Delivery) -> None:
    """Runs for a while, or kills its process."""
    with recorded(history, delivery):
        plan = plan_of(delivery.body)
        if plan.what != POISON:
            await asyncio.sleep(_NAP_S)
            return
        await asyncio.sleep(_WORKING_S)
        history.write(Fault(now() + 1.0, now(), CRASH, PILLS))
        if int(plan.mark.rpartition(".")[2]) % 2:
            os._exit(POISON_CODE)
        os.kill(os.getpid(), signal.SIGKILL)
