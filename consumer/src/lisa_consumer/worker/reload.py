"""Restarts a worker when its code changes, for development: `lisa-consumer run --reload`."""

import asyncio
import logging
import sys
from asyncio.subprocess import PIPE
from collections.abc import Iterable
from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path

from lisa_common.errors import InvalidSettings
from lisa_common.logs import event
from lisa_common.signals import run_signalled
from lisa_consumer.worker.processes import drain, stop_events

__all__ = ["run_reloading"]

logger = logging.getLogger(__name__)


def run_reloading() -> int:
    """Runs the command of this process without `--reload`, and again when the code in the working directory changes.

    Each run is drained before the next one starts. One that fails, for example by a syntax error, is followed by the
    next at a change. Ends at SIGTERM or SIGINT, or when a run ends with 0. Returns the exit code of the last run.
    Raises InvalidSettings if the extra is missing.
    """
    # A supervised run drains even if this process is killed.
    words = ["--supervised" if word == "--reload" else word for word in sys.argv[1:]]
    return run_signalled(_run([sys.executable, "-m", "lisa_consumer", *words]))


async def _run(command: list[str]) -> int:
    try:
        from watchfiles import awatch  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        if error.name != "watchfiles":
            raise
        raise InvalidSettings("--reload needs another package: pip install 'lisa-consumer[reload]'") from None
    # It would log each change without its file.
    logging.getLogger("watchfiles").setLevel(logging.WARNING)
    stopping, interrupted = stop_events()
    changes = awatch(Path.cwd(), watch_filter=_is_code, stop_event=stopping, ignore_permission_denied=True)
    while True:
        # Before the process starts, so that a change is seen while it imports the code.
        change = asyncio.ensure_future(anext(changes, None))
        await asyncio.sleep(0)
        # In a session of its own, so that Ctrl-C reaches only this process, which sends SIGTERM.
        process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, start_new_session=True)
        ended = asyncio.create_task(process.wait())
        await asyncio.wait((ended, change), return_when=asyncio.FIRST_COMPLETED)
        if not change.done():
            if ended.result() == 0:
                stopping.set()
            else:
                fields = event("process_exited", child=process.pid, code=ended.result())
                text = "the worker exited with %d, and starts again when its code changes"
                logger.warning(text, ended.result(), extra=fields)
        files = sorted(path for _, path in await change or ())
        if not stopping.is_set():
            text = "restarting the worker: %s changed"
            logger.info(text, ", ".join(files), extra=event("code_changed", files=files))
        code = await drain(process, interrupted)
        if stopping.is_set():
            return code
        _forget_compiled(files)


def _forget_compiled(files: Iterable[str]) -> None:
    """Deletes the compiled forms of files: Python takes one for current if the file's size and second are the same."""
    for file in files:
        with suppress(OSError):
            Path(cache_from_source(file)).unlink()


def _is_code(_: object, path: str) -> bool:
    """Returns True for a Python file that is neither hidden nor part of an installed package."""
    parts = Path(path).relative_to(Path.cwd()).parts
    return path.endswith(".py") and not any(part.startswith(".") or part == "site-packages" for part in parts)
