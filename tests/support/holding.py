"""Deliveries as a worker holds them."""

import time
from collections.abc import Iterable

from lisa_common.model.delivery import Delivery
from lisa_consumer.worker.held import HeldDelivery

__all__ = ["hold"]


def hold(deliveries: Iterable[Delivery], *, is_marked: bool = True) -> list[HeldDelivery]:
    """Deliveries that were read just now."""
    return [HeldDelivery(delivery, time.monotonic(), is_marked=is_marked) for delivery in deliveries]
