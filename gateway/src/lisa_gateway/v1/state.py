"""What all operations of /v1 share."""

from dataclasses import dataclass

from lisa_gateway.gateway import Gateway
from lisa_gateway.v1.reader import Reader
from lisa_gateway.v1.receipts import Receipts

__all__ = ["State"]


@dataclass(frozen=True, slots=True)
class State:
    """The gateway, what reads messages, and what writes receipts."""

    gateway: Gateway
    receipts: Receipts
    reader: Reader
