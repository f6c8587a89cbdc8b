"""What a manager knows of its topics, and when each is to be looked at: shared by the promoter and the housekeepers."""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush

from lisa_common.model.keys import ShardKeys
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_common.protocol.registry import REFRESH_S

__all__ = ["Agenda", "Board", "Watched"]


@dataclass(slots=True)
class Watched:
    """One topic, or one shard of it, under a manager's eyes."""

    keys: ShardKeys
    policy: Policy
    pending: Mapping[str, int] = field(default_factory=dict)
    """Deliveries that were not settled at the last trim, by group."""
    calm: bool = False
    """Whether the promoter expects nothing by its next look, which is only to make sure."""
    heard: float = math.inf
    """The earliest due moment that sends told of since the promoter's last look began."""
    trim_by: float = 0.0
    """When the trimmer looks for spent consumers even if the stream is empty."""
    longer: list[tuple[int, float]] = field(default_factory=list)
    """Visibility timeouts in ms that were lowered, and until when leases may be of them."""

    @property
    def has_pending(self) -> bool:
        """Whether any group had deliveries that were not settled."""
        return any(self.pending.values())

    def take_policy(self, policy: Policy, now: float) -> None:
        """Goes by another policy. Leases that were given under the one before are kept as they were given."""
        before_ms = self.policy.visibility_ms
        if policy.visibility_ms < before_ms:
            # Workers go by what they have read for a while, then renew their leases more often.
            self.longer.append((before_ms, now + before_ms / 1000 + REFRESH_S))
        self.policy = policy

    def visibility_ms(self, now: float) -> int:
        """The longest visibility timeout that leases may be of which have no length of their own."""
        self.longer = [(longer_ms, until) for longer_ms, until in self.longer if now < until]
        return max([self.policy.visibility_ms, *(longer_ms for longer_ms, _ in self.longer)])


class Agenda:
    """Names, each with the moment (monotonic, in seconds) when it is to be looked at next.

    Most names share their moment with many others, so the heap holds moments, each once.
    """

    def __init__(self) -> None:
        self._moments: dict[str, float] = {}
        self._names: dict[float, list[str]] = {}
        self._heap: list[float] = []

    def put(self, name: str, moment: float) -> None:
        """Sets the moment of a name."""
        self._moments[name] = moment
        if names := self._names.get(moment):
            names.append(name)
        else:
            self._names[moment] = [name]
            heappush(self._heap, moment)

    def add(self, name: str, moment: float) -> None:
        """Sets the moment of a name that has none."""
        if name not in self._moments:
            self.put(name, moment)

    def hasten(self, name: str, moment: float) -> bool:
        """Sets the moment of a name if that is earlier than the one it has; says whether it was."""
        known = self._moments.get(name)
        if known is None or known <= moment:
            return False
        self.put(name, moment)
        return True

    def drop(self, name: str) -> None:
        """Forgets a name."""
        self._moments.pop(name, None)

    def next_moment(self) -> float | None:
        """The earliest moment, None when there are no names."""
        while self._heap:
            moment = self._heap[0]
            names = self._names[moment]
            # A name that was moved is still listed at its old moment.
            while names and self._moments.get(names[-1]) != moment:
                names.pop()
            if names:
                return moment
            del self._names[heappop(self._heap)]
        return None

    def take_due(self, now: float, again: float) -> list[str]:
        """Names whose moment has come. Each is put at `again`, for whatever happens before it is put anew."""
        due = []
        while (moment := self.next_moment()) is not None and moment <= now:
            for name in self._names.pop(heappop(self._heap)):
                if self._moments.get(name) == moment:
                    del self._moments[name]
                    due.append(name)
        for name in due:
            self.put(name, again)
        return due


class Board:
    """The topics that the registry holds, shard by shard, and an agenda for each kind of work.

    A topic that is one shard goes by its own name, the shards of others by their tags; to the jobs each is a topic.
    """

    def __init__(self, prefix: str, *, fallback_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.prefix = prefix
        self._fallback_s = fallback_s
        self.clock = clock
        self.topics: dict[str, Watched] = {}
        self.promotions = Agenda()
        self.reclaims = Agenda()
        """Only topics with deliveries pending, as far as is known."""
        self.trims = Agenda()
        self.sweeps = Agenda()

    @property
    def agendas(self) -> tuple[Agenda, ...]:
        """One for each kind of work."""
        return self.promotions, self.reclaims, self.trims, self.sweeps

    def update(self, layouts: Iterable[Layout]) -> tuple[set[str], set[str]]:
        """Takes over what the registry says now. Result: topics that are new, and topics that are gone."""
        found = {keys.tag: (keys, layout.policy) for layout in layouts for keys in layout.served}
        gone = self.topics.keys() - found.keys()
        for name in gone:
            del self.topics[name]
            # A name that a task in flight puts back is passed over, and falls out, when its moment comes.
            for agenda in self.agendas:
                agenda.drop(name)
        new = found.keys() - self.topics.keys()
        for name in new:
            self.topics[name] = Watched(*found[name])
        for name, (_, policy) in found.items():
            self.topics[name].take_policy(policy, self.clock())
        self.look_now(new)
        return new, set(gone)

    def look_now(self, names: Iterable[str]) -> None:
        """Puts topics on every agenda for this moment."""
        now = self.clock()
        for name in names:
            for agenda in self.agendas:
                agenda.put(name, now)

    def look_at_leases(self, name: str, moment: float) -> None:
        """Has the leases of a topic looked at when one of them ends, and before that, which groups have any."""
        now = self.clock()
        # Anybody may have named that moment: looks do not become more seldom by it.
        moment = min(max(moment, now), now + self._fallback_s)
        self.trims.hasten(name, now)
        if not self.reclaims.hasten(name, moment):
            self.reclaims.add(name, moment)

    def due(self, agenda: Agenda) -> list[tuple[str, Watched]]:
        """The topics to be looked at now; whoever does says when to look again, or it is done in `fallback_s`."""
        now = self.clock()
        names = agenda.take_due(now, now + self._fallback_s)
        return [(name, watched) for name in names if (watched := self.topics.get(name))]
