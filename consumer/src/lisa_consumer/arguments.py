"""Checks of what callers pass to a consumer: deliveries and errors."""

from lisa_common.errors import InvalidInput
from lisa_common.model.delivery import Delivery

__all__ = ["check_delivery", "error_text"]


def check_delivery(value: object) -> Delivery:
    """A delivery; raises InvalidInput for anything else."""
    if not isinstance(value, Delivery):
        raise InvalidInput("delivery", value, "a Delivery that this consumer has read")
    return value


def error_text(value: object) -> str:
    """A failure's error as it is stored: text as it is, an exception with its type. Raises InvalidInput."""
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {text_of(value)}"
    if not isinstance(value, str):
        raise InvalidInput("error", value, "text or an exception")
    return value


def text_of(error: BaseException) -> str:
    """The text of an exception, whatever its class."""
    try:
        return str(error)
    except Exception as inner:  # noqa: BLE001 - an error may be of any class, with any bug in its __str__
        return f"no text, as its __str__ raised {type(inner).__name__}"
