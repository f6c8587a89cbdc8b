"""Calls that threads share: requests made during a call go out with the next one. `async_coalescing` is the twin."""

import os
import threading
import time
from collections.abc import Hashable
from contextlib import suppress
from typing import Any, TypeVar
from weakref import ref

from lisa_common.client.connection import Connection
from lisa_common.errors import LisaError, OutcomeUnknown
from lisa_producer.request_queue import PendingRequest, RequestQueue
from lisa_producer.settings import ProducerSettings
from lisa_producer.shared_flow import Request, SharedFlow

__all__ = ["Coalescer"]

T = TypeVar("T")

_CHECK_S = 1.0
"""After so long a wait a caller checks that somebody still works for it."""


_Owner = tuple[Request, ref[Any]]
"""The call that must pass on the lead: its request and its flow. The flow lives no longer than the call.

A signal handler may raise anywhere, also in the `finally` by which a call passes on the lead; without an owner, the
others would then wait for ever. A tuple is cheap, and every send makes one.
"""


class _ProcessState:
    """The queues and callers of one process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.queues: dict[Hashable, RequestQueue | _Owner] = {}
        """By key; an owner where one call is under way and nothing waits."""


class Coalescer:
    """Drives the flows of many threads over few calls.

    A request whose key has no call under way is sent at once. Requests that queue up meanwhile elect their first caller
    as the leader: it makes one call for all, wakes the callers, and passes the lead on. An interrupted leader does so,
    too. A call within another call of its thread, as by a signal handler, waits for nobody: it is made alone.
    """

    def __init__(self, connection: Connection, settings: ProducerSettings) -> None:
        self._connection = connection
        self._settings = settings
        # By process, as a forked child does not have its parent's threads.
        self._states: dict[int, _ProcessState] = {}
        self._latest = threading.local()
        """`flow`: refers to the flow of the latest call of a thread."""

    def run(self, flow: SharedFlow[T]) -> T:
        """Drives a flow to its result, with the producer's patience."""
        deadline = time.monotonic() + self._settings.patience_s
        outer = getattr(self._latest, "flow", _nothing)()
        if outer is not None and outer.gi_frame is not None:
            return self._drive(_ProcessState(), flow, deadline)
        self._latest.flow = ref(flow)
        pid = os.getpid()
        return self._drive(self._states.get(pid) or self._states.setdefault(pid, _ProcessState()), flow, deadline)

    def _drive(self, state: _ProcessState, flow: SharedFlow[T], deadline: float) -> T:
        try:
            request: Any = next(flow)
            while True:
                try:
                    result = self._execute(state, request, flow, deadline)
                except LisaError as error:
                    request = flow.throw(error)
                else:
                    request = flow.send(result)
        except StopIteration as stop:
            end: T = stop.value
            return end

    def _execute(self, state: _ProcessState, request: Request, flow: SharedFlow[Any], deadline: float) -> Any:
        own = (request, ref(flow))
        pending: PendingRequest | None = None
        failure: LisaError | None = None
        try:
            with state.lock:
                queue = state.queues.setdefault(request.key, own)
                if queue is not own:
                    pending = self._enqueue(state, queue, own, deadline)
            if pending:
                result = self._await(state, pending)
            else:
                [result] = self._connection.run(request.make([request.item]), deadline=deadline)
            if isinstance(result, LisaError):
                raise result
        except LisaError as error:
            failure = error
            raise
        finally:
            # Also when the thread is interrupted, as others may wait for it.
            if pending:
                with state.lock:
                    _abandon(state, pending)
            else:
                _end_unshared(state, own, failure)
        return result

    def _enqueue(
        self, state: _ProcessState, queue: RequestQueue | _Owner, own: _Owner, deadline: float
    ) -> PendingRequest | None:
        """Queues a request behind others; None if nobody is left there, so that it is sent at once."""
        request = own[0]
        if not isinstance(queue, RequestQueue):
            if _is_lost(queue):
                state.queues[request.key] = own
                return None
            queue = state.queues[request.key] = RequestQueue(queue[0], self._settings, self._connection.outage, queue)
        pending = PendingRequest(queue, request, deadline, threading.Lock(), owner=own)
        pending.waiter.acquire()
        queue.pending.append(pending)
        return pending

    def _await(self, state: _ProcessState, pending: PendingRequest) -> Any:
        """Waits for the result, or for the lead."""
        while not pending.waiter.acquire(timeout=_CHECK_S):
            self._check(state, pending)
            if pending.done:
                break
        while not pending.done:
            self._lead(state, pending.queue)
            if not pending.done:
                time.sleep(pending.queue.delay_s)
        return pending.outcome

    def _check(self, state: _ProcessState, pending: PendingRequest) -> None:
        """Takes over from a call that was interrupted before it had passed on its results or the lead."""
        queue = pending.queue
        with state.lock:
            if _is_lost(queue.owner):
                if queue.leader:
                    _abandon(state, queue.leader)
                else:
                    _pass_lead(state, queue)
            if not (pending.done or pending in queue.pending or pending in queue.under_way):
                pending.finish(OutcomeUnknown("the call was interrupted before it passed on the result"))

    def _lead(self, state: _ProcessState, queue: RequestQueue) -> None:
        """Makes one call for the pending requests."""
        with state.lock:
            _wake(queue.expire())
            batch = queue.take_batch()
        if batch:
            results = self._call(queue.first, queue.items(batch))
            with state.lock:
                _wake(queue.settle(results))

    def _call(self, request: Request, items: list[Any]) -> list[Any]:
        try:
            return self._connection.run(request.make(items))
        except LisaError as error:
            return [error] * len(items)

    def close(self) -> None:
        """Finishes all pending requests that are not under way."""
        if state := self._states.get(os.getpid()):
            with state.lock:
                for queue in state.queues.values():
                    if isinstance(queue, RequestQueue):
                        _wake(queue.close())


def _nothing() -> None:
    """Stands for a reference to a flow where there was none."""


def _is_lost(owner: _Owner) -> bool:
    """Whether a call was interrupted: it is gone."""
    return owner[1]() is None


def _end_unshared(state: _ProcessState, own: _Owner, failure: LisaError | None) -> None:
    """Passes the lead to a request that waited behind an unshared call."""
    request = own[0]
    with state.lock:
        queue = state.queues.get(request.key)
        if queue is own:
            del state.queues[request.key]
        elif isinstance(queue, RequestQueue) and queue.first is request and queue.leader is None:
            queue.failure = failure
            _pass_lead(state, queue)


def _abandon(state: _ProcessState, pending: PendingRequest) -> None:
    """Ends a caller's wait. If it leads, its call is aborted, and the queue gets another leader."""
    pending.abandoned = True
    queue = pending.queue
    if queue.leader is pending:
        if queue.under_way:
            _wake(queue.abort())
        _pass_lead(state, queue)


def _pass_lead(state: _ProcessState, queue: RequestQueue) -> None:
    """Makes the first pending request the leader; without one, removes the queue."""
    while queue.pending and queue.pending[0].abandoned:
        queue.pending.popleft()
    if queue.pending:
        queue.leader = queue.pending[0]
        queue.owner = queue.leader.owner
        queue.leader.waiter.release()
    elif state.queues.get(queue.first.key) is queue:
        del state.queues[queue.first.key]


def _wake(finished: list[PendingRequest]) -> None:
    for pending in finished:
        # The leader is awake already.
        with suppress(RuntimeError):
            pending.waiter.release()
