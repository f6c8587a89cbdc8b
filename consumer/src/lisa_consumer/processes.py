"""Several processes of one worker: started, replaced when they die, and drained together."""

import asyncio
import logging
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from threading import Thread

from lisa_common.backoff import RECONNECT

__all__ = ["drain_with_supervisor", "supervise", "worker_command"]

logger = logging.getLogger(__name__)

_BAD_INPUT = 2

_STEADY_S = 10.0
"""A process that lived for so long counts as a good start: delays between replacements begin anew."""

_KILL_AFTER_S = 10.0
"""Patience beyond a worker's own drain, before its process is killed."""


def worker_command(target: str) -> list[str]:
    """The command that runs one worker process of a target. It may start while the server is away, to replace one."""
    return [sys.executable, "-m", "lisa_consumer", "run", target, "--no-check", "--supervised"]


def drain_with_supervisor() -> None:
    """Sends this process SIGTERM when its supervisor is gone, in whatever way: only that closes its standard input."""

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    Thread(target=watch, name="lisa-supervisor-watch", daemon=True).start()


def supervise(command: Sequence[str], count: int, *, drain_s: float) -> int:
    """Runs `count` processes of a command until SIGTERM or SIGINT, then has them drain. Returns the exit code.

    A process that dies is replaced; all drain when this one dies. One that exits with 2 was started wrongly, as its
    successor would be: all end. The code is 1 when one did not drain as it should.
    """

    async def main() -> int:
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        codes = await asyncio.gather(*(_keep_running(command, stopping, drain_s) for _ in range(count)))
        return max(codes)

    return asyncio.run(main())


async def _keep_running(command: Sequence[str], stopping: asyncio.Event, drain_s: float) -> int:
    stop = asyncio.create_task(stopping.wait())
    failures = 0
    while not stopping.is_set():
        started = time.monotonic()
        # In a session of its own, so that Ctrl-C reaches it through us only, as SIGTERM.
        process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, start_new_session=True)
        ended = asyncio.create_task(process.wait())
        await asyncio.wait((ended, stop), return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            await _drain(process, drain_s)
            # SIGTERM itself ends one that was just about to start.
            return int(process.returncode not in {0, -signal.SIGTERM})
        if ended.result() == _BAD_INPUT:
            stopping.set()
            return _BAD_INPUT
        failures = 1 if time.monotonic() - started > _STEADY_S else failures + 1
        delay = RECONNECT.compute(failures)
        logger.warning("worker process %d died with %d, another starts in %.1f s", process.pid, ended.result(), delay)
        with suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await stopping.wait()
    return 0


async def _drain(process: Process, drain_s: float) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(drain_s + _KILL_AFTER_S):
            await process.wait()
    except TimeoutError:
        logger.warning("worker process %d did not end, killing it", process.pid)
        process.kill()
        await process.wait()
