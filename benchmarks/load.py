"""A steady load for Lisa and its peers. Producers of peers import this: it needs only the standard library."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

__all__ = ["CAMELLIA", "GENTLE", "Case", "Send", "pace"]

_TICK_S = 0.04

Send = Callable[[int, Sequence[float]], None]
"""Sends messages to a topic, by its number: one for each delay, in seconds."""


@dataclass(frozen=True, slots=True)
class Case:
    """Messages, sent evenly in `sending_s` to topics in turn, with delays between two bounds."""

    topics: int
    messages: int
    sending_s: float
    delay_s: tuple[float, float]
    whole_s: bool = False
    """Whether delays are whole seconds, the only delays of some peers."""

    def scaled(self, scale: float) -> "Case":
        """The same rate for a shorter time, with delays of at least one second."""
        least, most = (max(low, bound * scale) for low, bound in zip((1.0, 2.0), self.delay_s, strict=True))
        messages = max(100, int(self.messages * scale))
        return replace(self, messages=messages, sending_s=self.sending_s * scale, delay_s=(least, most))


CAMELLIA = Case(topics=100, messages=100_000, sending_s=41, delay_s=(10, 70))
"""The case of which camellia-delay-queue publishes figures: mean 43 ms, max 798 ms."""

GENTLE = Case(topics=1, messages=1_500, sending_s=6, delay_s=(1, 3), whole_s=True)
"""A load so light that a lag comes from the design of the queue."""


def pace(case: Case, send: Send) -> float:
    """Sends the load of a case. Returns the seconds by which it was behind at the end."""
    chance = random.Random(1)
    ticks = max(1, round(case.sending_s / _TICK_S))
    began = time.monotonic()
    sent = 0
    for tick in range(ticks):
        count = case.messages * (tick + 1) // ticks - sent
        delays = [chance.uniform(*case.delay_s) for _ in range(count)]
        send(tick % case.topics, [float(round(delay)) for delay in delays] if case.whole_s else delays)
        sent += count
        time.sleep(max(0.0, began + (tick + 1) * _TICK_S - time.monotonic()))
    return time.monotonic() - began - case.sending_s
