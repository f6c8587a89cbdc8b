"""Pauses of one worker, from any thread."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from lisa_consumer.worker.life import Life

__all__ = ["Pausable"]


class Pausable:
    """What can be paused and resumed, in any thread, whether it runs or not."""

    def __init__(self) -> None:
        self._is_paused = False
        self._running: tuple[asyncio.AbstractEventLoop, Life] | None = None

    def pause(self) -> None:
        """Makes this worker begin nothing more until `resume`. It may be called in any thread, and before `run`.

        Handlers that run, or are about to begin in this moment, go on, and their leases are renewed. What the worker
        holds and has not begun is given back to the other workers, without an attempt spent. A policy with `paused`
        stops a topic for all workers.
        """
        self._pause(paused=True)

    def resume(self) -> None:
        """Ends a pause. It may be called in any thread."""
        self._pause(paused=False)

    @property
    def is_paused(self) -> bool:
        """Whether the worker is paused."""
        return self._is_paused

    def _pause(self, *, paused: bool) -> None:
        self._is_paused = paused
        if running := self._running:
            loop, life = running
            if paused:
                # At once, also for what would begin in this turn of the event loop.
                life.hold()
            # A worker that has just ended needs no pause.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._apply, life)

    def _apply(self, life: Life) -> None:
        # By what holds now: threads may have paused and resumed it at the same moment.
        if self._is_paused:
            life.pause()
        else:
            life.resume()

    @contextmanager
    def _pausing(self, life: Life) -> Iterator[None]:
        """Passes pauses on to a serving worker until the block ends. Enter it in the worker's event loop."""
        self._running = asyncio.get_running_loop(), life
        try:
            if self._is_paused:
                life.pause()
            yield
        finally:
            self._running = None
