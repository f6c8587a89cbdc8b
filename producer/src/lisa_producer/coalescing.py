"""Calls that threads share: requests made during a call go out with the next one. `async_coalescing` is the twin."""

import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Hashable
from contextlib import suppress
from typing import Any, TypeVar

from lisa_common.client.connection import Connection
from lisa_common.errors import LisaError
from lisa_common.validation import check_name
from lisa_producer.request_queue import MAX_QUEUED_BATCHES, PendingRequest, RequestQueue
from lisa_producer.settings import ProducerSettings
from lisa_producer.shared_flow import Request, SharedFlow

__all__ = ["Coalescer"]

T = TypeVar("T")


class _ProcessState:
    """The queues and callers of one process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.queues: dict[Hashable, RequestQueue | Request] = {}
        """By key; a `Request` where one call is under way and nothing waits."""
        self.queued_bytes: dict[str, int] = defaultdict(int)
        """By topic."""
        self.blocked: dict[str, deque[threading.Lock]] = {}
        """Callers that wait until there is room, by topic."""


class Coalescer:
    """Drives the flows of many threads over few calls.

    A request whose key has no call under way is sent at once. Requests that queue up meanwhile elect their first caller
    as the leader: it makes one call for all, wakes the callers, and passes the lead on. An interrupted leader does so,
    too.
    """

    def __init__(self, connection: Connection, settings: ProducerSettings) -> None:
        self._connection = connection
        self._settings = settings
        self._max_bytes = MAX_QUEUED_BATCHES * settings.batch_bytes
        # By process, as a forked child does not have its parent's threads.
        self._states: dict[int, _ProcessState] = {}

    def run(self, topic: str, flow: SharedFlow[T]) -> T:
        """Drives a flow to its result, with the producer's patience. Blocks while the topic's queue is full."""
        deadline = time.monotonic() + self._settings.patience_s
        pid = os.getpid()
        state = self._states.get(pid) or self._states.setdefault(pid, _ProcessState())
        if state.queued_bytes and self._is_full(state, check_name("topic", topic)):
            return self._run_blocked(state, topic, flow, deadline)
        return self._drive(state, flow, deadline)

    def _drive(self, state: _ProcessState, flow: SharedFlow[T], deadline: float) -> T:
        try:
            request: Any = next(flow)
            while True:
                try:
                    result = self._execute(state, request, deadline)
                except LisaError as error:
                    request = flow.throw(error)
                else:
                    request = flow.send(result)
        except StopIteration as stop:
            end: T = stop.value
            return end

    def _execute(self, state: _ProcessState, request: Request, deadline: float) -> Any:
        pending: PendingRequest | None = None
        failure: LisaError | None = None
        try:
            with state.lock:
                queue = state.queues.setdefault(request.key, request)
                if queue is not request:
                    pending = self._enqueue(state, queue, request, deadline)
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
                self._dequeue(state, pending)
            else:
                _end_unshared(state, request, failure)
        return result

    def _enqueue(
        self, state: _ProcessState, queue: RequestQueue | Request, request: Request, deadline: float
    ) -> PendingRequest:
        if isinstance(queue, Request):
            queue = state.queues[request.key] = RequestQueue(queue, self._settings)
        pending = PendingRequest(queue, request, deadline, threading.Lock())
        pending.waiter.acquire()
        state.queued_bytes[request.topic] += request.size
        queue.pending.append(pending)
        return pending

    def _await(self, state: _ProcessState, pending: PendingRequest) -> Any:
        """Waits for the result, or for the lead."""
        pending.waiter.acquire()
        while not pending.done:
            self._lead(state, pending.queue)
            if not pending.done:
                time.sleep(pending.queue.delay_s)
        return pending.outcome

    def _lead(self, state: _ProcessState, queue: RequestQueue) -> None:
        """Makes one call for the pending requests."""
        with state.lock:
            _wake(queue.expire())
            batch = queue.take_batch()
        if batch:
            results = self._call(queue.first, [pending.item for pending in batch])
            with state.lock:
                _wake(queue.settle(results))

    def _call(self, request: Request, items: list[Any]) -> list[Any]:
        try:
            return self._connection.run(request.make(items))
        except LisaError as error:
            return [error] * len(items)

    def _dequeue(self, state: _ProcessState, pending: PendingRequest) -> None:
        """Ends a caller's wait. If it leads, its call is aborted, and the queue gets another leader."""
        queue = pending.queue
        with state.lock:
            pending.abandoned = True
            topic = queue.first.topic
            state.queued_bytes[topic] -= pending.size
            if state.queued_bytes[topic] <= 0:
                del state.queued_bytes[topic]
            if state.blocked:
                self._admit(state, topic)
            if queue.leader is pending:
                if queue.under_way:
                    _wake(queue.abort())
                _pass_lead(state, queue)

    def _is_full(self, state: _ProcessState, topic: str) -> bool:
        return state.queued_bytes.get(topic, 0) >= self._max_bytes

    def _run_blocked(self, state: _ProcessState, topic: str, flow: SharedFlow[T], deadline: float) -> T:
        try:
            was_first = False
            while waiter := self._block(state, topic, was_first=was_first):
                waiter.acquire()
                was_first = True
            return self._drive(state, flow, deadline)
        finally:
            # Even if this caller queued nothing, the next one must not wait for it.
            with state.lock:
                self._admit(state, topic)

    def _block(self, state: _ProcessState, topic: str, *, was_first: bool) -> "threading.Lock | None":
        with state.lock:
            if not self._is_full(state, topic):
                return None
            waiter = threading.Lock()
            waiter.acquire()
            blocked = state.blocked.setdefault(topic, deque())
            (blocked.appendleft if was_first else blocked.append)(waiter)
            return waiter

    def _admit(self, state: _ProcessState, topic: str) -> None:
        """Wakes the first blocked caller, if there is room."""
        blocked = state.blocked.get(topic)
        if blocked and not self._is_full(state, topic):
            blocked.popleft().release()
            if not blocked:
                del state.blocked[topic]

    def close(self) -> None:
        """Finishes all pending requests that are not under way."""
        if state := self._states.get(os.getpid()):
            with state.lock:
                for queue in state.queues.values():
                    if isinstance(queue, RequestQueue):
                        _wake(queue.close())


def _end_unshared(state: _ProcessState, request: Request, failure: LisaError | None) -> None:
    """Passes the lead to a request that waited behind an unshared call."""
    with state.lock:
        queue = state.queues.get(request.key)
        if queue is request:
            del state.queues[request.key]
        elif isinstance(queue, RequestQueue) and queue.first is request and queue.leader is None:
            queue.failure = failure
            _pass_lead(state, queue)


def _pass_lead(state: _ProcessState, queue: RequestQueue) -> None:
    """Makes the first pending request the leader; without one, removes the queue."""
    while queue.pending and queue.pending[0].abandoned:
        queue.pending.popleft()
    if queue.pending:
        queue.leader = queue.pending[0]
        queue.leader.waiter.release()
    else:
        del state.queues[queue.first.key]


def _wake(finished: list[PendingRequest]) -> None:
    for pending in finished:
        # The leader is awake already.
        with suppress(RuntimeError):
            pending.waiter.release()
