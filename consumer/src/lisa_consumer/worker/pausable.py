"""Pauses of one worker, from any thread, and by operators."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from lisa_common.logs import event
from lisa_common.model.worker_state import Wish
from lisa_consumer.worker.life import Life

__all__ = ["Pausable"]

logger = logging.getLogger(__name__)


class Pausable(ABC):
    """What can be paused and resumed, in any thread, whether it runs or not."""

    def __init__(self) -> None:
        self._is_paused = False
        """Whether its own program has paused it."""
        self._wish: Wish | None = None
        """What an operator wants."""
        self._running: tuple[asyncio.AbstractEventLoop, Life] | None = None

    def pause(self) -> None:
        """Makes this worker begin nothing more until `resume`. It may be called in any thread, and before `run`.

        Handlers that run, or are about to begin in this moment, go on, and their leases are renewed. What the worker
        holds and has not begun is given back to the other workers, without an attempt spent. A policy with `paused`
        stops a topic for all workers.
        """
        self._is_paused = True
        self._apply_soon()

    def resume(self) -> None:
        """Ends a pause, but not that of an operator. It may be called in any thread."""
        self._is_paused = False
        self._apply_soon()

    @property
    def is_paused(self) -> bool:
        """Whether the worker is paused, by its own program or by an operator."""
        return self._is_paused or self._wish is Wish.PAUSE

    @abstractmethod
    def stop(self) -> None:
        """Makes it drain and end."""

    def obey(self, wish: Wish | None) -> None:
        """Does what an operator wants: a pause, a drain, or neither. Call it in the event loop."""
        if wish is self._wish:
            return
        text = f"an operator wants a {wish}" if wish else "an operator wants it to go on"
        logger.info("%s", text, extra=event("operator_wish", wish=wish and str(wish)))
        self._wish = wish
        self._apply_soon()
        if wish is Wish.DRAIN:
            self.stop()

    def _apply_soon(self) -> None:
        if running := self._running:
            loop, life = running
            if self.is_paused:
                # At once, also for what would begin in this turn of the event loop.
                life.hold()
            # A worker that has just ended needs no pause.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._apply, life)

    def _apply(self, life: Life) -> None:
        # By what holds now: threads may have paused and resumed it at the same moment.
        if self.is_paused:
            life.pause()
        else:
            life.resume()

    @contextmanager
    def _pausing(self, life: Life) -> Iterator[None]:
        """Passes pauses on to a serving worker until the block ends. Enter it in the worker's event loop."""
        self._running = asyncio.get_running_loop(), life
        try:
            if self.is_paused:
                life.pause()
            yield
        finally:
            self._running = self._wish = None
