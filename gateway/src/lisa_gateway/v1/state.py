"""What all operations of /v1 share."""

from dataclasses import dataclass

from lisa_gateway.gateway import Gateway
from lisa_gateway.v1.receipts import Receipts

__all__ = ["State"]


@dataclass(frozen=True, slots=True)
class State:
    """The gateway, and what writes and reads receipts."""

    gateway: Gateway
    receipts: Receipts
