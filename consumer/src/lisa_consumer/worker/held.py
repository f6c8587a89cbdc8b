"""The life of a delivery in a worker: its states, and every move between them.

| move | from → to | made by |
| --- | --- | --- |
| `enqueue` | fetched → queued: it waits for a slot | queue |
| `start` | queued → starting: it has a slot | queue |
| `run` | starting → running: its lease surely lasts, its handler is called | executor |
| `finish` | running → settling: its handler has ended | executor |
| `give_back` | fetched, queued, starting → settling: its handler is not called here | executor |
| `end` | settling → ended: the server has taken its outcome, its lease is lost, or a stop does not wait | settler |
"""

from collections.abc import Sequence
from enum import Enum

from lisa_common.model.delivery import Delivery
from lisa_common.protocol.consuming import Nack, Postponed

__all__ = ["GIVE_BACK", "HeldDelivery", "State", "postponed_ms"]

GIVE_BACK = Postponed(0, here=True)
"""The outcome of a delivery that the worker did not begin, or has cut short: it spends no attempt."""


class State(Enum):
    """Where a delivery is."""

    FETCHED = "fetched"
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    SETTLING = "settling"
    ENDED = "ended"


_FETCHED, _QUEUED, _STARTING, _RUNNING, _SETTLING, _ENDED = State
_UNBEGUN = (_FETCHED, _QUEUED, _STARTING)


class HeldDelivery:
    """A delivery and its state in the worker. Two of them are never equal. Moments are of the monotonic clock."""

    # Defaults of the class: a worker makes one of these for each message.
    state = _FETCHED
    batch: "list[HeldDelivery] | None" = None
    """The deliveries that a batch handler is called with, if this is the first of them."""
    has_company = False
    """Whether others run beside it, although it should run alone."""
    queued_at = 0.0
    """When it was queued."""
    began_at = 0.0
    """When its handler was called."""
    give_up_at: float | None = None
    """When its lease is renewed no longer, because its handler takes too long; None for never."""
    overran = False
    """Whether it was reported that its handler runs after that."""
    is_aborted = False
    """Whether an operator has aborted it: the server has ended it."""
    is_cut = False
    """Whether the worker cancels its call, because a delivery of that was aborted."""
    outcome: Nack | Postponed | None = None
    """What to do with it once its handler has ended: nack it or give it back; None: ack it."""
    error: BaseException | None = None
    """What to log once the server has decided about a retry."""
    took_s: float | None = None
    """How long its handler took; None if it was not called, or has not ended."""
    result = "ok"
    """The same as `outcome`, as metrics name it."""

    # Positional: to make an object with a keyword takes a third longer.
    def __init__(self, delivery: Delivery, renewed_at: float, is_marked: bool = True) -> None:  # noqa: FBT001, FBT002
        self.delivery = delivery
        """As its handler takes it."""
        self.place = delivery.place
        """Identifies the delivery: a server that has lost its last writes may deliver an entry again."""
        self.read_at = self.renewed_at = renewed_at
        """A moment before its lease began or was last renewed."""
        self.is_marked = is_marked
        """Whether the server counts it as begun."""

    @property
    def call(self) -> "Sequence[HeldDelivery]":
        """The deliveries of its handler's call."""
        return self.batch or (self,)

    @property
    def is_unbegun(self) -> bool:
        """Whether its handler may still be called."""
        return self.state in _UNBEGUN

    @property
    def is_running(self) -> bool:
        """Whether its handler has begun and not ended."""
        return self.state is _RUNNING

    @property
    def may_be_aborted(self) -> bool:
        """Whether an abort still changes anything: its handler has not ended."""
        return self.state in (*_UNBEGUN, _RUNNING) and not self.is_aborted

    def enqueue(self, now: float) -> None:
        """It waits for a slot of its topic, for the others of its batch, or to run alone."""
        self._move(_QUEUED, _FETCHED)
        self.queued_at = now

    def start(self) -> None:
        """It has a slot, and runs once the server counts it as begun."""
        self._move(_STARTING, _QUEUED)

    def run(self, now: float) -> None:
        """Its handler is called."""
        self._move(_RUNNING, _STARTING)
        self.began_at = now

    def finish(self, now: float) -> None:
        """Its handler has ended, with the outcome that it has."""
        self._move(_SETTLING, _RUNNING)
        self.took_s = now - self.began_at

    def give_back(self, outcome: Postponed = GIVE_BACK) -> None:
        """Its handler is not called here."""
        self._move(_SETTLING, *_UNBEGUN)
        self.outcome = outcome

    def end(self) -> None:
        """The server has taken its outcome, its lease is lost, or a stop does not wait: then it comes again."""
        self._move(_ENDED, _SETTLING)
        # They lead back to the delivery: its body would stay until the garbage collector comes.
        self.error = self.batch = None

    def _move(self, to: State, *since: State) -> None:
        if self.state not in since:
            raise RuntimeError(f"{self.delivery} cannot go from {self.state.value} to {to.value}")
        self.state = to


def postponed_ms(held: Sequence[HeldDelivery]) -> dict[str, int]:
    """The topics whose handlers ask for a pause, each with the longest time to shut its doors for, in ms."""
    longest: dict[str, int] = {}
    for each in held:
        if type(each.outcome) is Postponed:
            topic = each.delivery.topic
            shut_ms = 0 if each.outcome.here else each.outcome.delay_ms
            longest[topic] = max(shut_ms, longest.get(topic, 0))
    return longest
