"""Runs deliveries that may have killed a worker while nothing else runs, so that nothing dies with them."""

import math
import time
from collections import deque
from collections.abc import Callable

from lisa_consumer.worker.concurrency import ConcurrencyLimit
from lisa_consumer.worker.held import HeldDelivery

__all__ = ["Quarantine"]

_PATIENCE_S = 5.0
"""How long others are held back while running handlers end."""

_ALONE_S = 5.0
"""How long others are held back while a delivery runs alone."""


class Quarantine:
    """The deliveries that run alone, one after another. Others are held back meanwhile.

    Others are not held back for ever: a message whose handler runs for long is most likely innocent. After
    each delivery, others may begin for as long as they were held back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: deque[HeldDelivery] = deque()
        self._alone: HeldDelivery | None = None
        self._held_since = self._alone_since = self._open_until = 0.0
        # Attributes, not properties: the queue looks at them for each delivery.
        self.holds_back = False
        """Whether others must not begin."""
        self.is_wanted = False
        """Whether a delivery runs alone or waits to."""

    def add(self, held: HeldDelivery) -> None:
        """Adds a delivery that must run alone."""
        self._waiting.append(held)
        self.is_wanted = True

    def next(self, limit: ConcurrencyLimit) -> HeldDelivery | None:
        """The delivery that begins now, if any, with a slot of `limit`."""
        now = self._clock()
        if self._alone or not self._waiting or now < self._open_until:
            return None
        if not self.holds_back:
            self.holds_back, self._held_since = True, now
        running, is_patient = limit.acquired, now < self._held_since + _PATIENCE_S
        if running and is_patient:
            return None
        if not limit.acquire(self._waiting[0].delivery.topic):
            # Running handlers of its own topic may take long.
            if not is_patient:
                self._reopen(now)
            return None
        self._alone, self._alone_since = self._waiting.popleft(), now
        self._alone.has_company = running > 0
        return self._alone

    def share(self) -> HeldDelivery | None:
        """The delivery that has run alone for so long that others may begin beside it now, if any."""
        alone, now = self._alone, self._clock()
        if alone is None or now < self._alone_since + _ALONE_S:
            return None
        self._reopen(now)
        return alone

    def end(self, held: HeldDelivery) -> None:
        """Takes a delivery that is settled, or has not begun."""
        if held is self._alone:
            self._reopen(self._clock())

    def clear(self, is_chosen: Callable[[HeldDelivery], bool] = lambda _: True) -> list[HeldDelivery]:
        """Removes what has not begun, if it is chosen; others are no longer held back for it. Returns the removed."""
        removed = list(filter(is_chosen, self._waiting))
        self._waiting = deque(held for held in self._waiting if not is_chosen(held))
        if self._alone is None and not self._waiting:
            self.holds_back = self.is_wanted = False
        return removed

    @property
    def next_at(self) -> float:
        """When `next` or `share` may have another answer, if nothing ends before; infinite for never."""
        if self._alone:
            return self._alone_since + _ALONE_S
        if not self._waiting:
            return math.inf
        return self._held_since + _PATIENCE_S if self.holds_back else self._open_until

    def _reopen(self, now: float) -> None:
        held_s = now - self._held_since if self.holds_back else 0.0
        self._alone, self.holds_back, self._open_until = None, False, now + held_s
        self.is_wanted = bool(self._waiting)
