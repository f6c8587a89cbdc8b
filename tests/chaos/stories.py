"""A history, sorted by message: its sends, its deliveries, and the outcome of each."""

from dataclasses import dataclass, field

from chaos.history import Fault, Letter, Problem, Repeated, Sending, Taken, Unrecorded, Visit, undone_at
from chaos.timeline import Timeline
from lisa_common.model.delivery import entry_place

__all__ = ["NEVER", "Answer", "Ask", "Delivery", "Settle", "Stories", "Story", "Topic", "Try"]

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Topic:
    """The part of a topic's policy that the checker uses."""

    visibility_ms: int
    max_retries: int
    drops_expired: bool = False
    window_ms: float = NEVER
    """How long a finished id stays known: a later send of the id is another message."""
    groups: tuple[str, ...] = ()
    """The groups that read it; empty for all groups of the run."""
    spares: bool = False
    """Whether its handlers never fail: only poison may die, not its neighbours, nor messages on a slow link."""
    interval_ms: float | None = None
    """The ms for one message by the topic's rate; None without a rate."""
    burst: int = 0
    """How many messages more than by the rate may become ready at once."""
    per_key: int | None = None
    """How many messages of a key may be in flight; None without a limit."""


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
    """A cancel, a reschedule, a replay, a purge or an abort. `outcome`: that of the reply, failed, or unknown."""

    what: str
    since: float
    delay_ms: int
    until: float = NEVER
    outcome: str = "unknown"


@dataclass(frozen=True, slots=True)
class Answer:
    """The reply to a producer's caller: the outcome of each message, or the error."""

    topic: str
    what: str
    since: float
    until: float
    outcomes: frozenset[str]
    error: str
    bad: bool
    """Whether it must be refused."""


@dataclass(slots=True, eq=False)
class Settle:
    """An attempt to settle or to extend a delivery. `outcome` None: unknown."""

    what: str
    since: float
    until: float = NEVER
    outcome: str | None = None


@dataclass(slots=True, eq=False)
class Delivery:
    """One delivery. After a lost reply only its settling is known."""

    taken: Taken
    group: str
    since: float
    until: float
    asked: float
    """Its lease did not begin before this; its record was not fetched before `since`."""
    begun: list[float] = field(default_factory=list)
    ended: list[tuple[float, str]] = field(default_factory=list)
    settles: list[Settle] = field(default_factory=list)

    @property
    def order(self) -> tuple[int, int]:
        """The order of entries: that of their ids, two numbers each."""
        return entry_place(self.taken.entry)

    @property
    def abandoned(self) -> bool:
        """Whether no settling of it is known: its worker has died, or its lease ran out."""
        return all(settle.what == "extend" or settle.outcome in ("stale", "failed", None) for settle in self.settles)

    def untouched(self, until: float) -> bool:
        """Whether by then its handler had not begun, and nobody had settled it. A call that failed has done nothing."""
        settled = any(s.what != "extend" and s.outcome != "failed" and s.since < until for s in self.settles)
        return not settled and not any(at < until for at in self.begun)

    def tried(self, what: str, *outcomes: str | None) -> bool:
        """Whether a settling of this kind had one of these outcomes."""
        return any(settle.what == what and settle.outcome in outcomes for settle in self.settles)


@dataclass(slots=True, eq=False)
class Story:
    """The history of one message."""

    topic: str
    id: str
    tries: list[Try] = field(default_factory=list)
    asks: list[Ask] = field(default_factory=list)
    repeats: list[Repeated] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    """Group -> reason, where it is garbage in the end."""
    found_dead: dict[str, float] = field(default_factory=dict)
    """Group -> when it was first seen as garbage."""
    letters: list[Letter] = field(default_factory=list)
    """Its copies in the dead letter topic of its topic."""
    shards: set[str] = field(default_factory=set)
    """The shards in which it was seen."""

    @property
    def name(self) -> str:
        """Its name in violations."""
        return f"{self.topic}/{self.id}"

    def lives(self, until: float) -> int:
        """The number of lives that it may have had by then: each replay gives it all of its attempts again.

        So does a repeat that undoes a cancel.
        """
        undone = [self.undone(ask) for ask in self.asked("cancel")]
        return 1 + sum(since <= until for since in (*undone, *(ask.since for ask in self.asked("replay"))))

    def undone(self, cancel: Ask) -> float:
        """When a repeat of a send may have undone a cancel, as documented; `NEVER` if none may."""
        return undone_at(self.repeats, cancel.since, cancel.until)

    @property
    def poison(self) -> bool:
        """Whether its handler kills its process."""
        return any(each.message.poison for each in self.tries)

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
    """Topic -> the end of its last damage."""
    problems: list[Problem]
    answers: list[Answer]
    visits: list[Visit] = field(default_factory=list)
    unrecorded: list[Unrecorded] = field(default_factory=list)
    reads: int = 0
