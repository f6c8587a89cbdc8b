"""The shards that a manager serves, and when each is due for each kind of work; all jobs share one table."""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from lisa_common.model.keys import ShardKeys
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_common.protocol.registry import REFRESH_S
from lisa_manager.due_queue import DueQueue

__all__ = ["ShardTable", "Shards", "WatchedShard"]


@dataclass(slots=True)
class WatchedShard:
    """A shard that a manager serves, and its state when the manager last looked."""

    keys: ShardKeys
    policy: Policy
    tag: str = field(init=False)
    """Names the shard in logs, wakes and queues."""
    pending: Mapping[str, int] = field(default_factory=dict)
    """Unsettled deliveries at the last trim, by group."""
    calm: bool = False
    """Whether the promoter expects nothing to be due at its next look."""
    woken_for: float = math.inf
    """The earliest due moment in wakes since the promoter's last look began."""
    full_looks: int = 0
    """Looks of the promoter in a row that promoted nothing, as too many messages are in flight."""
    trim_by: float = 0.0
    """When the trimmer looks for spent consumers even if the stream is empty."""
    longer_leases: list[tuple[int, float]] = field(default_factory=list)
    """Former, longer visibility timeouts in ms, each with the moment when its last lease may end."""

    def __post_init__(self) -> None:
        self.tag = self.keys.tag

    @property
    def place(self) -> dict[str, str]:
        """The fields that name the shard in log records."""
        return {"topic": self.keys.topic, "shard": self.keys.shard}

    @property
    def has_pending(self) -> bool:
        """Whether any group had unsettled deliveries at the last trim."""
        return any(self.pending.values())

    def set_policy(self, policy: Policy, now: float) -> None:
        """Changes the policy. Leases given under a longer visibility timeout keep it."""
        former_ms = self.policy.visibility_ms
        if policy.visibility_ms < former_ms:
            # Workers apply the policy that they last read, then renew their leases more often.
            self.longer_leases.append((former_ms, now + former_ms / 1000 + REFRESH_S))
        self.policy = policy

    def visibility_ms(self, now: float) -> int:
        """Returns the longest visibility timeout in ms that leases without a length of their own may have."""
        self.longer_leases = [(former_ms, until) for former_ms, until in self.longer_leases if now < until]
        return max([self.policy.visibility_ms, *(former_ms for former_ms, _ in self.longer_leases)])


Shards = list[WatchedShard]


class ShardTable:
    """The shards of all topics in the registry, by tag, and a queue for each kind of work."""

    def __init__(self, prefix: str, *, fallback_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.prefix = prefix
        self._fallback_s = fallback_s
        self.clock = clock
        self.shards: dict[str, WatchedShard] = {}
        self.promotions = DueQueue()
        self.reclaims = DueQueue()
        """Holds only shards with known pending deliveries."""
        self.trims = DueQueue()
        self.sweeps = DueQueue()
        self.dead_letters = DueQueue()
        """Holds only shards whose policy names a dead letter topic, once they were looked at."""
        self.scheduled: set[str] = set()
        """Topics that have schedules, until the ticker takes them."""

    @property
    def queues(self) -> tuple[DueQueue, ...]:
        """One queue for each kind of work."""
        return self.promotions, self.reclaims, self.trims, self.sweeps, self.dead_letters

    def update(self, layouts: Iterable[Layout]) -> tuple[set[str], set[str]]:
        """Applies what the registry now holds. Returns the tags of new shards, and of removed ones."""
        registered = {keys.tag: (keys, layout.policy) for layout in layouts for keys in layout.served}
        removed = self.shards.keys() - registered.keys()
        for tag in removed:
            del self.shards[tag]
            # A running task may put the tag back; `take_due` then ignores it.
            for queue in self.queues:
                queue.drop(tag)
        new = registered.keys() - self.shards.keys()
        for tag in new:
            self.shards[tag] = WatchedShard(*registered[tag])
        for tag, (_, policy) in registered.items():
            self.shards[tag].set_policy(policy, self.clock())
            if policy.dead_letter_topic is not None:
                self.dead_letters.add(tag, self.clock())
                self.sweeps.hasten(tag, self.clock())
        self.make_due(new)
        return new, set(removed)

    def make_due(self, tags: Iterable[str]) -> None:
        """Makes shards due now for every kind of work."""
        now = self.clock()
        for tag in tags:
            for queue in self.queues:
                queue.put(tag, now)

    def expect_lease_end(self, tag: str, moment: float) -> None:
        """Makes a shard due for a trim now, which finds its groups with leases, and for a reclaim when a lease ends."""
        now = self.clock()
        # Anybody may publish a wake, so its moment must not delay the next reclaim.
        moment = min(max(moment, now), now + self._fallback_s)
        self.trims.hasten(tag, now)
        if not self.reclaims.hasten(tag, moment):
            self.reclaims.add(tag, moment)

    def take_due(self, queue: DueQueue) -> Shards:
        """Returns the shards that are due. Each is due again in `fallback_s` unless the caller puts it anew."""
        now = self.clock()
        tags = queue.take_due(now, now + self._fallback_s)
        return [shard for tag in tags if (shard := self.shards.get(tag))]
