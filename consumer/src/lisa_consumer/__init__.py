"""Read messages when they fall due, and ack them when they are handled."""

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
        OutcomeUnknown as OutcomeUnknown,
        Refused as Refused,
        ServerError as ServerError,
        Unreachable as Unreachable,
        Untrusted as Untrusted,
    )
    from lisa_common.model.delivery import Delivery as Delivery
    from lisa_common.protocol.consuming import AckOutcome as AckOutcome, NackOutcome as NackOutcome
    from lisa_consumer.delivery.async_client import AsyncConsumer as AsyncConsumer
    from lisa_consumer.delivery.async_settler import AsyncSettler as AsyncSettler, Held as Held
    from lisa_consumer.delivery.client import Consumer as Consumer
    from lisa_consumer.handling.batches import BatchFailed as BatchFailed
    from lisa_consumer.handling.middleware import Middleware as Middleware
    from lisa_consumer.handling.processes import ProcessDied as ProcessDied
    from lisa_consumer.handling.retries import Exponential as Exponential, Fixed as Fixed
    from lisa_consumer.handling.wishes import (
        RateLimited as RateLimited,
        Reject as Reject,
        Retry as Retry,
        Snooze as Snooze,
    )
    from lisa_consumer.lending.flows import Lent as Lent, Note as Note
    from lisa_consumer.lending.lender import AsyncLender as AsyncLender
    from lisa_consumer.settings import ConsumerSettings as ConsumerSettings
    from lisa_consumer.worker.worker import Worker as Worker


if not TYPE_CHECKING:
    # For a type checker, any name would exist.
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "lisa_common": "__version__",
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
