"""A task of Celery as a message of Lisa: the bridge of the producer writes it, the forwarder of the consumer reads it.

Needs kombu, which comes with Celery.
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from kombu.utils.json import dumps, loads

from lisa_common.validation import is_id

__all__ = ["TOPIC", "message_id", "pack", "unpack"]

TOPIC = "celery"
"""The topic of tasks that wait, by default."""


def message_id(task_id: str, retries: int) -> str:
    """Returns the id of the message for a task, or for one of its retries, which keep the id of the task."""
    id = f"{task_id} retry {retries}" if retries else task_id
    if retries and not is_id(id):
        # Longer than Lisa keeps, while the task may run: its retry must not be lost.
        id = f"{blake2b(task_id.encode(), digest_size=16).hexdigest()} retry {retries}"
    return id


def pack(body: bytes, options: Mapping[str, Any]) -> bytes:
    """Returns the body of a message: the options of the publish as a line of kombu's JSON, then Celery's own body."""
    return bytes(dumps(options).encode()) + b"\n" + body


def unpack(data: bytes) -> tuple[bytes, dict[str, Any]]:
    """Returns Celery's own body, and the options of the publish; raises ValueError for anything else."""
    options, _, body = data.partition(b"\n")
    return body, dict(loads(options))
