"""What a consumer does, without I/O: flows that `client`, `aio` and the worker drive."""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from lisa_common.errors import InvalidInput, NoGroup
from lisa_common.model.delivery import Delivery, Entry
from lisa_common.model.keys import ShardKeys
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_common.protocol import consuming, groups
from lisa_common.protocol.call import Call, Flow
from lisa_common.protocol.consuming import AckOutcome, Nack, NackOutcome
from lisa_common.protocol.marking import MARKING, Begun, mark
from lisa_common.protocol.registry import Topics
from lisa_common.protocol.triage import sort_entries
from lisa_common.validation import Duration, check_int, check_name, duration_ms
from lisa_consumer.marks import Marking, check_mark
from lisa_consumer.names import consumer_name
from lisa_consumer.record_fetcher import RecordFetcher

__all__ = ["Core", "ReadResult", "Reading"]

T = TypeVar("T")

MAX_BATCH = 1_000
"""Most deliveries in one script call."""


class _Keys(dict[tuple[str, str], ShardKeys]):
    """The keys of shards, by topic and shard, each made once."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def __missing__(self, place: tuple[str, str]) -> ShardKeys:
        return self.setdefault(place, ShardKeys(self._prefix, *place))


class Reading(NamedTuple):
    """What a read of some topics is made of, for as long as their layouts stay as they are."""

    layouts: dict[str, Layout]
    shards: list[ShardKeys]
    widest: int
    """Shards of the topic that has most."""


class ReadResult(NamedTuple):
    """What a read has brought."""

    deliveries: list[Delivery]
    leased_at: float
    """When their leases began or were renewed, or a moment before; by the clock of the core."""


class Core:
    """The flows of one consumer of a group."""

    def __init__(
        self, prefix: str, group: str, name: str | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.group = check_name("group", group)
        self.name = consumer_name() if name is None else check_name("consumer", name)
        self._topics = Topics(prefix)
        self._joined: set[ShardKeys] = set()
        self._reading: Reading | None = None
        self._keys = _Keys(prefix)
        self._clock = clock
        self._fetcher = RecordFetcher(self.group, self.name, clock)
        self._marking: Marking | None = None

    def read(
        self,
        topics: Sequence[str],
        *,
        limit: int,
        wait: Duration | None = None,
        block: Duration = 2.0,
        visibility: Duration | None = None,
    ) -> Flow[list[Delivery]]:
        """Up to `limit` deliveries of each topic; waits up to `wait` while there are none, None: not at all.

        Of a topic with more shards than that it may be one of each shard.

        The server is asked to wait for no more than `block` at once. With `visibility` the leases are that long.
        """
        taken = yield from self.take(topics, limit=limit, wait=wait, block=block, visibility=visibility)
        return taken.deliveries

    def take(
        self,
        topics: Sequence[str],
        *,
        limit: int,
        wait: Duration | None = None,
        block: Duration = 2.0,
        visibility: Duration | None = None,
    ) -> Flow[ReadResult]:
        """The same, and since when the leases surely last."""
        check_int("limit", limit, 1, MAX_BATCH)
        deadline = None if wait is None else self._clock() + duration_ms("wait", wait) / 1000
        block_ms = duration_ms("block", block, low_ms=1)
        lease_ms = None if visibility is None else duration_ms("visibility", visibility, low_ms=1)
        while True:
            if self._fetcher.owes:
                yield from self._fetcher.give_back()
            reading = yield from self._resolve(topics)
            left_ms = None if deadline is None else int((deadline - self._clock()) * 1000)
            wait_ms = None if left_ms is None or left_ms <= 0 else min(left_ms, block_ms)
            # One limit is for all topics: large messages of one must not hold up another's small ones.
            most = max(map(self.most_at_once, topics))
            each = max(1, min(limit, most) // reading.widest)
            # The server may hand them out at any time from now on.
            leased_at = self._clock()
            try:
                batches = yield consuming.read(reading.shards, self.group, self.name, limit=each, block_ms=wait_ms)
            except NoGroup:
                self._joined.clear()
                self._reading = None
                continue
            taken, passed_over = yield from self._fetch(reading.layouts, batches, leased_at, lease_ms)
            # Behind what is passed over there may be more.
            if taken.deliveries or (wait_ms is None and not passed_over):
                return taken

    def most_at_once(self, topic: str) -> int:
        """How many messages of a topic one read should bring: few of those that are large."""
        return self._fetcher.most(topic) or MAX_BATCH

    def knows_size(self, topic: str) -> bool:
        """Whether messages of a topic have been fetched."""
        return self._fetcher.most(topic) is not None

    def _resolve(self, topics: Sequence[str]) -> Flow[Reading]:
        layouts = yield from self._topics.resolve_each(topics)
        if self._reading and layouts == self._reading.layouts:
            return self._reading
        shards = [keys for layout in layouts.values() for keys in layout.served]
        joining = [layout for layout in layouts.values() if not self._joined.issuperset(layout.served)]
        if joining:
            yield from groups.join(joining, self.group)
            self._joined.update(keys for layout in joining for keys in layout.served)
        self._reading = Reading(layouts, shards, max(len(layout.served) for layout in layouts.values()))
        return self._reading

    def _fetch(
        self,
        layouts: dict[str, Layout],
        batches: list[tuple[ShardKeys, list[Entry]]],
        leased_at: float,
        lease_ms: int | None,
    ) -> Flow[tuple[ReadResult, bool]]:
        """Deliveries of what was read, and whether any of it was passed over."""
        if not batches:
            return ReadResult([], leased_at), False
        marked: dict[ShardKeys, str] = {}
        if self._marking:
            # What takes several round trips may not arrive at all: it begins once it is there.
            batches, marked = self._marking.divide(batches, at_once=self._fetcher.fits(batches))
        marks = [self._mark_entry(keys, entry) for keys, entry in marked.items()]
        fetched, leased_at = yield from self._fetcher.fetch(layouts, batches, leased_at, marks)
        of_shards: dict[ShardKeys, list[Delivery]] = {}
        calls: list[Call[Any]] = []
        passed_over = False
        for keys, entries, records, now_ms in fetched:
            policy = layouts[keys.topic].policy
            found = sort_entries(keys, self.group, entries, records, now_ms)
            of_shards.setdefault(keys, []).extend(found.deliveries)
            passed_over |= bool(found.pass_over or found.unreadable)
            if found.pass_over:
                calls.append(consuming.pass_over(keys, self.group, found.pass_over, policy))
            if found.unreadable:
                calls.append(consuming.nack(keys, self.group, found.unreadable, policy))
            if lease_ms is not None and found.deliveries:
                held = [delivery.entry for delivery in found.deliveries]
                calls.append(consuming.extend(keys, self.group, self.name, held, policy, lease_ms=lease_ms))
        if calls:
            yield from self._fetcher.finish(fetched, calls)
        deliveries = [one for keys, found in of_shards.items() for one in check_mark(found, marked.get(keys))]
        return ReadResult(deliveries, leased_at), passed_over

    def mark_beginnings(self, marking: Marking | None = None) -> None:
        """From now on marks at the server what begins."""
        self.name = self._fetcher.consumer = self.name.removesuffix(MARKING) + MARKING
        self._marking = marking

    def mark(self, marks: Sequence[tuple[Delivery, Begun]]) -> Flow[None]:
        """Tells the server whether deliveries have begun, which renews their leases. The latest mark of each holds."""
        yield [self._mark(delivery, begun) for delivery, begun in marks]

    def _mark(self, delivery: Delivery, begun: Begun) -> Call[bool]:
        return self._mark_entry(self._keys[delivery.topic, delivery.shard], delivery.entry.entry, begun)

    def _mark_entry(self, keys: ShardKeys, entry: str, begun: Begun = Begun.YES) -> Call[bool]:
        return mark(keys, self.group, self.name, [entry], begun)

    def ack(self, deliveries: Sequence[Delivery]) -> Flow[list[AckOutcome]]:
        """Acks deliveries. Result: one outcome for each."""

        def calls(keys: ShardKeys, policy: Policy, batch: Sequence[Delivery]) -> Call[list[AckOutcome]]:
            return consuming.ack(keys, self.group, [delivery.entry for delivery in batch], policy)

        return (yield from self._settle(deliveries, calls))

    def nack(
        self, deliveries: Sequence[Delivery], *, delay: Duration | None, error: str, rejected: bool = False
    ) -> Flow[list[NackOutcome]]:
        """Gives deliveries up. Result: one outcome for each."""
        delay_ms = None if delay is None else duration_ms("delay", delay)
        nacks = [(delivery, Nack(delivery.entry, error, delay_ms, rejected)) for delivery in deliveries]
        return (yield from self.nack_each(nacks))

    def nack_each(self, nacks: Sequence[tuple[Delivery, Nack]]) -> Flow[list[NackOutcome]]:
        """Gives deliveries up, each in its way. Result: one outcome for each."""
        ways = {delivery.place: nack for delivery, nack in nacks}

        def calls(
            keys: ShardKeys, policy: Policy, batch: Sequence[Delivery]
        ) -> Call[list[tuple[NackOutcome, int | None]]]:
            chosen = [ways[delivery.place] for delivery in batch]
            return consuming.nack(keys, self.group, chosen, policy)

        outcomes = yield from self._settle([delivery for delivery, _ in nacks], calls)
        return [outcome for outcome, _ in outcomes]

    def release(self, deliveries: Sequence[Delivery]) -> Flow[int]:
        """Gives deliveries back that have not begun, without spending an attempt. Result: how many."""
        batches = self._by_shard(deliveries)
        calls = [consuming.release(keys, self.group, [d.entry for _, d in batch]) for keys, batch in batches]
        return sum((yield from self._end(deliveries, calls)))

    def extend(self, deliveries: Sequence[Delivery], lease: Duration | None = None) -> Flow[list[bool]]:
        """Renews leases. Result: for each whether this consumer still has it."""
        lease_ms = None if lease is None else duration_ms("lease", lease, low_ms=1)

        def calls(keys: ShardKeys, policy: Policy, batch: Sequence[Delivery]) -> Call[list[bool]]:
            entries = [delivery.entry for delivery in batch]
            return consuming.extend(keys, self.group, self.name, entries, policy, lease_ms=lease_ms)

        return (yield from self._settle(deliveries, calls, ends=False))

    def visibilities_s(self, topics: Collection[str]) -> Flow[dict[str, float]]:
        """The topics' visibility timeouts, in seconds."""
        layouts = yield from self._topics.resolve_each(topics)
        return {topic: layout.policy.visibility_ms / 1000 for topic, layout in layouts.items()}

    def _settle(
        self,
        deliveries: Sequence[Delivery],
        call: Callable[[ShardKeys, Policy, Sequence[Delivery]], Call[list[T]]],
        *,
        ends: bool = True,
    ) -> Flow[list[T]]:
        """One call for each shard, all in one round trip; results in the order of the deliveries."""
        batches = list(self._by_shard(deliveries))
        # What is in hand does not wait for the registry, which may be at another server, one that is away.
        layouts = yield from self._topics.recall_each({keys.topic for keys, _ in batches})
        calls = [call(keys, layouts[keys.topic].policy, [delivery for _, delivery in batch]) for keys, batch in batches]
        replies: list[list[T]] = (yield from self._end(deliveries, calls)) if ends else (yield calls) if calls else []
        placed: dict[int, T] = {}
        for (_, batch), reply in zip(batches, replies, strict=True):
            for (position, _), result in zip(batch, reply, strict=True):
                placed[position] = result
        return [placed[position] for position in range(len(deliveries))]

    def _end(self, deliveries: Sequence[Delivery], calls: Sequence[Call[Any]]) -> Flow[list[Any]]:
        """Makes calls that end deliveries, and passes on the marks that go with them. Result: that of each call."""
        if not self._marking:
            return (yield calls) if calls else []
        heirs = self._marking.leave(deliveries)
        replies: list[Any] = yield [*(self._mark(heir, Begun.YES) for heir in heirs), *calls]
        self._marking.inherit(heirs)
        return replies[len(heirs) :]

    def _by_shard(self, deliveries: Sequence[Delivery]) -> Iterator[tuple[ShardKeys, list[tuple[int, Delivery]]]]:
        """The deliveries with their positions, at most `MAX_BATCH` at once."""
        for delivery in deliveries:
            if delivery.group != self.group:
                raise InvalidInput(
                    "delivery of group", delivery.group, f"this consumer is of group {self.group!r}; its are"
                )
        found: dict[tuple[str, str], list[tuple[int, Delivery]]] = defaultdict(list)
        for position, delivery in enumerate(deliveries):
            found[delivery.topic, delivery.shard].append((position, delivery))
        for (topic, shard), of_shard in found.items():
            keys = self._keys[topic, shard]
            for at in range(0, len(of_shard), MAX_BATCH):
                yield keys, of_shard[at : at + MAX_BATCH]
