"""Workers report their state, and operators wish for changes."""

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lisa_common.model.keys import copy_of

__all__ = [
    "MOST_HANDLERS",
    "MOST_TOPICS",
    "RunningHandler",
    "Wish",
    "WorkerState",
    "WorkerStatus",
    "read_state",
    "worker_field",
]

MOST_TOPICS, MOST_HANDLERS = 100, 100
"""Most topics and running handlers that a worker names; of handlers the oldest."""

_MOST_BYTES = 262_144

_Ms = Annotated[int, Field(ge=0, lt=10**15)]
_Count = Annotated[int, Field(ge=0, lt=10**9)]


class WorkerStatus(StrEnum):
    """The states of a worker."""

    RUNNING = "running"
    PAUSED = "paused"
    """It begins nothing; handlers that run go on."""
    DRAINING = "draining"
    """It ends once its handlers have ended."""
    STUCK = "stuck"
    """All handlers of a topic are busy, and none has ended for long."""
    SILENT = "silent"
    """It has not said anything for 15 s: it was killed, or cannot reach the server."""


class Wish(StrEnum):
    """The wishes of operators for a worker."""

    PAUSE = "pause"
    DRAIN = "drain"


class _Stored(BaseModel):
    # Later releases may add fields.
    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class RunningHandler(_Stored):
    """A delivery whose handler runs."""

    topic: str
    id: str
    """The message, which may be aborted by it."""
    since_ms: _Ms
    """When its handler was called, by the server's clock."""


class WorkerState(_Stored):
    """The latest report of a worker. Times are ms of the server's clock."""

    group: str
    name: str
    has_chosen_name: bool
    """True if its code has named it: then its successor has the same name."""
    host: str
    pid: int
    version: str
    """The release of Lisa."""
    release: str
    """The release of the handlers, by the setting `release`; empty if it is not set."""
    topics: tuple[str, ...]
    """The topics that it reads, up to 100."""
    concurrency: int
    """How many handlers it runs at once."""
    status: WorkerStatus
    status_since_ms: _Ms
    """Since when it has this status."""
    problem: str = ""
    """The topics that are stuck, and for how long; empty for none."""
    began_ms: _Ms
    """When it began to serve."""
    seen_ms: _Ms
    """The time of this report."""
    held: _Count
    """Deliveries that it holds, running ones included."""
    running: _Count
    """Deliveries whose handlers run."""
    handlers: tuple[RunningHandler, ...] = ()
    """Those of them that have run longest, up to 100."""
    wish: Wish | None = None
    """The wish of an operator for it."""
    read_ms: _Ms = 0
    """When this was read: ages count to it."""


def worker_field(group: str, name: str) -> str:
    """The field of a worker in the hashes of workers and of wishes."""
    return copy_of(group, name)


def read_state(value: bytes) -> WorkerState | None:
    """Reads what a worker said; None for a damaged value, as any worker may write any."""
    try:
        return WorkerState.model_validate_json(value) if len(value) <= _MOST_BYTES else None
    except ValidationError:
        return None
