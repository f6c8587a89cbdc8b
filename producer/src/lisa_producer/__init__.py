"""Send messages that become readable at their due time.

with Producer("redis://localhost:6379") as producer:
    producer.send("orders", {"order": 7}, delay=900, id="order-7")
"""

from lisa_common import __version__
from lisa_common.bodies import Codec
from lisa_common.errors import (
    AccessDenied,
    Closed,
    InvalidInput,
    InvalidSettings,
    LisaError,
    NoFreeConnection,
    NotConfirmed,
    OutcomeUnknown,
    QueueFull,
    Refused,
    ServerError,
    Unreachable,
    Untrusted,
)
from lisa_common.protocol.producing import CancelOutcome, CopyState, Found, RescheduleOutcome, State
from lisa_producer.async_client import AsyncProducer
from lisa_producer.client import Producer
from lisa_producer.message import Confirm, Message
from lisa_producer.results import BatchResults, PartialSend, SendOutcome, SendReport, SendResult, SendResults
from lisa_producer.settings import ProducerSettings

__all__ = [
    "AccessDenied",
    "AsyncProducer",
    "BatchResults",
    "CancelOutcome",
    "Closed",
    "Codec",
    "Confirm",
    "CopyState",
    "Found",
    "InvalidInput",
    "InvalidSettings",
    "LisaError",
    "Message",
    "NoFreeConnection",
    "NotConfirmed",
    "OutcomeUnknown",
    "PartialSend",
    "Producer",
    "ProducerSettings",
    "QueueFull",
    "Refused",
    "RescheduleOutcome",
    "SendOutcome",
    "SendReport",
    "SendResult",
    "SendResults",
    "ServerError",
    "State",
    "Unreachable",
    "Untrusted",
    "__version__",
]
