"""Calls that threads share: what is asked for during a call goes out with the next one. `aio_gathering` is the twin."""

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
from lisa_producer.lanes import GATHERED_BATCHES, Lane, Member, SharedFlow, Step
from lisa_producer.settings import ProducerSettings

__all__ = ["Gatherer"]

T = TypeVar("T")


class _Callers:
    """The callers of one process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lanes: dict[Hashable, Lane | Step] = {}
        self.gathered: dict[str, int] = defaultdict(int)
        """Bytes, by topic."""
        self.outside: dict[str, deque[threading.Lock]] = {}
        """Who waits until there is room, by topic."""


class Gatherer:
    """Drives the flows of many threads over few calls.

    Who finds its lane empty goes straight through. Of those that gather meanwhile the first then leads: it makes one
    call for all, tells them, and lets the next one lead. A leader that is interrupted leaves nobody waiting.
    """

    def __init__(self, connection: Connection, settings: ProducerSettings) -> None:
        self._connection = connection
        self._settings = settings
        self._most_bytes = GATHERED_BATCHES * settings.batch_bytes
        # By process, as a forked child has none of the threads that its parent's callers wait for.
        self._callers_of: dict[int, _Callers] = {}

    def run(self, topic: str, flow: SharedFlow[T]) -> T:
        """Drives a flow to its result, with the producer's patience. Waits while too much of its topic is gathered."""
        deadline = time.monotonic() + self._settings.patience_s
        pid = os.getpid()
        callers = self._callers_of.get(pid) or self._callers_of.setdefault(pid, _Callers())
        if callers.gathered and self._is_full(callers, check_name("topic", topic)):
            return self._run_later(callers, topic, flow, deadline)
        return self._drive(callers, flow, deadline)

    def _drive(self, callers: _Callers, flow: SharedFlow[T], deadline: float) -> T:
        try:
            step: Any = next(flow)
            while True:
                try:
                    result = self._ask(callers, step, deadline)
                except LisaError as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(result)
        except StopIteration as stop:
            end: T = stop.value
            return end

    def _ask(self, callers: _Callers, step: Step, deadline: float) -> Any:
        member: Member | None = None
        failure: LisaError | None = None
        try:
            with callers.lock:
                there = callers.lanes.setdefault(step.lane, step)
                if there is not step:
                    member = self._join(callers, there, step, deadline)
            if member:
                result = self._follow(callers, member)
            else:
                [result] = self._connection.run(step.make([step.item]), deadline=deadline)
            if isinstance(result, LisaError):
                raise result
        except LisaError as error:
            failure = error
            raise
        finally:
            # Also of a thread that was interrupted, as others may wait for it.
            if member:
                self._withdraw(callers, member)
            else:
                _end_alone(callers, step, failure)
        return result

    def _join(self, callers: _Callers, lane: Lane | Step, step: Step, deadline: float) -> Member:
        if isinstance(lane, Step):
            lane = callers.lanes[step.lane] = Lane(lane, self._settings)
        member = Member(lane, step, deadline, threading.Lock())
        member.waiter.acquire()
        callers.gathered[step.topic] += step.size
        lane.queue.append(member)
        return member

    def _follow(self, callers: _Callers, member: Member) -> Any:
        """Waits to be told, or to lead."""
        member.waiter.acquire()
        while not member.done:
            self._lead(callers, member.lane)
            if not member.done:
                time.sleep(member.lane.delay_s)
        return member.outcome

    def _lead(self, callers: _Callers, lane: Lane) -> None:
        """Makes one call for all that wait."""
        with callers.lock:
            _tell(lane.drop_late())
            batch = lane.take()
        if batch:
            results = self._call(lane.step, [member.item for member in batch])
            with callers.lock:
                _tell(lane.settle(results))

    def _call(self, step: Step, items: list[Any]) -> list[Any]:
        try:
            return self._connection.run(step.make(items))
        except LisaError as error:
            return [error] * len(items)

    def _withdraw(self, callers: _Callers, member: Member) -> None:
        """Ends the part of a caller. Where it leads, its call is broken off, and the lane gets another leader."""
        lane = member.lane
        with callers.lock:
            member.gone = True
            topic = lane.step.topic
            callers.gathered[topic] -= member.size
            if callers.gathered[topic] <= 0:
                del callers.gathered[topic]
            if callers.outside:
                self._admit(callers, topic)
            if lane.leader is member:
                if lane.under_way:
                    _tell(lane.break_off())
                _hand_over(callers, lane)

    def _is_full(self, callers: _Callers, topic: str) -> bool:
        return callers.gathered.get(topic, 0) >= self._most_bytes

    def _run_later(self, callers: _Callers, topic: str, flow: SharedFlow[T], deadline: float) -> T:
        try:
            was_first = False
            while waiter := self._wait_outside(callers, topic, was_first=was_first):
                waiter.acquire()
                was_first = True
            return self._drive(callers, flow, deadline)
        finally:
            # Whatever became of it, the next one is not to wait for what was never gathered.
            with callers.lock:
                self._admit(callers, topic)

    def _wait_outside(self, callers: _Callers, topic: str, *, was_first: bool) -> "threading.Lock | None":
        with callers.lock:
            if not self._is_full(callers, topic):
                return None
            waiter = threading.Lock()
            waiter.acquire()
            outside = callers.outside.setdefault(topic, deque())
            (outside.appendleft if was_first else outside.append)(waiter)
            return waiter

    def _admit(self, callers: _Callers, topic: str) -> None:
        """Lets the first come in that waits outside, if there is room."""
        outside = callers.outside.get(topic)
        if outside and not self._is_full(callers, topic):
            outside.popleft().release()
            if not outside:
                del callers.outside[topic]

    def close(self) -> None:
        """Ends the calls of all that are not under way yet."""
        if callers := self._callers_of.get(os.getpid()):
            with callers.lock:
                for lane in callers.lanes.values():
                    if isinstance(lane, Lane):
                        _tell(lane.close())


def _end_alone(callers: _Callers, step: Step, failure: LisaError | None) -> None:
    """Lets those lead who waited behind a call that nobody shared."""
    with callers.lock:
        lane = callers.lanes.get(step.lane)
        if lane is step:
            del callers.lanes[step.lane]
        elif isinstance(lane, Lane) and lane.step is step and lane.leader is None:
            lane.failure = failure
            _hand_over(callers, lane)


def _hand_over(callers: _Callers, lane: Lane) -> None:
    """Lets the first that waits lead, if anybody does."""
    while lane.queue and lane.queue[0].gone:
        lane.queue.popleft()
    if lane.queue:
        lane.leader = lane.queue[0]
        lane.leader.waiter.release()
    else:
        del callers.lanes[lane.step.lane]


def _tell(ended: list[Member]) -> None:
    for member in ended:
        # One that leads is awake already.
        with suppress(RuntimeError):
            member.waiter.release()
