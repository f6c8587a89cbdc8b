"""Read messages when they fall due, and ack them when they are handled."""

from lisa_common.protocol.consuming import AckOutcome, Delivery, NackOutcome
from lisa_consumer.aio import AsyncConsumer
from lisa_consumer.client import Consumer
from lisa_consumer.handler import Reject, Retry
from lisa_consumer.settings import ConsumerSettings
from lisa_consumer.worker import Worker

__all__ = [
    "AckOutcome",
    "AsyncConsumer",
    "Consumer",
    "ConsumerSettings",
    "Delivery",
    "NackOutcome",
    "Reject",
    "Retry",
    "Worker",
]
