"""Send messages that become readable at their due time.

with Producer("redis://localhost:6379") as producer:
    producer.send("orders", {"order": 7}, delay=900, id="order-7")
"""

from typing import TYPE_CHECKING

from lisa_common.lazy import lazy_names

if TYPE_CHECKING:
    from lisa_common import __version__ as __version__
    from lisa_common.bodies import Codec as Codec
    from lisa_common.errors import (
        AccessDenied as AccessDenied,
        Closed as Closed,
        InvalidInput as InvalidInput,
        InvalidSettings as InvalidSettings,
        LisaError as LisaError,
        NoFreeConnection as NoFreeConnection,
        NotConfirmed as NotConfirmed,
        OutcomeUnknown as OutcomeUnknown,
        QueueFull as QueueFull,
        Refused as Refused,
        ServerError as ServerError,
        Unreachable as Unreachable,
        Untrusted as Untrusted,
    )
    from lisa_common.protocol.producing import (
        CancelOutcome as CancelOutcome,
        CopyState as CopyState,
        Found as Found,
        RescheduleOutcome as RescheduleOutcome,
        State as State,
    )
    from lisa_producer.async_client import AsyncProducer as AsyncProducer
    from lisa_producer.client import Producer as Producer
    from lisa_producer.message import Confirm as Confirm, Message as Message
    from lisa_producer.results import (
        BatchResults as BatchResults,
        PartialSend as PartialSend,
        SendOutcome as SendOutcome,
        SendReport as SendReport,
        SendResult as SendResult,
        SendResults as SendResults,
    )
    from lisa_producer.settings import ProducerSettings as ProducerSettings


if not TYPE_CHECKING:
    # For a type checker, any name would exist.
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "lisa_common": "__version__",
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
