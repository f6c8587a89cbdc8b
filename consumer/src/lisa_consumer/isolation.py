"""Runs deliveries that may have killed a worker while nothing else runs, so that nothing dies with them."""

import asyncio
import time
from collections import deque
from collections.abc import Callable

from lisa_consumer.held_delivery import HeldDelivery

__all__ = ["Isolation"]

_PATIENCE_S = 5.0
"""How long others are held back while running handlers end."""

_ALONE_S = 5.0
"""How long others are held back while a delivery runs alone."""


class Isolation:
    """Runs deliveries alone, one after another, and holds others back meanwhile.

    Others are not held back for ever: a message whose handler runs for long is most likely innocent. After
    each delivery, others may begin for as long as they were held back. `on_company` is called with a delivery that no
    longer runs alone. `start` is called when a delivery may begin.
    """

    def __init__(self, start: Callable[[], None], on_company: Callable[[HeldDelivery], None]) -> None:
        self._start = start
        self._on_company = on_company
        self._waiting: deque[HeldDelivery] = deque()
        self._alone: HeldDelivery | None = None
        self._held_since: float | None = None
        self._open_until = 0.0
        self._sharing: asyncio.TimerHandle | None = None

    @property
    def holds_back(self) -> bool:
        """Whether others must not begin."""
        return self._held_since is not None

    @property
    def is_wanted(self) -> bool:
        """Whether a delivery runs alone or waits to."""
        return self._held_since is not None or bool(self._waiting)

    def add(self, held: HeldDelivery) -> None:
        """Adds a delivery that must run alone."""
        self._waiting.append(held)

    def next(self, running: int, acquire: Callable[[str], bool]) -> HeldDelivery | None:
        """The delivery that begins now, if any, after `acquire(topic)`; `running` is how many others run."""
        if self._alone or not self._waiting:
            return None
        now = time.monotonic()
        if now < self._open_until:
            return None
        if self._held_since is None:
            self._held_since = now
            self._start_in(_PATIENCE_S)
        is_patient = now < self._held_since + _PATIENCE_S
        if running and is_patient:
            return None
        if not acquire(self._waiting[0].delivery.topic):
            # Running handlers of its own topic may take long.
            if not is_patient:
                self._reopen()
            return None
        self._alone = self._waiting.popleft()
        self._sharing = asyncio.get_running_loop().call_later(_ALONE_S, self._share, self._alone)
        return self._alone

    def end(self, held: HeldDelivery) -> None:
        """Takes a delivery that has ended and is settled, or never began."""
        if held is self._alone:
            self._reopen()

    def clear(self, is_chosen: Callable[[HeldDelivery], bool] = lambda _: True) -> list[HeldDelivery]:
        """Removes what has not begun, if it is chosen; others are no longer held back for it. Result: the removed."""
        removed = list(filter(is_chosen, self._waiting))
        self._waiting = deque(held for held in self._waiting if not is_chosen(held))
        if self._alone is None and not self._waiting:
            self._held_since = None
        return removed

    def _share(self, held: HeldDelivery) -> None:
        if held is self._alone:
            self._on_company(held)
            self._reopen()
            self._start()

    def _reopen(self) -> None:
        now = time.monotonic()
        held_s = now - (self._held_since or now)
        self._alone, self._held_since, self._open_until = None, None, now + held_s
        if self._sharing:
            # It would keep the delivery in memory.
            self._sharing.cancel()
        if self._waiting:
            self._start_in(held_s)

    def _start_in(self, seconds: float) -> None:
        # A little later: the loop and this class read different clocks.
        asyncio.get_running_loop().call_later(seconds + 0.001, self._start)
