"""What shares a call: a step that several callers' flows may take together, and the lane in which they wait for it.

While one call of a lane is under way, what else belongs there gathers, and goes out together as the next one. So calls
grow with the load, and few connections serve any number of callers. `gathering` and `aio_gathering` drive lanes for
threads and for tasks; there is no I/O here.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar

from lisa_common.backoff import RECONNECT
from lisa_common.errors import LisaError, NoFreeConnection, OutcomeUnknown, Refused, ServerError, Unreachable
from lisa_common.protocol.call import Flow
from lisa_producer.settings import ProducerSettings

__all__ = ["GATHERED_BATCHES", "Lane", "Member", "SharedFlow", "Step", "own_error"]

T = TypeVar("T")

GATHERED_BATCHES = 4
"""How many full batches of a topic may be gathered, in bytes, before further callers wait with theirs."""

_LATE = 0.1
"""Of `timeout_s`: whose patience ended longer ago than this does not try any more, if the call before failed."""


class Step(NamedTuple):
    """What a flow asks for in a call that it may share with others."""

    lane: Hashable
    """Equal where calls may be shared: to the same place, with the same promises."""
    item: Any
    make: Callable[[list[Any]], Flow[list[Any]]]
    """The flow that asks for several items at once. Result: one for each, LisaErrors among them."""
    topic: str
    size: int = 0
    """Bytes."""
    repeatable: bool = True
    """Whether asking twice is as good as asking once."""


SharedFlow = Generator[Step, Any, T]
"""A flow whose every step may be shared."""


class Member:
    """A caller that waits in a lane, or for its call."""

    __slots__ = ("deadline", "done", "gone", "item", "lane", "outcome", "size", "unknown", "waiter")

    def __init__(self, lane: "Lane", step: Step, deadline: float, waiter: Any) -> None:
        self.lane = lane
        self.item = step.item
        self.size = step.size
        self.deadline = deadline
        self.waiter = waiter
        """How its shell tells it."""
        self.unknown: OutcomeUnknown | None = None
        """Why a try of its may have been carried out."""
        self.gone = False
        self.done = False
        self.outcome: Any = None

    def is_gone(self) -> bool:
        """Whether the caller does not wait any more."""
        return self.gone

    def conclude(self, outcome: Any) -> Any:
        """The result, or the error, with which its call ends."""
        if self.unknown is not None and isinstance(outcome, Unreachable | Refused):
            # That the last try did nothing says nothing of the tries before it.
            outcome, cause = own_error(self.unknown), outcome
            outcome.__cause__ = cause
        self.done, self.outcome = True, outcome
        return outcome


class Lane:
    """Callers whose calls may be shared. It is there while they wait; for a call that nobody shares, its step is."""

    under_way: Sequence[Member] = ()
    leader: Member | None = None
    failure: LisaError | None = None
    """What the latest call failed with."""
    failures = 0
    delay_s = 0.0
    """How long to wait before the next call."""
    closed = False

    def __init__(self, step: Step, settings: ProducerSettings) -> None:
        self.step = step
        self.settings = settings
        self.queue: deque[Member] = deque()

    def take(self) -> list[Member]:
        """The callers of the next call, within the limits of a batch; none where nobody waits."""
        batch: list[Member] = []
        self.under_way = batch
        left = self.settings.batch_bytes
        while self.queue and len(batch) < self.settings.batch_messages:
            member = self.queue[0]
            if not member.is_gone():
                left -= member.size
                if left < 0 and batch:
                    break
                batch.append(member)
            self.queue.popleft()
        return batch

    def settle(self, results: Sequence[Any]) -> list[Member]:
        """Takes the results of the call under way. Result: whose calls have ended; the others wait again, first."""
        batch, self.under_way = self.under_way, ()
        self.failure = next((result for result in results if isinstance(result, ServerError)), None)
        failed = [isinstance(result, LisaError) and self._is_to_repeat(result) for result in results]
        self.failures = self.failures + 1 if any(failed) else 0
        self.delay_s = RECONNECT.compute(self.failures) if self.failures else 0.0
        latest = time.monotonic() + self.delay_s
        ended: list[Member] = []
        again: list[Member] = []
        for member, result, may_repeat in zip(batch, results, failed, strict=True):
            if isinstance(result, OutcomeUnknown):
                member.unknown = member.unknown or result
            if may_repeat and latest <= member.deadline and not self.closed:
                again.append(member)
            else:
                member.conclude(own_error(result))
                ended.append(member)
        self.queue.extendleft(reversed(again))
        return ended

    def _is_to_repeat(self, error: LisaError) -> bool:
        if isinstance(error, OutcomeUnknown):
            return self.step.repeatable
        return isinstance(error, Unreachable | Refused)

    def break_off(self) -> list[Member]:
        """Ends a call that was broken off between request and reply. Result: whose calls have ended with it."""
        # An interrupt may have come between the two moves of a member.
        self.queue = deque(member for member in self.queue if member not in self.under_way)
        error = OutcomeUnknown("the call was broken off before the reply")
        return self.settle([error] * len(self.under_way))

    def drop_late(self) -> list[Member]:
        """Ends the calls of those who have waited for too long behind calls that failed. Result: these."""
        late: list[Member] = []
        if isinstance(self.failure, Unreachable | OutcomeUnknown) and not isinstance(self.failure, NoFreeConnection):
            latest = time.monotonic() - _LATE * self.settings.timeout_s
            while self.queue and self.queue[0].deadline < latest:
                member = self.queue.popleft()
                member.conclude(Unreachable(f"{self.failure}; this call waited behind the one that failed"))
                late.append(member)
        return late

    def close(self) -> list[Member]:
        """Ends the calls of all that wait, and lets nobody wait again. Result: whose calls have ended."""
        self.closed = True
        ended = list(self.queue)
        self.queue.clear()
        for member in ended:
            member.conclude(Unreachable("the producer was closed; nothing was done"))
        return ended


def own_error(result: T) -> T:
    """A result as it is, an error of the server as one more: what is raised twice would show the traces of both."""
    if not isinstance(result, ServerError):
        return result
    copy = type(result)(*result.args)
    copy.__cause__ = result
    return copy
