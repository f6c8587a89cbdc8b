"""Messages that follow or replace others, and their judge: the chaos suite's checker knows one message for each id.

In the topic of chains a message follows each delivery under the same id, until the last. In the topic of drafts each
send replaces the draft before, unless a worker has it already.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from chaos.history import Repeated, now, undone_at
from chaos.recording import ReportingCore
from chaos.verdict import Verdict
from lisa_common.model.delivery import Delivery, entry_place
from lisa_common.model.policy import Policy

__all__ = ["CHAINS", "DRAFTS", "LINKED", "LINKERS", "LOST_S", "Ask", "Links", "NotingCore", "may_be_lost"]

CHAINS, DRAFTS = "chains", "drafts"

LINKERS: Final = ("linkers", "watchers")
"""The group that handles both topics, and one that only acks the links of chains."""

LINKED: Final = {
    CHAINS: Policy(visibility_ms=2_000, max_retries=500, backoff="fixed", backoff_base_ms=200, shards=2),
    DRAFTS: Policy(visibility_ms=2_000, max_retries=500, backoff="fixed", backoff_base_ms=400),
}

LOST_S: Final = 4.0
"""How long before the death of a server a call may have begun that it has lost: the loss, and the call itself."""

_STORED: Final = ("sent", "replaced")


@dataclass(slots=True, eq=False)
class Ask:
    """A send, or a cancel: then without a number. `outcome` is that of the reply, "failed", or "unknown"."""

    topic: str
    id: str
    number: int | None
    since: float
    until: float = math.inf
    outcome: str = "unknown"

    def end(self, outcome: str) -> None:
        """It was answered, or failed for certain."""
        self.until, self.outcome = now(), outcome


@dataclass(frozen=True, slots=True)
class Seen:
    """A delivery as a worker got it. Its record was not fetched before `since`."""

    topic: str
    id: str
    number: int
    group: str
    entry: str
    since: float


def may_be_lost(outages: Sequence[float], since: float, until: float) -> bool:
    """Returns whether a write between two moments may be lost, because the server died then or soon after."""
    return any(since < outage < until + LOST_S for outage in outages)


class Links:
    """Records requests and deliveries of chains and drafts, and judges them."""

    def __init__(self) -> None:
        self._asks = defaultdict[tuple[str, str], list[Ask]](list)
        self._seen = defaultdict[tuple[str, str], list[Seen]](list)
        self._outages: Sequence[float] = ()
        self._repeats: Sequence[Repeated] = ()
        self.tries: Mapping[tuple[str, str], Sequence[float]] = {}
        """When first tries of sends were carried out, where the server surely stored them."""

    def ask(self, topic: str, id: str, number: int | None) -> Ask:
        """Notes a request; its end is `Ask.end`."""
        ask = Ask(topic, id, number, now())
        self._asks[topic, id].append(ask)
        return ask

    def see(self, delivery: Delivery, since: float) -> None:
        """Notes a delivery."""
        number = delivery.json()["number"]
        seen = Seen(delivery.topic, delivery.id, number, delivery.group, delivery.entry.entry, since)
        self._seen[delivery.topic, delivery.id].append(seen)

    def judge(
        self,
        verdict: Verdict,
        groups: Sequence[str],
        lasts: Mapping[str, int],
        outages: Sequence[float],
        repeats: Sequence[Repeated],
    ) -> None:
        """Judges all chains and drafts of a run that is drained, whose server died at `outages`.

        `lasts` has the last number of each chain.
        """
        self._outages, self._repeats = outages, repeats
        for (topic, id), asks in self._asks.items():
            seen = self._seen[topic, id]
            self._judge_cancels(verdict, asks, seen)
            if topic == DRAFTS:
                self._judge_drafts(verdict, asks, seen)
                continue
            for group in groups:
                own = [each for each in seen if each.group == group]
                self._judge_chain(verdict, asks, own, lasts[id], f"{topic}/{id} in group {group}")

    def _judge_cancels(self, verdict: Verdict, asks: Sequence[Ask], seen: Sequence[Seen]) -> None:
        """Promises 8 and 9: nothing is delivered after a cancel, also nothing that follows; it finds what comes."""
        sent = min((ask.until for ask in asks if ask.outcome in _STORED), default=math.inf)
        for ask in asks:
            is_cancel = ask.number is None and ask.outcome != "failed"
            if not is_cancel or may_be_lost(self._outages, ask.since, ask.until):
                continue
            undone = self._undone(ask)
            later = [each for each in seen if ask.until < each.since < undone]
            name = f"{ask.topic}/{ask.id}"
            promise = 8 if ask.outcome in ("cancelled", "delivered") else 9
            if promise == 8 or sent < ask.since:
                verdict.check(
                    promise, not later, f"{name}: delivered after a cancel that said {ask.outcome!r}: {later}"
                )

    def _undone(self, ask: Ask) -> float:
        """When a repeat of a send may have undone a cancel or a replacement, as documented; never, as a rule."""
        own = [each for each in self._repeats if (each.topic, each.id) == (ask.topic, ask.id)]
        return undone_at(own, ask.since, ask.until)

    def _judge_chain(self, verdict: Verdict, asks: Sequence[Ask], seen: Sequence[Seen], last: int, name: str) -> None:
        """Promises 2 and 3: links come one after another, each until it is done, and the chain ends with its last."""
        begins_again = min((self._undone(ask) for ask in asks if ask.number is None), default=math.inf)
        for one, other in pairwise(sorted(seen, key=lambda each: entry_place(each.entry))):
            in_turn = other.number - one.number in (0, 1) or (other.number == 0 and other.since > begins_again)
            first, second = sorted((one.since, other.since))
            excused = in_turn or may_be_lost(self._outages, first, second)
            verdict.check(3, excused, f"{name}: link {other.number} was delivered after {one.number}")
        sent = [ask for ask in asks if ask.outcome in _STORED and not may_be_lost(self._outages, ask.since, ask.until)]
        if sent and len(asks) == 1:
            numbers = sorted({each.number for each in seen})
            verdict.check(2, numbers == list(range(last + 1)), f"{name}: of {last + 1} links came {numbers}")

    def _judge_drafts(self, verdict: Verdict, asks: Sequence[Ask], seen: Sequence[Seen]) -> None:
        """Promises 2 and 6: no draft is delivered once it is replaced, and the one that stands is."""
        sends = [ask for ask in asks if ask.number is not None]
        came = {each.number for each in seen}
        name = f"{asks[0].topic}/{asks[0].id}"
        for ask in sends:
            failed = ask.outcome == "failed" and ask.number in came
            verdict.check(6, not failed, f"{name}: draft {ask.number} failed, but was delivered")
            if ask.outcome not in _STORED or may_be_lost(self._outages, ask.since, ask.until):
                continue
            former = {each.number for each in sends if min(each.until, self._stored(each, asks)) < ask.since}
            former = set() if self._undone(ask) < math.inf else former
            late = [each for each in seen if each.number in former and each.since > ask.until]
            verdict.check(6, not late, f"{name}: after draft {ask.number}, which was {ask.outcome}: {late}")
            others = [each for each in sends if each is not ask and not each.until < ask.since]
            # A draft whose reply was lost, and which was handled before it was sent again, is a duplicate, too.
            if len(asks) == len(sends) and all(each.outcome in ("failed", "duplicate") for each in others):
                found = came & {ask.number, *(each.number for each in others)}
                verdict.check(2, bool(found), f"{name}: draft {ask.number} was {ask.outcome}, but never delivered")

    def _stored(self, send: Ask, asks: Sequence[Ask]) -> float:
        """When the first try of a send was carried out, also if its reply was lost; infinity if that is not sure."""
        following = min((each.since for each in asks if each.since > send.since), default=math.inf)
        tries = [at for at in self.tries.get((send.topic, send.id), ()) if at < following]
        is_certain = len(tries) == sum(each.since < following for each in asks) and tries[-1] > send.since
        return tries[-1] if is_certain else math.inf


class NotingCore(ReportingCore):
    """Does the work of a consumer, and notes what it reads."""

    def __init__(self, prefix: str, group: str, links: Links) -> None:
        super().__init__(prefix, group)
        self._links = links

    def report(self, deliveries: Sequence[Delivery], asked: float, since: float) -> None:  # noqa: ARG002 - as its parent
        """Notes a read."""
        for delivery in deliveries:
            self._links.see(delivery, since)
