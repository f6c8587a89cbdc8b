"""Read messages when they fall due, and ack them when they are handled."""

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
        OutcomeUnknown,
        Refused,
        ServerError,
        Unreachable,
        Untrusted,
    )
    from lisa_common.model.delivery import Delivery
    from lisa_common.protocol.consuming import AckOutcome, NackOutcome
    from lisa_consumer.delivery.async_client import AsyncConsumer
    from lisa_consumer.delivery.async_settler import AsyncSettler, Held
    from lisa_consumer.delivery.client import Consumer
    from lisa_consumer.handling.batches import BatchFailed
    from lisa_consumer.handling.middleware import Middleware
    from lisa_consumer.handling.processes import ProcessDied
    from lisa_consumer.handling.retries import Exponential, Fixed
    from lisa_consumer.handling.wishes import RateLimited, Reject, Retry, Snooze
    from lisa_consumer.lending.flows import Lent, Note
    from lisa_consumer.lending.lender import AsyncLender
    from lisa_consumer.settings import ConsumerSettings
    from lisa_consumer.worker.worker import Worker

__all__ = [
    "AccessDenied",
    "AckOutcome",
    "AsyncConsumer",
    "AsyncLender",
    "AsyncSettler",
    "BatchFailed",
    "Closed",
    "Codec",
    "Consumer",
    "ConsumerSettings",
    "Delivery",
    "Exponential",
    "Fixed",
    "Held",
    "InvalidInput",
    "InvalidSettings",
    "Lent",
    "LisaError",
    "Middleware",
    "NackOutcome",
    "Note",
    "OutcomeUnknown",
    "ProcessDied",
    "RateLimited",
    "Refused",
    "Reject",
    "Retry",
    "ServerError",
    "Snooze",
    "Unreachable",
    "Untrusted",
    "Worker",
    "__version__",
]

if not TYPE_CHECKING:
    # For a type checker, any name would exist.
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "lisa_common.bodies": "Codec",
            "lisa_common.errors": (
                "AccessDenied Closed InvalidInput InvalidSettings LisaError OutcomeUnknown Refused ServerError "
                "Unreachable Untrusted"
            ),
            "lisa_common.model.delivery": "Delivery",
            "lisa_common.protocol.consuming": "AckOutcome NackOutcome",
            "lisa_consumer.delivery.async_client": "AsyncConsumer",
            "lisa_consumer.delivery.async_settler": "AsyncSettler Held",
            "lisa_consumer.delivery.client": "Consumer",
            "lisa_consumer.handling.batches": "BatchFailed",
            "lisa_consumer.handling.middleware": "Middleware",
            "lisa_consumer.handling.processes": "ProcessDied",
            "lisa_consumer.handling.retries": "Exponential Fixed",
            "lisa_consumer.handling.wishes": "RateLimited Reject Retry Snooze",
            "lisa_consumer.lending.lender": "AsyncLender",
            "lisa_consumer.lending.flows": "Lent Note",
            "lisa_consumer.settings": "ConsumerSettings",
            "lisa_consumer.worker.worker": "Worker",
        },
    )
