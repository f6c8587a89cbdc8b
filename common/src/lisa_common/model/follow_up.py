"""Messages that follow deliveries: each is sent with the ack of its delivery, or not at all."""

from collections.abc import Iterable
from typing import NamedTuple

from lisa_common.bodies import Codec
from lisa_common.errors import InvalidInput, Verbatim
from lisa_common.model.message import Message, Outgoing, with_codec
from lisa_common.model.sharding import Layout

__all__ = ["FollowUp", "FollowUps"]


class FollowUp(NamedTuple):
    """A follow-up message, as given and as stored."""

    message: Message
    outgoing: Outgoing


class FollowUps:
    """The messages that follow the deliveries of one topic that were read together. All of these share it."""

    __slots__ = ("_acked", "_by_entry", "_codec", "_layout")

    def __init__(self, layout: Layout, codec: Codec | None = None) -> None:
        self._layout = layout
        self._codec = codec
        self._by_entry: dict[str, FollowUp] = {}
        self._acked = set[str]()
        """Entries whose acks have begun: what came after that would be lost in silence."""

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        # In another process nothing acks the copy: its `then` must refuse, not lose what it is given.
        return type(None), ()

    def __len__(self) -> int:
        return len(self._by_entry)

    def set(self, entry: str, id: str, message: Message) -> None:
        """Sets what follows the delivery of the message `id` by an entry. Raises InvalidInput."""
        if entry in self._acked:
            raise InvalidInput("then", Verbatim("a call after the ack"), "called before the delivery is acked")
        outgoing = with_codec(message, self._codec).outgoing(self._layout.policy, id)
        if outgoing.id != id and len(self._layout.served) > 1:
            # It may belong to another shard, which no script can reach as well.
            raise InvalidInput("id", outgoing.id, "omitted, as the topic has several shards")
        before = self._by_entry.get(entry)
        if before and before.outgoing.id != outgoing.id:
            raise InvalidInput("then", Verbatim("another id"), "called for one id only, as one message follows")
        self._by_entry[entry] = FollowUp(message, outgoing)

    def close(self, entries: Iterable[str]) -> None:
        """Refuses what would follow the deliveries by these entries, whose acks begin."""
        self._acked.update(entries)

    def get(self, entry: str) -> FollowUp | None:
        """Returns the follow-up of the delivery by an entry, or None."""
        return self._by_entry.get(entry)
