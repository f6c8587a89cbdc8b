"""A manager in a thread of another program, for development and tests."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import Any

from lisa_common.logs import event
from lisa_manager.daemon import Manager
from lisa_manager.settings import ManagerSettings

__all__ = ["running_manager"]

logger = logging.getLogger(__name__)


@contextmanager
def running_manager(settings: ManagerSettings, *, patience_s: float = 0.0) -> Iterator[None]:
    """Runs a manager until the block ends. Logs at once, and raises at the end, what ended it before."""
    started: Future[Callable[[], object]] = Future()

    async def main() -> None:
        manager, loop = Manager(settings), asyncio.get_running_loop()
        started.set_result(lambda: loop.call_soon_threadsafe(manager.stop))
        await manager.run(patience_s=patience_s)

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            logger.error("the manager has ended: %s", error, extra=event("manager_failed", error=str(error)))
            raise

    with ThreadPoolExecutor(1, "lisa-manager") as thread:
        ended = thread.submit(run)
        either: list[Future[Any]] = [started, ended]
        wait(either, return_when=FIRST_COMPLETED)
        try:
            yield
        finally:
            # Its loop may have ended meanwhile.
            with suppress(RuntimeError):
                if started.done():
                    started.result()()
    ended.result()
