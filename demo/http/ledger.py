"""The ledger of the day over HTTP: what clients noted against what the gateways say of each message in the end."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Ledger", "audit"]

_ACKED, _DELETED, _GIVEN_UP = 4, 7, 6

Note = dict[str, Any]


@dataclass(slots=True)
class Ledger:
    """Totals, and what does not fit."""

    sent: int = 0
    ends: Counter[int] = field(default_factory=Counter)
    sent_anew: int = 0
    lags_ms: list[int] = field(default_factory=list)
    failed: int = 0
    unanswered: int = 0
    """Deliveries that came again, as their answer or their ack was lost with a gateway."""
    problems: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """The ledger as text."""
        acked, cancelled, given_up = (self.ends[status] for status in (_ACKED, _DELETED, _GIVEN_UP))
        yield f"  sent        {self.sent} = {acked} acked + {cancelled} cancelled + {given_up} given up"
        yield f"  sent anew   {self.sent_anew} late flights, under their ids"
        lags = sorted(self.lags_ms) or [0]
        p50, p99 = (lags[min(len(lags) - 1, len(lags) * share // 100)] for share in (50, 99))
        yield f"  deliveries  {len(self.lags_ms)}, of them early: {sum(lag < 0 for lag in lags)}"
        yield f"  lag         p50 {p50} ms   p99 {p99} ms   max {lags[-1]} ms, from due to a client's hands"
        yield f"  again       {self.failed} after ack=false, {self.unanswered} after an answer that was lost"
        yield from (f"  PROBLEM     {problem}" for problem in self.problems)
        yield "  DOES NOT BALANCE" if self.problems else "  balanced"


def audit(notes: Iterable[Note], status_of: Callable[[str, str], int]) -> Ledger:
    """Makes the ledger up. `status_of` asks a gateway how a message of a topic has ended."""
    ledger = Ledger()
    topics: dict[str, str] = {}
    sends: Counter[str] = Counter()
    deleted: dict[str, bool] = {}
    acks: dict[str, dict[int, bool]] = defaultdict(dict)
    begun: dict[str, list[Note]] = defaultdict(list)
    for note in notes:
        if id := note.get("sent"):
            topics[id] = note["topic"]
            sends[id] += 1
        elif id := note.get("deleted"):
            deleted[id] = note["done"]
        elif id := note.get("begun"):
            begun[id].append(note)
        elif id := note.get("acked"):
            acks[id][note["attempt"]] = note["ack"]
    ledger.sent = len(topics)
    ledger.sent_anew = sum(count - 1 for count in sends.values())
    for id, topic in topics.items():
        status = status_of(topic, id)
        ledger.ends[status] += 1
        cancelled = deleted.get(id, False) and sends[id] == 1
        # What a gate had in its hands when it was cancelled may still be boarded.
        expected = {_ACKED, _DELETED} if cancelled and begun[id] else {_DELETED} if cancelled else {_ACKED}
        if status not in expected:
            ledger.problems.append(f"{id} has ended with status {status}")
        if status == _ACKED and not any(acks[id].values()):
            ledger.problems.append(f"{id} is said to be acked, and nobody acked it")
    for id, deliveries in begun.items():
        _judge(ledger, id, deliveries, acks[id])
    return ledger


def _judge(ledger: Ledger, id: str, deliveries: list[Note], acks: dict[int, bool]) -> None:
    seen: set[tuple[int, int]] = set()
    for delivery in deliveries:
        ledger.lags_ms += [delivery["at"] - delivery["due"]] if delivery["attempt"] == 1 else []
        if delivery["at"] < delivery["due"]:
            ledger.problems.append(f"{id} came {delivery['due'] - delivery['at']} ms early")
        place = delivery["due"], delivery["attempt"]
        if place in seen:
            ledger.problems.append(f"{id}: attempt {delivery['attempt']} came twice")
        seen.add(place)
        before = delivery["attempt"] - 1
        if before and acks.get(before) is False:
            ledger.failed += 1
        elif before:
            ledger.unanswered += 1
