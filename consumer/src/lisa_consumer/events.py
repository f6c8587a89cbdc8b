"""The fields of log records about a delivery."""

from typing import Any

from lisa_common.logs import event
from lisa_common.model.delivery import Delivery

__all__ = ["delivery_event"]


def delivery_event(name: str, delivery: Delivery, **fields: Any) -> dict[str, Any]:
    """As `event`, with what identifies the delivery: topic, shard, group, id and attempt."""
    d = delivery
    return event(name, topic=d.topic, shard=d.shard, group=d.group, id=d.id, attempt=d.attempt, **fields)
