"""A history, told anew for each message: who sent it, who was given it, and what became of each delivery."""

from dataclasses import dataclass, field

from chaos.history import Fault, Problem, Sending, Taken, Visit
from chaos.timeline import Timeline
from lisa_common.model.delivery import entry_place

__all__ = ["NEVER", "Answer", "Ask", "Delivery", "Settle", "Stories", "Story", "Topic", "Try"]

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Topic:
    """What the checker needs to know of a topic's policy."""

    visibility_ms: int
    max_retries: int
    drops_expired: bool = False
    window_ms: float = NEVER
    """How long a finished id is known: one that is sent again later may be another message."""
    groups: tuple[str, ...] = ()
    """Who reads it; nothing: all groups of the run."""
    spares: bool = False
    """Whether its handlers never fail: what is not poison must not die of others' troubles, or of a slow link."""


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


@dataclass(frozen=True, slots=True)
class Answer:
    """What a producer's caller was told: the outcome of each message, and the error where there was one."""

    topic: str
    what: str
    since: float
    until: float
    outcomes: frozenset[str]
    error: str
    bad: bool
    """Whether it was to be refused."""


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

    @property
    def abandoned(self) -> bool:
        """Whether nobody has settled it, as far as is known: its worker has died with it, or its lease ran out."""
        return all(settle.what == "extend" or settle.outcome in ("stale", "failed", None) for settle in self.settles)

    def untouched(self, until: float) -> bool:
        """Whether by then its handler had not begun, and nobody had settled it."""
        settled = any(settle.what != "extend" and settle.since < until for settle in self.settles)
        return not settled and not any(at < until for at in self.begun)

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
    found_dead: dict[str, float] = field(default_factory=dict)
    """Group -> when it was seen to be garbage, first."""
    shards: set[str] = field(default_factory=set)
    """Where in the topic it was seen."""

    @property
    def name(self) -> str:
        """How a violation names it."""
        return f"{self.topic}/{self.id}"

    def lives(self, until: float) -> int:
        """How many lives it may have had by then: an operator's replay gives it all of its attempts anew."""
        return 1 + sum(ask.since <= until for ask in self.asked("replay"))

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
    """Topic -> until when it was damaged, last."""
    problems: list[Problem]
    answers: list[Answer]
    visits: list[Visit] = field(default_factory=list)
    reads: int = 0
