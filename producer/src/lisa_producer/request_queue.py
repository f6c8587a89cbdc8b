"""Requests of one key that wait for their shared call, without I/O.

While one call is under way, further requests queue up; the next call carries them all. So calls grow with the load, and
few connections serve any number of callers. `coalescing` drives the queues for threads, `async_coalescing` for tasks.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from lisa_common.backoff import RECONNECT
from lisa_common.client.retry import Outage, after
from lisa_common.errors import (
    NOTHING_DONE,
    Closed,
    LisaError,
    NoFreeConnection,
    OutcomeUnknown,
    Refused,
    ServerError,
    Unreachable,
)
from lisa_producer.settings import ProducerSettings
from lisa_producer.shared_flow import Request

__all__ = ["PendingRequest", "RequestQueue"]

T = TypeVar("T")

_LATE = 0.1
"""Share of `timeout_s`: a request that is overdue by more than this is not tried again after a failed call."""


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request in a queue, or in the call under way."""

    queue: "RequestQueue"
    request: Request
    deadline: float
    waiter: Any
    """Wakes the caller: a lock or a future."""
    owner: Any = None
    """The caller's own call, among threads."""
    tried_at: float | None = None
    """When the first call began whose reply was lost."""
    unknown: OutcomeUnknown | None = None
    """Why an earlier try may have been carried out."""
    abandoned: bool = False
    done: bool = False
    outcome: Any = None

    @property
    def item(self) -> Any:
        """What the next call carries."""
        request = self.request
        return request.again(request.item, self.tried_at) if self.tried_at and request.again else request.item

    def is_abandoned(self) -> bool:
        """Whether the caller stopped waiting."""
        return self.abandoned

    def finish(self, outcome: Any) -> None:
        """Sets the result, or the error, of the request."""
        if self.unknown is not None and isinstance(outcome, NOTHING_DONE):
            # The last try did nothing, but an earlier one may have.
            outcome, cause = _own_error(self.unknown), outcome
            outcome.__cause__ = cause
        self.done, self.outcome = True, outcome


class RequestQueue:
    """Requests that may share a call. A queue exists only while requests wait."""

    under_way: Sequence[PendingRequest] = ()
    leader: PendingRequest | None = None
    failure: LisaError | None = None
    """Error of the latest call."""
    failures = 0
    began = 0.0
    """When the latest call began."""
    delay_s = 0.0
    """Delay before the next call."""
    closed = False

    def __init__(self, first: Request, settings: ProducerSettings, outage: Outage, owner: Any = None) -> None:
        self.outage = outage
        self.first = first
        """The request whose call was under way when the queue was created."""
        self.owner = owner
        """Whose call must pass on the lead, among threads."""
        self.settings = settings
        self.pending: deque[PendingRequest] = deque()

    def take_batch(self) -> list[PendingRequest]:
        """The requests of the next call, within the limits of a batch; may be empty."""
        batch: list[PendingRequest] = []
        self.under_way = batch
        left = self.settings.batch_bytes
        while self.pending and len(batch) < self.settings.batch_messages:
            pending = self.pending[0]
            if not pending.is_abandoned():
                left -= pending.request.size
                if left < 0 and batch:
                    break
                batch.append(pending)
            self.pending.popleft()
        return batch

    def items(self, batch: Sequence[PendingRequest]) -> list[Any]:
        """The items of a call that begins now."""
        self.began = time.monotonic()
        return [each.item for each in batch]

    def settle(self, results: Sequence[Any]) -> list[PendingRequest]:
        """Takes the results of the call under way. Returns the finished requests; the others go back to the front."""
        batch, self.under_way = self.under_way, ()
        if self.failures and not any(isinstance(result, LisaError) for result in results):
            self.outage.end(tried_again=True)
        self.failure = next((result for result in results if isinstance(result, ServerError)), None)
        retryable = [isinstance(result, LisaError) and self._is_retryable(result) for result in results]
        self.failures = self.failures + 1 if any(retryable) else 0
        self.delay_s = RECONNECT.compute(self.failures) if self.failures else 0.0
        latest = time.monotonic() + self.delay_s
        finished: list[PendingRequest] = []
        retries: list[PendingRequest] = []
        for request, result, may_retry in zip(batch, results, retryable, strict=True):
            if isinstance(result, OutcomeUnknown):
                request.unknown = request.unknown or result
                request.tried_at = request.tried_at or self.began
            if may_retry and latest <= request.deadline and not self.closed:
                retries.append(request)
                self.outage.begin(result, request.deadline)
            else:
                error = _own_error(result)
                request.finish(after(error, request.deadline - self.settings.patience_s) if may_retry else error)
                finished.append(request)
        self.pending.extendleft(reversed(retries))
        return finished

    def _is_retryable(self, error: LisaError) -> bool:
        if isinstance(error, OutcomeUnknown):
            return self.first.repeatable
        return isinstance(error, Unreachable | Refused)

    def abort(self) -> list[PendingRequest]:
        """Ends a call that was interrupted between request and reply. Returns the finished requests."""
        # The interrupt may have come while a request was in both `pending` and `under_way`.
        taken = set(self.under_way)
        self.pending = deque(request for request in self.pending if request not in taken)
        error = OutcomeUnknown("the call was interrupted before the reply")
        return self.settle([error] * len(self.under_way))

    def expire(self) -> list[PendingRequest]:
        """Finishes requests that waited too long behind failed calls. Returns these."""
        expired: list[PendingRequest] = []
        if isinstance(self.failure, Unreachable | OutcomeUnknown) and not isinstance(self.failure, NoFreeConnection):
            latest = time.monotonic() - _LATE * self.settings.timeout_s
            while self.pending and self.pending[0].deadline < latest:
                request = self.pending.popleft()
                request.finish(Unreachable(f"{self.failure}; this call waited behind the failed one"))
                expired.append(request)
        return expired

    def close(self) -> list[PendingRequest]:
        """Finishes all pending requests, and stops retries. Returns the finished requests."""
        self.closed = True
        finished = list(self.pending)
        self.pending.clear()
        for request in finished:
            request.finish(Closed("the producer was closed; nothing was done"))
        return finished


def _own_error(result: T) -> T:
    """Copies a server error: callers that raise the same one would mix their tracebacks. Keeps other results."""
    if not isinstance(result, ServerError):
        return result
    copy = type(result)(*result.args)
    copy.__cause__ = result
    return copy
