"""Reads deliveries together with the values of their bodies."""

import logging
import time
from collections.abc import Sequence
from typing import Any

from lisa_common.bodies import BodyType, InvalidBody
from lisa_common.errors import LisaError
from lisa_common.logs import event
from lisa_common.model.delivery import Delivery
from lisa_common.protocol.call import Flow
from lisa_common.protocol.consuming import Nack
from lisa_common.validation import Duration, duration_ms
from lisa_consumer.delivery.core import Core
from lisa_consumer.events import delivery_event

__all__ = ["read_values"]

logger = logging.getLogger(__name__)


def read_values(
    core: Core,
    body: BodyType[Any] | None,
    topics: Sequence[str],
    *,
    limit: int,
    wait: Duration | None,
    block: Duration,
    visibility: Duration | None,
) -> Flow[list[Delivery]]:
    """The deliveries of `Core.read`; with `body` with values, and those whose body does not fit become garbage."""
    deadline = None if wait is None else time.monotonic() + duration_ms("wait", wait) / 1000
    while True:
        result = yield from core.read(topics, limit=limit, wait=wait, block=block, visibility=visibility)
        deliveries = result.deliveries
        if body is None:
            return deliveries
        fitting, rejected = _sorted(body, deliveries)
        if rejected:
            try:
                yield from core.nack_each(rejected)
            except GeneratorExit:
                core.leave(deliveries)
                raise
            except LisaError as error:
                fields = event("reject_failed", group=core.group, error=str(error))
                logger.warning("cannot reject %d deliveries, they come again: %s", len(rejected), error, extra=fields)
                if not fitting:
                    raise
        if fitting or not rejected:
            return fitting
        # All were rejected: there may be more behind them, and there is time left to wait.
        wait = None if deadline is None else max(0.0, deadline - time.monotonic())


def _sorted(body: BodyType[Any], deliveries: Sequence[Delivery]) -> tuple[list[Delivery], list[tuple[Delivery, Nack]]]:
    fitting, rejected = [], []
    for delivery in deliveries:
        try:
            fitting.append(delivery._replace(value=body.decode(delivery.body)))
        except InvalidBody as error:
            logger.error(
                "%s is garbage: %s",
                delivery,
                error,
                extra=delivery_event("delivery_rejected", delivery, error=str(error)),
            )
            rejected.append((delivery, Nack(delivery.entry, str(error), rejected=True)))
    return fitting, rejected
