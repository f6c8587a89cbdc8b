"""Send messages that become readable at their due time.

with Producer("redis://localhost:6379") as producer:
    producer.send("orders", {"order": 7}, delay=900, id="order-7")
"""

from typing import TYPE_CHECKING

from lisa_common import __version__
from lisa_common.lazy import lazy_names

if TYPE_CHECKING:
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

if not TYPE_CHECKING:
    # For a type checker, any name would exist.
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "lisa_common.bodies": "Codec",
            "lisa_common.errors": (
                "AccessDenied Closed InvalidInput InvalidSettings LisaError NoFreeConnection NotConfirmed "
                "OutcomeUnknown QueueFull Refused ServerError Unreachable Untrusted"
            ),
            "lisa_common.protocol.producing": "CancelOutcome CopyState Found RescheduleOutcome State",
            "lisa_producer.async_client": "AsyncProducer",
            "lisa_producer.client": "Producer",
            "lisa_producer.message": "Confirm Message",
            "lisa_producer.results": "BatchResults PartialSend SendOutcome SendReport SendResult SendResults",
            "lisa_producer.settings": "ProducerSettings",
        },
    )
