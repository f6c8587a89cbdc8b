"""A delivery that a worker holds, from the read that brought it until it is settled or released."""

from collections import Counter
from collections.abc import Sequence

from lisa_common.model.delivery import Delivery
from lisa_common.protocol.consuming import Nack, Postponed

__all__ = ["HeldDelivery", "count_by_topic", "postponed_ms"]


class HeldDelivery:
    """A delivery and its state in the worker. Two of them are never equal. Moments are of the monotonic clock."""

    # Defaults of the class: a worker makes one of these for each message.
    leads_batch = False
    """Whether it is the first of a batch that a handler was called with."""
    gathered_at = 0.0
    """When it began to wait for the others of its batch."""
    give_up_at: float | None = None
    """When its lease is renewed no longer, as its handler takes too long; None for never."""
    has_ended = False
    """Whether its handler has ended. Its lease is renewed until it is settled, and may end before."""
    outcome: Nack | Postponed | None = None
    """What to do with it once its handler has ended: nack it or give it back; None: ack it."""
    error: BaseException | None = None
    """What to log once the server has decided about a retry."""
    took_s: float | None = None
    """How long its handler took; None while its outcome is not known, and if the handler was not called."""
    result = "ok"
    """The same as `outcome`, as metrics name it."""

    # Positional: to make an object with a keyword takes a third longer.
    def __init__(self, delivery: Delivery, renewed_at: float, is_begun: bool = True) -> None:  # noqa: FBT001, FBT002
        self.delivery = delivery
        """As its handler takes it."""
        self.place = delivery.place
        """Identifies the delivery: a server that has lost its last writes may deliver an entry again."""
        self.read_at = self.renewed_at = renewed_at
        """A moment before its lease began or was last renewed."""
        self.is_begun = is_begun
        """Whether the server counts it as begun."""


def count_by_topic(held: Sequence[HeldDelivery]) -> dict[str, int]:
    """How many deliveries there are of each topic."""
    topics = [each.delivery.topic for each in held]
    # Mostly all are of one; to count them one by one takes several times as long.
    if topics and topics.count(topics[0]) == len(topics):
        return {topics[0]: len(topics)}
    return Counter(topics)


def postponed_ms(held: Sequence[HeldDelivery]) -> dict[str, int]:
    """The topics whose handlers ask for a pause, each with the longest time to shut its doors for, in ms."""
    longest: dict[str, int] = {}
    for each in held:
        if type(each.outcome) is Postponed:
            topic = each.delivery.topic
            shut_ms = 0 if each.outcome.here else each.outcome.delay_ms
            longest[topic] = max(shut_ms, longest.get(topic, 0))
    return longest
