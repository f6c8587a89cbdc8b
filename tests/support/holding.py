"""Deliveries as a worker holds them."""

import time
from collections.abc import Iterable

from lisa_common.model.delivery import Delivery
from lisa_consumer.held_delivery import HeldDelivery

__all__ = ["hold"]


def hold(deliveries: Iterable[Delivery], *, is_begun: bool = True) -> list[HeldDelivery]:
    """Deliveries that were read just now."""
    return [HeldDelivery(delivery, time.monotonic(), is_begun=is_begun) for delivery in deliveries]
