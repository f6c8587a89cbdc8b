"""Checks of what callers pass to a consumer: deliveries and errors."""

from lisa_common.errors import InvalidInput
from lisa_common.model.delivery import Delivery
from lisa_consumer.delivery.error_details import with_causes

__all__ = ["check_delivery", "error_text"]


def check_delivery(value: object) -> Delivery:
    """A delivery; raises InvalidInput for anything else."""
    if not isinstance(value, Delivery):
        raise InvalidInput("delivery", value, "a Delivery that this consumer has read")
    return value


def error_text(value: object) -> str:
    """A failure's error as it is stored: text as it is, an exception with its type and causes. Raises InvalidInput."""
    if isinstance(value, BaseException):
        return with_causes(value)
    if not isinstance(value, str):
        raise InvalidInput("error", value, "text or an exception")
    return value
