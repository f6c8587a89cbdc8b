"""A manager that runs by itself, in a thread."""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lisa_manager import ManagerSettings
from lisa_manager.daemon import Manager

__all__ = ["running_manager"]

_HASTY = {"discover_s": 0.2, "housekeeping_s": 0.05, "poll_s": 0.1, "quiet_poll_s": 0.2}
"""Short intervals: a test has few topics and little time."""


@contextmanager
def running_manager(url: str, prefix: str, settings: Mapping[str, Any]) -> Iterator[None]:
    """Runs a manager until the block ends. Raises what it raised."""
    chosen = ManagerSettings.load(redis_url=url, prefix=prefix, **(_HASTY | dict(settings)))
    started = threading.Event()
    failures: list[BaseException] = []
    stop: list[Any] = []

    async def main() -> None:
        manager = Manager(chosen)
        loop = asyncio.get_running_loop()
        stop.append(lambda: loop.call_soon_threadsafe(manager.stop))
        started.set()
        await manager.run()

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001 - raised in the thread of the test
            failures.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=run, name="lisa-testing-manager")
    thread.start()
    started.wait()
    try:
        yield
    finally:
        if thread.is_alive() and stop:
            try:
                stop[0]()
            except RuntimeError:
                # Its loop has ended meanwhile.
                assert not thread.is_alive() or failures
        thread.join()
    if failures:
        raise failures[0]
