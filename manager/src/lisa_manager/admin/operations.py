"""Operations over many messages that take a while: how far each is, and the wish to stop it.

A program that runs one stores its progress, so that any other program can show it and ask for its end.
"""

import json
import secrets
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from lisa_common.errors import InvalidInput
from lisa_common.model.keys import operations_key, text_of
from lisa_common.protocol.call import Flow, command
from lisa_common.protocol.consuming import server_time
from lisa_common.protocol.replies import pairs
from lisa_common.validation import check_id

__all__ = ["Operation", "new_operation_id", "read", "save", "stop"]

_KEPT: Final = 100
"""So many operations are kept, the latest."""

_SILENT_MS: Final = 30_000
"""A running operation without news for this long was interrupted: its program ended."""

_STOP: Final = "/stop"

RUNNING, INTERRUPTED = "running", "interrupted"


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation. Times are ms of the server's clock, and are set as it is stored."""

    id: str
    who: str
    what: str
    """As in "replay"."""
    topic: str
    selection: str
    """Which messages, as the program that runs it writes it: with this text it can be started again."""
    total: int
    """How many there were to look at when it began."""
    looked: int = 0
    """How many it has looked at."""
    done: int = 0
    """How many it has changed."""
    failed: int = 0
    """How many it could not change."""
    status: str = RUNNING
    """running, stopped, done, failed; interrupted, if its program ended."""
    error: str = ""
    began_ms: int = 0
    seen_ms: int = 0
    """When its progress was stored last."""


def new_operation_id() -> str:
    """An id of a new operation."""
    return secrets.token_hex(8)


def save(prefix: str, operation: Operation) -> Flow[bool]:
    """Stores an operation and its progress. Returns whether somebody asked for its end. Raises InvalidInput."""
    if not isinstance(operation, Operation):
        raise InvalidInput("operation", operation, "an Operation")
    key = operations_key(prefix)
    now: int = yield server_time()
    stored: bytes | None = yield command("HGET", key, operation.id)
    known = _load(stored, now) if stored else None
    if known is None:
        yield from _make_room(key)
    values = asdict(operation) | {"seen_ms": now, "began_ms": known.began_ms if known else now}
    stopping: bytes | None = yield command("HGET", key, operation.id + _STOP)
    yield command("HSET", key, operation.id, json.dumps(values, separators=(",", ":")))
    if operation.status != RUNNING:
        yield command("HDEL", key, operation.id + _STOP)
    return stopping is not None


def _make_room(key: str) -> Flow[None]:
    known = sorted((yield from _read(key)), key=lambda operation: -operation.seen_ms)
    if old := [name for operation in known[_KEPT - 1 :] for name in (operation.id, operation.id + _STOP)]:
        yield command("HDEL", key, *old)


def read(prefix: str) -> Flow[list[Operation]]:
    """The latest operations, newest first."""
    return sorted((yield from _read(operations_key(prefix))), key=lambda operation: -operation.began_ms)


def stop(prefix: str, id: str) -> Flow[bool]:
    """Asks for the end of a running operation, which ends after its present step. Returns whether it runs."""
    check_id(id)
    running = {o.id for o in (yield from read(prefix)) if o.status == RUNNING}
    if id in running:
        yield command("HSET", operations_key(prefix), id + _STOP, 1)
    return id in running


def _read(key: str) -> Flow[list[Operation]]:
    now: int = yield server_time()
    reply: list[Any] = yield command("HGETALL", key)
    operations = (_load(value, now) for name, value in pairs(reply) if not name.endswith(_STOP.encode()))
    return [operation for operation in operations if operation is not None]


def _load(value: bytes, now: int) -> Operation | None:
    try:
        content = json.loads(text_of(value))
        kinds = {field.name: str if field.type in (str, "str") else int for field in fields(Operation)}
        if content.keys() != kinds.keys() or not all(type(content[name]) is kind for name, kind in kinds.items()):
            return None
    except (ValueError, AttributeError, RecursionError):
        return None
    if content["status"] == RUNNING and now - content["seen_ms"] > _SILENT_MS:
        content["status"] = INTERRUPTED
    return Operation(**content)
