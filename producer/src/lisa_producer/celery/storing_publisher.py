"""Takes the place of kombu's producer for a task that is due later."""

import logging
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from kombu.compression import compress
from kombu.serialization import dumps
from kombu.transport.native_delayed_delivery import CELERY_DELAYED_DELIVERY_EXCHANGE, MAX_LEVEL, level_name
from kombu.utils.functional import retry_over_time

from lisa_common.celery_task import message_id, pack
from lisa_common.errors import InvalidInput, ServerError
from lisa_common.logs import event
from lisa_producer.celery.store import Store, broker_error

__all__ = ["StoringPublisher"]

logger = logging.getLogger(__name__)


class StoringPublisher:
    """Stores the message of one task, as `publish` of a producer of kombu would publish it; passes on all else."""

    def __init__(self, store: Store, producer: Any, headers: Mapping[str, Any], due: datetime) -> None:
        self._store = store
        self._producer = producer
        self._headers = headers
        self._due = due

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, *args: Any, headers: Any = None, **options: Any) -> Any:
        """Stores the message of the task; publishes an event, such as that the task was sent.

        Tries again as the retry policy says, then raises OperationalError of kombu. Raises InvalidInput.
        """
        if headers is not self._headers:
            return self._producer.publish(body, *args, headers=headers, **options)
        data = _packed(body, headers, **options)
        id = message_id(headers["id"], headers.get("retries") or 0)
        policy = options.get("retry_policy") or {}
        limits = (
            {name: policy[name] for name in _LIMITS if name in policy} if options.get("retry") else {"max_retries": 0}
        )
        try:
            with broker_error():
                is_stored = retry_over_time(self._store.send, ServerError, (id, data, self._due), **limits)
        except InvalidInput as error:
            # Celery's workers drop a task whose retry cannot be sent.
            if not headers.get("retries"):
                raise
            logger.warning("a retry goes to Celery's broker: %s", error, extra=event("celery_retry_refused", id=id))
            is_stored = False
        # Lisa keeps one message of an id. Celery takes any number.
        return None if is_stored else self._producer.publish(body, *args, headers=headers, **options)


_LIMITS = ("max_retries", "interval_start", "interval_step", "interval_max")

_OF_CALL = ("retry", "retry_policy", "timeout", "confirm_timeout")
"""Options that concern this call alone, and not the message."""


def _packed(
    body: Any,
    headers: Mapping[str, Any],
    *,
    serializer: str,
    compression: str | None = None,
    exchange: Any = "",
    declare: Any = None,
    expiration: float | None = None,
    **options: Any,
) -> bytes:
    """Returns the body of Lisa's message. The task has no eta any more: no worker is to wait for it."""
    headers = {**headers, "eta": None}
    content_type, encoding, data = dumps(body, serializer=serializer)
    data = data.encode(encoding) if isinstance(data, str) else data
    if compression:
        data, headers["compression"] = compress(data, compression)
    exchange = getattr(exchange, "name", exchange)
    if exchange == level_name(MAX_LEVEL):
        # Queues of RabbitMQ that delay by themselves: behind them.
        exchange = CELERY_DELAYED_DELIVERY_EXCHANGE
    return pack(
        data,
        {
            **{name: value for name, value in options.items() if name not in _OF_CALL},
            "headers": headers,
            "content_type": content_type,
            "content_encoding": encoding,
            "exchange": exchange,
            "declare": [entity.as_dict(recurse=True) for entity in declare or ()],
            # Counted from the publish, which comes later.
            "expires_at": None if expiration is None else time.time() + expiration,
        },
    )
