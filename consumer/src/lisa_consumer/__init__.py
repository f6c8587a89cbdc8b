"""Read messages when they fall due, and ack them when they are handled."""

from lisa_common.errors import (
    AccessDenied,
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
from lisa_consumer.async_client import AsyncConsumer
from lisa_consumer.client import Consumer
from lisa_consumer.handler import RateLimited, Reject, Retry
from lisa_consumer.settings import ConsumerSettings
from lisa_consumer.worker import Worker

__all__ = [
    "AccessDenied",
    "AckOutcome",
    "AsyncConsumer",
    "Consumer",
    "ConsumerSettings",
    "Delivery",
    "InvalidInput",
    "InvalidSettings",
    "LisaError",
    "NackOutcome",
    "OutcomeUnknown",
    "RateLimited",
    "Refused",
    "Reject",
    "Retry",
    "ServerError",
    "Unreachable",
    "Untrusted",
    "Worker",
]
