"""Promise 15, the limit of each key: judged by deliveries that were in hand at the same time."""

from collections import defaultdict
from collections.abc import Iterator

from chaos.deliveries import Deliveries
from chaos.stories import NEVER, Delivery, Stories, Story
from chaos.verdict import Verdict

__all__ = ["judge_keys"]

_Held = tuple[Story, Delivery]


def judge_keys(verdict: Verdict, stories: Stories, deliveries: Deliveries, topic: str, most: int) -> None:
    """Never more messages of a key than the limit are in hand: read, not settled, and their leases have not ended.

    After its lease a message may be delivered again, and settled there, while its first worker still handles it.
    """
    by_key: defaultdict[str, list[_Held]] = defaultdict(list)
    for key, held in _keyed(stories, topic):
        by_key[key].append(held)
    for key, of_key in by_key.items():
        in_hand: list[_Held] = []
        for story, delivery in sorted(of_key, key=lambda held: held[1].until):
            now = delivery.until
            in_hand = [held for held in (*in_hand, (story, delivery)) if _is_in_hand(deliveries, *held, now)]
            ids = {held.id for held, _ in in_hand}
            since = min((each.asked for _, each in in_hand), default=now)
            lost = any(since <= outage <= now for outage in stories.outages)
            text = f"{topic}: {sorted(ids)} of key {key} in hand as {delivery.taken.entry} was read"
            verdict.check(15, len(ids) <= most or lost, text)


def _keyed(stories: Stories, topic: str) -> Iterator[tuple[str, _Held]]:
    """The deliveries of messages with keys. One that expires gives its slot up, also in hand."""
    for story in stories.stories:
        sent = {each.message.mark: each.message for each in story.tries}
        for delivery in story.deliveries if story.topic == topic else ():
            message = sent.get(delivery.taken.mark)
            if message and message.key and message.ttl_ms is None:
                yield message.key, (story, delivery)


def _is_in_hand(deliveries: Deliveries, story: Story, delivery: Delivery, now: float) -> bool:
    ends = [settle.since for settle in delivery.settles if settle.what != "extend"]
    ends += [ask.since for ask in story.asked("abort") if delivery.asked < ask.until]
    settled = min(ends, default=NEVER)
    return now < settled and not deliveries.has_lapsed(story, delivery, now)
