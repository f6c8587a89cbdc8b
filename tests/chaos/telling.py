"""Builds the stories of a history."""

from collections.abc import Iterable, Sequence

from chaos.history import (
    Asked,
    Begun,
    Clock,
    Damage,
    Ended,
    Event,
    Fault,
    Left,
    Letter,
    Outage,
    Problem,
    Read,
    Repeated,
    Sent,
    Settled,
    Settling,
    Taken,
    Told,
    Unrecorded,
    Visit,
)
from chaos.stories import Answer, Ask, Delivery, Settle, Stories, Story, Try
from chaos.timeline import Timeline

__all__ = ["tell"]


class _Teller:
    def __init__(self) -> None:
        self.stories: dict[tuple[str, str], Story] = {}
        self.tries: dict[str, Try] = {}
        self.sends: dict[str, tuple[str, list[Try]]] = {}
        self.asks: dict[str, tuple[str, Ask]] = {}
        self.settles: dict[str, list[Settle]] = {}
        self.deliveries: dict[tuple[str, tuple[str, ...]], Delivery] = {}
        self.strays: list[Delivery] = []
        self.clock: list[Clock] = []
        self.faults: list[Fault] = []
        self.outages: list[float] = []
        self.damages: dict[str, float] = {}
        self.problems: list[Problem] = []
        self.answers: list[Answer] = []
        self.visits: list[Visit] = []
        self.unrecorded: list[Unrecorded] = []
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
                ask = Ask(event.what, event.at, event.delay_ms)
                self.asks[event.op] = event.topic, ask
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
                story.found_dead.setdefault(event.group, event.at)
                story.shards.add(event.shard)
            case Letter():
                self.letter(event)
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
            case Repeated():
                self.story(event.topic, event.id).repeats.append(event)
            case Unrecorded():
                self.unrecorded.append(event)

    def letter(self, event: Letter) -> None:
        story = self.story(event.topic, event.id)
        story.letters.append(event)
        story.left.setdefault(event.group, event.reason)
        story.found_dead.setdefault(event.group, event.at)

    def sent(self, event: Sent) -> None:
        tries = [Try(message, event.at, id=message.id) for message in event.messages]
        self.sends[event.op] = (event.topic, tries)
        for each in tries:
            self.tries[each.message.mark] = each
            if each.id is not None:
                self.story(event.topic, each.id).tries.append(each)

    def told(self, event: Told) -> None:
        if event.op in self.asks:
            topic, ask = self.asks[event.op]
            ask.until = event.at
            ask.outcome = _answer(event.results[0][0]) if event.how == "ok" else event.how
            if ask.what in ("cancel", "reschedule"):
                self.answer(event, topic, ask.what, ask.since, {ask.outcome}, bad=False)
            return
        topic, tries = self.sends[event.op]
        # A send that broke off has results for the messages that it reached.
        for each, (id, outcome, due_ms) in zip(tries, event.results, strict=False):
            each.until, each.outcome, each.due_ms = event.at, outcome, due_ms
            if each.id is None and id is not None:
                each.id = id
                self.story(topic, id).tries.append(each)
        for each in tries[len(event.results) :]:
            each.until, each.outcome = event.at, event.how
        if tries:
            bad = any(each.message.bad for each in tries)
            self.answer(event, topic, "a send", tries[0].since, {each.outcome for each in tries}, bad=bad)

    def answer(self, event: Told, topic: str, what: str, since: float, outcomes: set[str], *, bad: bool) -> None:
        self.answers.append(Answer(topic, what, since, event.at, frozenset(outcomes), event.error, bad))

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
    """Distinguishes the outcome "unknown message" from an unknown outcome."""
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
        teller.answers,
        teller.visits,
        teller.unrecorded,
        teller.reads,
    )
