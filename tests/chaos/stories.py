"""A history, told anew for each message: who sent it, who was given it, and what became of each delivery."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from chaos.history import (
    Asked,
    Begun,
    Clock,
    Damage,
    Ended,
    Event,
    Fault,
    Left,
    Outage,
    Problem,
    Read,
    Sending,
    Sent,
    Settled,
    Settling,
    Taken,
    Told,
    Visit,
)
from chaos.timeline import Timeline
from lisa_common.delivery import entry_place

__all__ = ["NEVER", "Ask", "Delivery", "Settle", "Stories", "Story", "Topic", "Try", "tell"]

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Topic:
    """What the checker needs to know of a topic's policy."""

    visibility_ms: int
    max_retries: int
    drops_expired: bool = False
    window_ms: float = NEVER
    """How long a finished id is known: one that is sent again later may be another message."""


@dataclass(slots=True, eq=False)
class Try:
    """One send of one message. `outcome`: sent, duplicate, failed, invalid, or unknown."""

    message: Sending
    since: float
    until: float = NEVER
    outcome: str = "unknown"
    id: str | None = None
    due_ms: int | None = None


@dataclass(slots=True, eq=False)
class Ask:
    """A cancel, a reschedule, a replay or a purge. `outcome` as told, or failed, or unknown."""

    what: str
    since: float
    delay_ms: int
    until: float = NEVER
    outcome: str = "unknown"


@dataclass(slots=True, eq=False)
class Settle:
    """An attempt to settle or to extend a delivery. `outcome` None: unknown."""

    what: str
    since: float
    until: float = NEVER
    outcome: str | None = None


@dataclass(slots=True, eq=False)
class Delivery:
    """One delivery. A lost reply leaves one of which nothing is known but its settling."""

    taken: Taken
    group: str
    since: float
    until: float
    asked: float
    """Its lease began not before this, its record was fetched not before `since`."""
    begun: list[float] = field(default_factory=list)
    ended: list[tuple[float, str]] = field(default_factory=list)
    settles: list[Settle] = field(default_factory=list)

    @property
    def order(self) -> tuple[int, int]:
        """Entries are ordered as their ids are, which are two numbers."""
        return entry_place(self.taken.entry)

    def tried(self, what: str, *outcomes: str | None) -> bool:
        """Whether it was settled so, with one of these outcomes."""
        return any(settle.what == what and settle.outcome in outcomes for settle in self.settles)


@dataclass(slots=True, eq=False)
class Story:
    """All that is known of one message."""

    topic: str
    id: str
    tries: list[Try] = field(default_factory=list)
    asks: list[Ask] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    """Group -> reason, where it is garbage in the end."""
    shards: set[str] = field(default_factory=set)
    """Where in the topic it was seen."""

    @property
    def name(self) -> str:
        """How a violation names it."""
        return f"{self.topic}/{self.id}"

    def lives(self, until: float) -> int:
        """How many lives it may have had by then: an operator's replay gives it all of its attempts anew."""
        return 1 + sum(ask.since <= until for ask in self.asked("replay"))

    def asked(self, what: str) -> list[Ask]:
        """The asks of one kind that may have been carried out."""
        return [ask for ask in self.asks if ask.what == what and ask.outcome != "failed"]

    def of_group(self, group: str) -> list[Delivery]:
        """The deliveries of one group."""
        return [delivery for delivery in self.deliveries if delivery.group == group]


@dataclass(slots=True)
class Stories:
    """A whole run."""

    stories: list[Story]
    strays: list[Delivery]
    """Deliveries of what nobody sent."""
    timeline: Timeline
    faults: list[Fault]
    outages: list[float]
    damages: dict[str, float]
    """Topic -> until when it was damaged, last."""
    problems: list[Problem]
    visits: list[Visit] = field(default_factory=list)
    reads: int = 0


class _Teller:
    def __init__(self) -> None:
        self.stories: dict[tuple[str, str], Story] = {}
        self.tries: dict[str, Try] = {}
        self.sends: dict[str, tuple[str, list[Try]]] = {}
        self.asks: dict[str, Ask] = {}
        self.settles: dict[str, list[Settle]] = {}
        self.deliveries: dict[tuple[str, tuple[str, ...]], Delivery] = {}
        self.strays: list[Delivery] = []
        self.clock: list[Clock] = []
        self.faults: list[Fault] = []
        self.outages: list[float] = []
        self.damages: dict[str, float] = {}
        self.problems: list[Problem] = []
        self.visits: list[Visit] = []
        self.reads = 0

    def story(self, topic: str, id: str) -> Story:
        found = self.stories.get((topic, id))
        if found is None:
            found = self.stories[topic, id] = Story(topic, id)
        return found

    def tell(self, event: Event) -> None:
        match event:
            case Sent():
                self.sent(event)
            case Told():
                self.told(event)
            case Asked():
                ask = self.asks[event.op] = Ask(event.what, event.at, event.delay_ms)
                self.story(event.topic, event.id).asks.append(ask)
            case Read():
                self.read(event)
            case Begun():
                self.delivery(event.group, event.place).begun.append(event.at)
            case Ended():
                self.delivery(event.group, event.place).ended.append((event.at, event.error))
            case Settling() | Settled():
                self.settle(event)
            case Left():
                story = self.story(event.topic, event.id)
                story.left[event.group] = event.reason
                story.shards.add(event.shard)
            case _:
                self.remark(event)

    def remark(self, event: Event) -> None:
        match event:
            case Clock():
                self.clock.append(event)
            case Fault():
                self.faults.append(event)
            case Outage():
                self.outages.append(event.at)
            case Damage():
                self.damages[event.topic] = event.at
            case Problem():
                self.problems.append(event)
            case Visit():
                self.visits.append(event)

    def sent(self, event: Sent) -> None:
        tries = [Try(message, event.at, id=message.id) for message in event.messages]
        self.sends[event.op] = (event.topic, tries)
        for each in tries:
            self.tries[each.message.mark] = each
            if each.id is not None:
                self.story(event.topic, each.id).tries.append(each)

    def told(self, event: Told) -> None:
        if event.op in self.asks:
            ask = self.asks[event.op]
            ask.until = event.at
            ask.outcome = _answer(event.results[0][0]) if event.how == "ok" else event.how
            return
        topic, tries = self.sends[event.op]
        # A send that broke off has results for the messages that it came to.
        for each, (id, outcome, due_ms) in zip(tries, event.results, strict=False):
            each.until, each.outcome, each.due_ms = event.at, outcome, due_ms
            if each.id is None and id is not None:
                each.id = id
                self.story(topic, id).tries.append(each)
        for each in tries[len(event.results) :]:
            each.until, each.outcome = event.at, event.how

    def read(self, event: Read) -> None:
        self.reads += 1
        for taken in event.taken:
            delivery = Delivery(taken, event.group, event.since, event.at, event.asked)
            self.deliveries[event.group, taken.place] = delivery
            sent = self.tries.get(taken.mark)
            if sent is None:
                self.strays.append(delivery)
                continue
            story = self.story(taken.topic, taken.id)
            if sent.id is None:
                sent.id = taken.id
                story.tries.append(sent)
            story.deliveries.append(delivery)
            story.shards.add(taken.shard)

    def delivery(self, group: str, place: Sequence[str]) -> Delivery:
        """The delivery of this place; one that was never read is a stray."""
        found = self.deliveries.get((group, tuple(place)))
        if found is None:
            topic, shard, entry = place
            taken = Taken(topic, "?", entry, 0, 0, None, "", 0, shard)
            found = self.deliveries[group, taken.place] = Delivery(taken, group, 0.0, 0.0, 0.0)
            self.strays.append(found)
        return found

    def settle(self, event: Settling | Settled) -> None:
        if isinstance(event, Settling):
            settles = self.settles[event.op] = [Settle(event.what, event.at) for _ in event.places]
            for place, settle in zip(event.places, settles, strict=True):
                self.delivery(event.group, place).settles.append(settle)
            return
        settles = self.settles[event.op]
        for at, settle in enumerate(settles):
            settle.until, settle.outcome = event.at, event.outcomes[at] if event.outcomes else None


def _answer(told: str) -> str:
    """That a message is unknown is told apart from an outcome which nobody knows."""
    return "not there" if told == "unknown" else told


def tell(history: Iterable[Event]) -> Stories:
    """The stories of a history, which is in the order of the clock."""
    teller = _Teller()
    for event in history:
        teller.tell(event)
    return Stories(
        list(teller.stories.values()),
        teller.strays,
        Timeline(teller.clock),
        sorted(teller.faults, key=lambda fault: fault.since),
        teller.outages,
        teller.damages,
        teller.problems,
        teller.visits,
        teller.reads,
    )
