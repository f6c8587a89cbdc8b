"""A manager in a thread of another program, for development and tests."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from lisa_common.logs import event
from lisa_manager.daemon import Manager
from lisa_manager.settings import ManagerSettings

__all__ = ["running_manager"]

logger = logging.getLogger(__name__)


@contextmanager
def running_manager(settings: ManagerSettings, *, patience_s: float = 0.0) -> Iterator[None]:
    """Runs a manager until the block ends. Logs at once, and raises at the end, what ended it before."""
    started = threading.Event()
    failures: list[BaseException] = []
    stop: list[Callable[[], object]] = []

    async def main() -> None:
        manager = Manager(settings)
        loop = asyncio.get_running_loop()
        stop.append(lambda: loop.call_soon_threadsafe(manager.stop))
        started.set()
        await manager.run(patience_s=patience_s)

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001 - raised in the thread of the block
            logger.error("the manager has ended: %s", error, extra=event("manager_failed", error=str(error)))
            failures.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=run, name="lisa-manager")
    thread.start()
    started.wait()
    try:
        yield
    finally:
        # Its loop may have ended meanwhile.
        with suppress(RuntimeError):
            for each in stop:
                each()
        thread.join()
    if failures:
        raise failures[0]
