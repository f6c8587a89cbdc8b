"""Supervises several processes of one worker: starts them, replaces those that die, drains them together."""

import asyncio
import logging
import math
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from threading import Thread

from lisa_common.backoff import RECONNECT
from lisa_common.client.async_tasks import beside, wait_at_most
from lisa_common.logs import event
from lisa_common.observing.health import Health
from lisa_common.observing.siblings import SharedDirectory
from lisa_common.signals import run_signalled

__all__ = ["drain", "drain_with_supervisor", "stop_events", "supervise", "worker_command"]

logger = logging.getLogger(__name__)

_BAD_INPUT = 2

_STEADY_S = 10.0
"""After a process has lived this long, the delays before replacements start again from the shortest."""

_KILL_AFTER_S = 10.0
"""How long a process may outlast its drain before it is killed."""


def worker_command(target: str, overridden: Sequence[str] = ()) -> list[str]:
    """The command that runs one worker process of a target. It starts even while the server is away.

    `overridden` settings win over those of the worker's code. Their values are in the environment, as other users can
    read command lines.
    """
    names = [f"--override={name}" for name in overridden]
    return [sys.executable, "-m", "lisa_consumer", "run", target, "--supervised", "--sibling", *names]


def drain_with_supervisor() -> None:
    """Sends this process SIGTERM when its supervisor has ended, which closes the standard input of this process."""

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    Thread(target=watch, name="lisa-supervisor-watch", daemon=True).start()


def supervise(command: Sequence[str], siblings: SharedDirectory, health: Health, *, drain_s: float) -> int:
    """Runs a command for each sibling until SIGTERM or SIGINT, then drains them. SIGINT then ends the drain.

    A process that dies is replaced. If the supervisor dies, all processes drain. If a process exits with 2 before its
    worker has started, it had bad input, and so would its replacement: all end, with exit code 2. Returns the exit
    code: 1 if a process did not drain cleanly.
    """

    async def main() -> int:
        stopping, interrupted = stop_events()
        health.notifies = True
        health.check("processes", siblings.find_problem)
        keep = partial(_keep_running, command, siblings, stopping=stopping, interrupted=interrupted, drain_s=drain_s)
        async with beside(health.run()):
            return max(await asyncio.gather(*map(keep, range(siblings.count))))

    return run_signalled(main())


def stop_events() -> tuple[asyncio.Event, asyncio.Event]:
    """Returns two events: SIGTERM or SIGINT sets the first, and a SIGINT that follows the second."""
    stopping, interrupted = asyncio.Event(), asyncio.Event()

    def interrupt() -> None:
        (interrupted if stopping.is_set() else stopping).set()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    loop.add_signal_handler(signal.SIGINT, interrupt)
    return stopping, interrupted


async def _keep_running(
    command: Sequence[str],
    siblings: SharedDirectory,
    number: int,
    *,
    stopping: asyncio.Event,
    interrupted: asyncio.Event,
    drain_s: float,
) -> int:
    stop = asyncio.create_task(stopping.wait())
    failures = 0
    while not stopping.is_set():
        started = time.monotonic()
        # In a session of its own, so that Ctrl-C reaches only the supervisor, which sends SIGTERM.
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, start_new_session=True, env=siblings.environment(number)
        )
        ended = asyncio.create_task(process.wait())
        await asyncio.wait((ended, stop), return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            code = await drain(process, interrupted, drain_s)
            if code:
                fields = event("process_exited", child=process.pid, code=code)
                logger.warning("worker process %d ended its drain with %d", process.pid, code, extra=fields)
            return int(code != 0)
        code, has_started = ended.result(), siblings.has_started(number)
        siblings.forget(number)
        if code == _BAD_INPUT and not has_started:
            text = "worker process %d exited with 2 before its worker had started, as for bad input: all processes end"
            logger.error(text, process.pid, extra=event("process_exited", child=process.pid, code=code))
            stopping.set()
            return _BAD_INPUT
        failures = 1 if time.monotonic() - started > _STEADY_S else failures + 1
        delay = RECONNECT.compute(failures)
        fields = event("process_exited", child=process.pid, code=code, restart_in_s=round(delay, 3))
        text = "worker process %d exited with %d, another starts in %.1f s"
        logger.warning(text, process.pid, code, delay, extra=fields)
        await wait_at_most(stopping, delay)
    return 0


async def drain(process: Process, interrupted: asyncio.Event, drain_s: float = math.inf) -> int:
    """Sends a process SIGTERM, and SIGINT if it is interrupted; kills it if it far outlasts its drain.

    Returns its exit code once it has ended, 0 if it ended by these signals.
    """
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with beside(_interrupt(process, interrupted)), asyncio.timeout(drain_s + _KILL_AFTER_S):
            await process.wait()
    except TimeoutError:
        fields = event("process_killed", child=process.pid)
        logger.warning("killing worker process %d, which did not end", process.pid, extra=fields)
        process.kill()
    code = await process.wait()
    # SIGTERM itself ends a process that has just been started, and SIGINT one whose worker has ended.
    return 0 if code in {-signal.SIGTERM, -signal.SIGINT} else code


async def _interrupt(process: Process, interrupted: asyncio.Event) -> None:
    await interrupted.wait()
    # It has had SIGTERM, so this ends its drain.
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
