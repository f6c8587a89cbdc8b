"""The tasks of an application that wait in Lisa."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from celery import Celery
from celery.app.task import Context
from kombu.compression import decompress
from kombu.exceptions import KombuError, OperationalError
from kombu.serialization import loads, prepare_accept_content
from kombu.utils.objects import cached_property

from lisa_common.celery_task import message_id, unpack
from lisa_common.errors import InvalidInput, ServerError
from lisa_common.logs import event
from lisa_common.protocol.producing import CancelOutcome
from lisa_common.validation import is_id
from lisa_producer.client import Producer
from lisa_producer.settings import ProducerSettings

__all__ = ["Store", "broker_error"]

logger = logging.getLogger(__name__)

_ETA = "celery-eta"
"""The header of a message with the ETA of its task."""

_ENDLESS_RETRIES = 100
"""So many retries of a task without a limit are looked for."""


@contextmanager
def broker_error() -> Iterator[None]:
    """Raises errors of Lisa's server as the error that callers of Celery expect of a broker."""
    try:
        yield
    except ServerError as error:
        raise OperationalError(str(error)) from error


class Store:
    """Sends the messages of tasks, and cancels them. Connects at its first use; may be used after a fork."""

    def __init__(self, app: Celery, topic: str, *, url: str | None, settings: ProducerSettings | None) -> None:
        self._app = app
        self._topic = topic
        self._url = url
        self._settings = settings

    @cached_property
    def _producer(self) -> Producer:
        # Celery's retry policy has the patience.
        settings = ProducerSettings.of(self._settings, redis_url=self._url)
        return Producer(self._url, settings=settings.model_copy(update={"patience_s": 0.0}))

    def send(self, id: str, data: bytes, due: datetime) -> bool:
        """Returns False if another task has this id now, or had it within the dedup window.

        A repeat of the same send is stored once. Raises ServerError and InvalidInput.
        """
        # The record's due time may change: an operator reschedules the task.
        headers = {_ETA: due.astimezone(UTC).isoformat()}
        try:
            result = self._producer.send(self._topic, data, at=due, id=id, headers=headers)
        except InvalidInput as error:
            raise InvalidInput("eta" if error.field == "at" else error.field, error.value, error.expected) from None
        if not result.duplicate:
            return True
        found = self._producer.find(self._topic, id)
        record = found.record if found else None
        if record and record.body == data and record.headers.get(_ETA) == headers[_ETA]:
            return True
        logger.warning(
            "task %s goes to the broker of Celery, to wait there: Lisa has another task of its id",
            id,
            extra=event("celery_task_known", id=id, topic=self._topic),
        )
        return False

    def cancel(self, task_id: str) -> None:
        """Cancels a task that waits, or its retry that waits, and stores the result `REVOKED`, as a worker would."""
        with broker_error():
            for retries in range(self._most_retries() + 1):
                id = message_id(task_id, retries)
                if not is_id(id):
                    # Lisa has refused it, and the others of a list have their turn.
                    continue
                found = self._producer.find(self._topic, id)
                if found and found.record and self._producer.cancel(self._topic, id) is CancelOutcome.CANCELLED:
                    request = self._request(found.record.body)
                    self._app.backend.mark_as_revoked(
                        task_id, "revoked", request=request, store_result=not request.ignore_result
                    )

    def _most_retries(self) -> int:
        """Returns the largest limit among the tasks that the application knows."""
        limits = [task.max_retries for name, task in self._app.tasks.items() if not name.startswith("celery.")]
        return max((_ENDLESS_RETRIES if limit is None else limit for limit in limits), default=3)

    def _request(self, data: bytes) -> Context:
        """Returns what the result backend needs to know of a task, such as the chord that waits for it."""
        body, options = unpack(data)
        headers = options["headers"]
        if compression := headers.get("compression"):
            body = decompress(body, compression)
        types = options["content_type"], options["content_encoding"]
        try:
            content: Any = loads(body, *types, accept=prepare_accept_content(self._app.conf.accept_content))
        except KombuError as error:
            # Such as pickle, which only workers accept. It is revoked all the same; a chord is not told.
            text = "task %s is revoked unread: %s"
            logger.warning(text, headers["id"], error, extra=event("celery_task_unread", id=headers["id"]))
            return Context(headers)
        return Context(headers | content[2])
