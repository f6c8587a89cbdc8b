"""The ledger: compares the promises with the journals. Pure; `audit` judges, `lines` renders."""

import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from demo.events import Begun, Cancelled, Ended, Event, Killed, Rescheduled, Sent

__all__ = ["End", "Ledger", "audit", "lines"]

_FAILED, _KILLED, _EXPIRED = (
    "its handler failed: a retry",
    "its worker was killed: reclaimed after the visibility timeout",
    "its lease ran out: reclaimed after the visibility timeout",
)


_INDENT = " " * 10


@dataclass(frozen=True, slots=True)
class End:
    """Where a message has ended, as Lisa reports it: `state` is one of `State`, or "unknown" when it is gone."""

    state: str
    reason: str = ""
    """Why it is garbage."""


@dataclass(slots=True)
class Ledger:
    """The ends and the deliveries of all messages."""

    sent: int = 0
    acked: int = 0
    cancelled: int = 0
    garbage: int = 0
    rescheduled: int = 0
    deliveries: int = 0
    lags_ms: list[int] = field(default_factory=list)
    """How long after its due time each delivery began."""
    duplicates: dict[str, list[Begun]] = field(default_factory=lambda: defaultdict(list))
    """Explanation -> deliveries."""
    failures: Counter[str] = field(default_factory=Counter)
    """Error of a handler -> how often."""
    dead: Counter[str] = field(default_factory=Counter)
    """Reason -> messages in garbage."""
    rescue_ms: list[int] = field(default_factory=list)
    """How long after a worker's death each of its deliveries began anew."""
    problems: list[str] = field(default_factory=list)
    """A line for each number that does not balance."""

    @property
    def balanced(self) -> bool:
        """Whether every promise was kept."""
        return not self.problems


@dataclass(slots=True)
class _Story:
    """All events of one message."""

    sent: Sent
    moved: list[Rescheduled] = field(default_factory=list)
    cancelled: Cancelled | None = None
    begun: list[Begun] = field(default_factory=list)
    ended: dict[int, Ended] = field(default_factory=dict)
    killed: dict[int, Killed] = field(default_factory=dict)


def audit(events: Iterable[Event], ends: Mapping[str, End], *, visibility_ms: int) -> Ledger:
    """Compares every sent message with its end, and looks for the reason of every delivery."""
    ledger = Ledger()
    stories = _stories(list(events), ledger)
    ledger.sent = len(stories)
    for id, story in stories.items():
        _judge_end(ledger, id, story, ends.get(id, End("unknown")))
        _judge_deliveries(ledger, id, story, visibility_ms)
    found = ledger.acked + ledger.cancelled + ledger.garbage
    if found != ledger.sent:
        ledger.problems.append(f"{ledger.sent} were sent, and {found} have ended")
    return ledger


def _stories(events: list[Event], ledger: Ledger) -> dict[str, _Story]:
    stories = {event.id: _Story(event) for event in events if isinstance(event, Sent)}
    for event in events:
        if isinstance(event, Killed):
            for id, attempt in event.held:
                if id in stories:
                    stories[id].killed[attempt] = event
                else:
                    ledger.problems.append(f"{id}: held by {event.worker}, but never sent")
        elif not isinstance(event, Rescheduled | Cancelled | Begun | Ended):
            continue
        elif event.id not in stories:
            ledger.problems.append(f"{event.id}: {type(event).__name__.lower()}, but never sent")
        else:
            _tell(stories[event.id], event, ledger)
    return stories


def _tell(story: _Story, event: Rescheduled | Cancelled | Begun | Ended, ledger: Ledger) -> None:
    match event:
        case Rescheduled(outcome="rescheduled"):
            story.moved.append(event)
            ledger.rescheduled += 1
        case Cancelled():
            story.cancelled = event
        case Begun():
            story.begun.append(event)
        case Ended():
            story.ended[event.attempt] = event
            if event.error:
                ledger.failures[event.error] += 1


def _judge_end(ledger: Ledger, id: str, story: _Story, end: End) -> None:
    told = story.cancelled.outcome if story.cancelled else ""
    handled = any(not ended.error for ended in story.ended.values())
    if end.state == "finished":
        ledger.acked += 1
        if not handled:
            ledger.problems.append(f"{id}: acked, but no handler has finished it")
        if told == "cancelled":
            ledger.problems.append(f"{id}: acked, although it was cancelled")
    elif end.state == "garbage":
        ledger.garbage += 1
        ledger.dead[end.reason] += 1
    elif told in ("cancelled", "delivered") and end.state in ("unknown", "cancelled"):
        ledger.cancelled += 1
    elif end.state == "unknown":
        ledger.problems.append(f"{id}: lost, it was neither acked nor cancelled, and is not in garbage")
    else:
        ledger.problems.append(f"{id}: still {end.state}")


def _judge_deliveries(ledger: Ledger, id: str, story: _Story, visibility_ms: int) -> None:
    begun = sorted(story.begun, key=lambda delivery: (delivery.attempt, delivery.at_ms))
    ledger.deliveries += len(begun)
    for delivery in begun:
        ledger.lags_ms.append(delivery.at_ms - delivery.due_ms)
        _judge_time(ledger, id, story, delivery)
    for before, delivery in zip([None, *begun], begun, strict=False):
        if delivery.attempt > 1 or before is not None:
            _explain(ledger, story, before, delivery, visibility_ms)
    most = story.sent.max_retries + 1
    if begun and (most in story.killed or begun[-1] in ledger.duplicates.get(_EXPIRED, ())):
        # What is abandoned at its last attempt is delivered once more, alone.
        most += 1
    if begun and begun[-1].attempt > most:
        ledger.problems.append(f"{id}: delivered {begun[-1].attempt} times, {most} are allowed")


def _judge_time(ledger: Ledger, id: str, story: _Story, delivery: Begun) -> None:
    if delivery.at_ms < delivery.due_ms:
        ledger.problems.append(f"{id}: attempt {delivery.attempt} was {delivery.due_ms - delivery.at_ms} ms early")
    promised = _promised_ms(story, delivery)
    if delivery.attempt == 1 and delivery.due_ms not in promised:
        off = delivery.due_ms - promised[-1]
        ledger.problems.append(f"{id}: delivered for another due time than promised, off by {off} ms")
    told = story.cancelled
    if told and told.outcome in ("cancelled", "delivered") and delivery.at_ms > told.at_ms + _GRACE_MS[told.outcome]:
        ledger.problems.append(f"{id}: cancelled, but delivered {delivery.at_ms - told.at_ms} ms later")


_GRACE_MS = {"cancelled": 0, "delivered": 1_000}
"""A cancel that reported a delivery on its way to a handler cannot keep that delivery from beginning."""


def _promised_ms(story: _Story, delivery: Begun) -> list[int]:
    """Due times that a first attempt may have. A change that was made after it had begun has moved its retry."""
    made_before = sum(move.at_ms < delivery.at_ms for move in story.moved)
    return [story.sent.due_ms, *(move.due_ms for move in story.moved)][made_before:]


def _explain(ledger: Ledger, story: _Story, before: Begun | None, delivery: Begun, visibility_ms: int) -> None:
    """Explains a delivery that is not the first of its message by how the attempt before it ended."""
    name = f"{delivery.id}({delivery.attempt})"
    previous = delivery.attempt - 1
    ended, killed = story.ended.get(previous), story.killed.get(previous)
    if before is not None and before.attempt == delivery.attempt:
        ledger.problems.append(f"{name}: attempt {delivery.attempt} was delivered twice")
    elif ended and ended.error:
        ledger.duplicates[_FAILED].append(delivery)
    elif killed:
        ledger.duplicates[_KILLED].append(delivery)
        ledger.rescue_ms.append(delivery.at_ms - killed.at_ms)
    elif before and before.attempt == previous and _outlived(before, ended, delivery, visibility_ms):
        ledger.duplicates[_EXPIRED].append(delivery)
    elif ended:
        ledger.problems.append(f"{name}: delivered after its ack, {delivery.at_ms - ended.at_ms} ms later")
    else:
        ledger.problems.append(f"{name}: a duplicate, and nothing explains it")


def _outlived(before: Begun, ended: Ended | None, delivery: Begun, visibility_ms: int) -> bool:
    """Whether the lease of a delivery may have run out before its handler ended, as in a process that stalled."""
    until_ms = before.due_ms + visibility_ms
    return delivery.at_ms >= until_ms and (ended is None or ended.at_ms >= until_ms)


def lines(ledger: Ledger) -> Iterator[str]:
    """The ledger as text."""
    ended = f"= {ledger.acked} acked + {ledger.cancelled} cancelled + {ledger.garbage} garbage"
    yield f"  sent        {ledger.sent} {ended}; {ledger.rescheduled} were rescheduled"
    early = sum(lag < 0 for lag in ledger.lags_ms)
    yield f"  deliveries  {ledger.deliveries}, of them early: {early}"
    lags = sorted(ledger.lags_ms) or [0]
    p50, p99 = (lags[min(len(lags) - 1, len(lags) * share // 100)] for share in (50, 99))
    yield f"  lag         p50 {p50} ms   p99 {p99} ms   max {lags[-1]} ms"
    yield from _counted("failures", ledger.failures)
    yield from _counted("garbage", ledger.dead)
    yield f"  duplicates  {sum(map(len, ledger.duplicates.values()))}, each explained by the attempt before it:"
    for explanation, deliveries in sorted(ledger.duplicates.items()):
        yield f"    {len(deliveries):>4}  {explanation}"
        yield from _named(deliveries)
    if ledger.rescue_ms:
        low, high = min(ledger.rescue_ms), max(ledger.rescue_ms)
        yield f"  rescue      what the killed worker held began anew after {low} to {high} ms"
    yield from (f"  PROBLEM     {problem}" for problem in ledger.problems)
    yield "  balanced" if ledger.balanced else f"  DOES NOT BALANCE: {len(ledger.problems)} problems"


def _named(deliveries: Iterable[Begun]) -> list[str]:
    """Ids with their attempts."""
    attempts: dict[str, list[str]] = defaultdict(list)
    for delivery in deliveries:
        attempts[delivery.id].append(str(delivery.attempt))
    names = " ".join(f"{id}({','.join(numbers)})" for id, numbers in sorted(attempts.items()))
    return textwrap.wrap(names, 78, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False)


def _counted(title: str, counts: Counter[str]) -> Iterator[str]:
    yield f"  {title:<11} {counts.total()}"
    yield from (f"    {count:>4}  {reason}" for reason, count in counts.most_common())
