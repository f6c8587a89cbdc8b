"""Deliveries as a worker holds them."""

import time
from collections.abc import Iterable, Sequence
from typing import Any

from lisa_common.model.delivery import Delivery
from lisa_common.protocol.call import Flow
from lisa_consumer.delivery.core import Core
from lisa_consumer.worker.held import HeldDelivery

__all__ = ["hold", "read_all"]


def hold(deliveries: Iterable[Delivery], *, is_marked: bool = True) -> list[HeldDelivery]:
    """Deliveries that were read just now."""
    return [HeldDelivery(delivery, time.monotonic(), is_marked=is_marked) for delivery in deliveries]


def read_all(core: Core, topics: Sequence[str], **options: Any) -> Flow[list[Delivery]]:
    """The deliveries of one read."""
    return (yield from core.read(topics, **options)).deliveries
