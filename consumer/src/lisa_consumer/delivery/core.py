"""What a consumer does, without I/O: flows that `Consumer`, `AsyncConsumer` and `Worker` run."""

import math
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Protocol, TypeVar

from lisa_common.bodies import Codec
from lisa_common.errors import InvalidInput, NoGroup, OutcomeUnknown, UnknownTopic
from lisa_common.model.delivery import Delivery, Entry
from lisa_common.model.follow_up import FollowUps
from lisa_common.model.keys import ShardKeys
from lisa_common.model.needs import Optional
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_common.protocol import consuming, groups
from lisa_common.protocol.call import Call, Flow, IndependentCalls, Pause, cut, told_in_part
from lisa_common.protocol.consuming import AckOutcome, Nack, NackOutcome
from lisa_common.protocol.marking import MARKING, StartMark, mark
from lisa_common.protocol.registry import Topics
from lisa_common.protocol.triage import sort_entries
from lisa_common.validation import Duration, check_int, check_name, duration_ms
from lisa_consumer.delivery.arguments import check_delivery, error_text
from lisa_consumer.delivery.error_details import last_frames
from lisa_consumer.delivery.lost_reads import LostReads
from lisa_consumer.delivery.read_plan import KeysByPlace, ReadPlan, ReadResult
from lisa_consumer.delivery.record_fetcher import RecordFetcher
from lisa_consumer.metrics import METRICS, count_acks, count_deliveries, count_expired, count_nacks
from lisa_consumer.names import consumer_name

__all__ = ["MAX_BYTES", "Core", "Marks", "ReadPlan", "ReadResult", "follow_up_sizes"]

T = TypeVar("T")

_follow_ups_of = itemgetter(Delivery._fields.index("follow_ups"))

MAX_BATCH = 1_000  # most deliveries in one script call
MAX_BYTES = 2 * 1024 * 1024
"""Most bytes of messages that follow deliveries in one request, unless one alone has more."""

_HASTY, _POLL_S = 3, 0.1
"""Empty reads in a row, too soon, after which the server does not wait; and how often it is asked from then on."""

_REPEATS = 5
"""Most replies in a row that one read may lose, as when its server restarts again and again."""


class Marks(Protocol):
    """Which deliveries a worker marks as begun at the server; see `worker/start_marks.py`."""

    def choose(self, batches: Sequence[tuple[ShardKeys, list[Entry]]]) -> Mapping[ShardKeys, str]:
        """Returns the last entry of each shard to mark; that marks all before it."""

    def heirs(self, settled: Sequence[Delivery]) -> list[Delivery]:
        """Takes deliveries that are about to be settled. Returns those that get their marks."""

    def inherit(self, heirs: Sequence[Delivery]) -> None:
        """Takes deliveries that the server has marked in their place."""


class Core:
    """The flows of one consumer of a group."""

    may_follow = True
    """Whether messages may follow its deliveries: those are acked as they were read."""

    def __init__(
        self,
        prefix: str,
        group: str,
        name: str | None = None,
        *,
        codec: Codec | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.group = check_name("group", group)
        self.has_chosen_name = name is not None
        self.shown_name = consumer_name() if name is None else check_name("consumer", name)
        """The name that operators know."""
        self.name = self.shown_name
        """The name at the server."""
        self.topics = Topics(prefix)
        self.joined: set[ShardKeys] = set()
        """The shards in which this consumer has joined its group."""
        self._found: set[str] = set()
        """Topics that are read only while the registry has them."""
        self._unsure: set[str] = set()
        """Those of them that may have been dropped."""
        self._plan: ReadPlan | None = None
        self._keys = KeysByPlace(prefix)
        self._clock = clock
        self._records = RecordFetcher(self.group, self.name, clock)
        self._lost: LostReads | None = LostReads(self.group, clock)
        self._hasty = 0
        """Empty reads in a row that did not wait as long as they were to."""
        self._unanswered = 0
        """Reads in a row whose replies were lost."""
        self._marks: Marks | None = None
        self.own_policies: dict[str, Mapping[str, Any]] = {}
        """Fields of policies that hold for this consumer in place of the topics', by topic."""
        self.codec = codec
        """Encodes the bodies of messages that follow deliveries, in place of JSON."""
        self.app_release = ""
        """The release of the handlers, stored with failures."""
        self.ahead_ms = 0.0  # how far the server's clock is ahead of this machine's, by the latest read

    def read(
        self,
        topics: Sequence[str],
        *,
        limit: int,
        wait: Duration | None = None,
        block: Duration = 2.0,
        visibility: Duration | None = None,
    ) -> Flow[ReadResult]:
        """Reads up to `limit` deliveries of each topic, or one of each shard where a topic has more shards than that.

        Waits up to `wait` while there are none; None does not wait. One command waits no longer than `block`.
        `visibility` sets the length of the leases. Repeats a read whose reply is lost, except in a worker: what it has
        taken is given back first.
        """
        check_int("limit", limit, 1, MAX_BATCH)
        deadline = self._clock() + (0 if wait is None else duration_ms("wait", wait) / 1000)
        block_ms = duration_ms("block", block, low_ms=1)
        lease_ms = None if visibility is None else duration_ms("visibility", visibility, low_ms=1)
        while True:
            yield from self.give_back()
            plan = yield from self._resolve(topics)
            left_ms = math.ceil((deadline - self._clock()) * 1000)
            wait_ms = min(left_ms, block_ms) if left_ms > 0 else None
            # All topics share one limit: large messages of one must not hold up small ones of another.
            most = self._records.most_per_request(topics) or MAX_BATCH
            each = max(1, min(limit, most) // plan.widest)
            # The server may lease entries at any time from now on.
            leased_at = self._clock()
            read = yield from self._read_entries(plan, each, wait_ms)
            if read is None:
                continue
            layouts, batches = read
            if wait_ms is not None and not batches:
                yield from self._slow_down(wait_ms / 1000, self._clock() - leased_at)
            result, skipped = yield from self._fetch(layouts, batches, leased_at, lease_ms)
            # There may be more entries behind the skipped ones.
            if result.batches or (not skipped and self._clock() >= deadline):
                return result

    def _slow_down(self, wait_s: float, waited_s: float) -> Flow[None]:
        """Waits after an empty read in place of a server that answers much too soon, and not by accident."""
        self._hasty = self._hasty + 1 if waited_s < wait_s / 2 else 0
        if self._hasty >= _HASTY:
            yield Pause(min(_POLL_S, wait_s - waited_s), Optional.BLOCK)

    def _read_entries(
        self, plan: ReadPlan, limit: int, wait_ms: int | None
    ) -> Flow[tuple[dict[str, Layout], list[tuple[ShardKeys, list[Entry]]]] | None]:
        """Reads entries, and the layouts of their topics; None if that has to be tried again."""
        try:
            with nullcontext() if self._lost is None else self._lost.watch(plan.shards, wait_ms):
                batches = yield consuming.read(plan.shards, self.group, self.name, limit=limit, block_ms=wait_ms)
                layouts = yield from self.topics.resolve_sent({keys.topic for keys, _ in batches})
        except NoGroup:
            self.joined.clear()
            self._plan = None
            self._unsure.update(filter(self._ends_with_drop, plan.layouts))
            return None
        except OutcomeUnknown:
            self._unanswered += 1
            if self._lost is not None and self._unanswered <= _REPEATS:
                return None
            self._unanswered = 0
            raise
        self._unanswered = 0
        if self._lost is not None:
            self._lost.note(batches)
        if self._records.has_unfetched:
            self._records.keep(batches)
        return layouts, batches

    def leave(self, deliveries: Sequence[Delivery]) -> None:
        """Takes note of deliveries that have arrived for nobody: `give_back`, and the next read, release them."""
        batches = [(keys, [each.entry for _, each in batch]) for keys, batch in self._by_shard(deliveries)]
        self._records.note_unfetched(batches)

    def give_back(self) -> Flow[None]:
        """Releases what reads have taken that were given up, or whose replies were lost; no attempt is spent.

        Its errors are only logged: the next read tries again.
        """
        if self._lost:
            self._records.note_unfetched((yield from self._lost.find(self.name)))
        if self._records.has_unfetched:
            yield from self._records.release()

    def max_per_read(self, topic: str) -> int:
        """How many messages of a topic one read should bring: few if they are large."""
        return min(self._records.most_per_request([topic]) or MAX_BATCH, MAX_BATCH)

    def knows_size(self, topic: str) -> bool:
        """Whether the size of messages of a topic is known, as some have been fetched."""
        return self._records.most_per_request([topic]) is not None

    def _ends_with_drop(self, topic: str) -> bool:
        """Whether the consumer stops reading this topic once it is dropped. It joins any other dropped topic again."""
        return topic in self._found

    def add_found(self, topics: Sequence[str]) -> None:
        """Takes topics that were found by a pattern: those are read only while the registry has them."""
        self._found.update(topics)
        self._unsure.update(topics)

    def forget(self, topic: str) -> None:
        """Forgets a topic. Call it once the topic is not read, and none of its deliveries is held."""
        self._found.discard(topic)
        self._unsure.discard(topic)
        self.own_policies.pop(topic, None)
        self.joined -= {keys for keys in self.joined if keys.topic == topic}
        for known in (self._keys, self._records, self.topics):
            known.forget(topic)

    def _check_declared(self, topics: Collection[str]) -> Flow[None]:
        """Raises UnknownTopic for one that was dropped under a read: a new group of it would never be dropped."""
        undeclared = yield from self.topics.find_undeclared(topics)
        self._unsure.difference_update(set(topics).difference(undeclared))
        if undeclared:
            raise UnknownTopic(undeclared[0])

    def _resolve(self, topics: Sequence[str]) -> Flow[ReadPlan]:
        if unsure := self._unsure.intersection(topics):
            yield from self._check_declared(unsure)
        layouts = yield from self.topics.resolve_each(topics)
        if self._plan and layouts == self._plan.layouts and self._clock() < self._plan.until:
            return self._plan
        joining = [layout for layout in layouts.values() if not self.joined.issuperset(layout.served)]
        lacking = set[ShardKeys]()
        if joining:
            joined, lacking = yield from groups.join_each(joining, self.group, self.name)
            if lacking.issuperset(keys for layout in layouts.values() for keys in layout.served):
                # There is nothing to read meanwhile, as where a full server makes no group.
                yield from groups.join(joining, self.group)
                joined, lacking = lacking, set()
            self.joined |= joined
            if self.joined and self.name.endswith(MARKING):
                yield from groups.show_alive([*self.joined], self.group, self.name)
        self._plan = ReadPlan.of(layouts, self.joined, lacking, self._clock())
        return self._plan

    def _fetch(
        self,
        layouts: dict[str, Layout],
        batches: list[tuple[ShardKeys, list[Entry]]],
        leased_at: float,
        lease_ms: int | None,
    ) -> Flow[tuple[ReadResult, bool]]:
        """The deliveries of entries that were read, and whether any entry was skipped."""
        if not batches:
            return ReadResult([], leased_at), False
        # Records that take several round trips may not arrive at all: their deliveries begin once they are here.
        marked = self._marks.choose(batches) if self._marks and self._records.fits(batches) else {}
        marks = [self._mark_entry(keys, entry) for keys, entry in marked.items()]
        fetched, leased_at = yield from self._records.fetch(layouts, batches, leased_at, marks)
        of_shards: dict[ShardKeys, list[Delivery]] = {}
        calls: list[tuple[Call[Any], Callable[[Any], None]]] = []
        skipped = False
        for keys, entries, records, now_ms in fetched:
            policy = self._own_policy(keys.topic, layouts[keys.topic].policy)
            self.ahead_ms = now_ms - time.time() * 1000
            follow_ups = FollowUps(layouts[keys.topic], self.codec) if self.may_follow else None
            triage = sort_entries(
                *(keys, self.group, entries, records, now_ms), max_retries=policy.max_retries, follow_ups=follow_ups
            )
            count_deliveries(triage.deliveries, now_ms)
            if triage.deliveries:
                of_shards.setdefault(keys, []).extend(triage.deliveries)
            skipped |= bool(triage.skip or triage.unreadable)
            if triage.skip:
                calls.append((consuming.discard(keys, self.group, triage.skip, policy), partial(count_expired, policy)))
            if triage.unreadable:
                calls.append((consuming.nack(keys, self.group, triage.unreadable, policy), count_nacks))
            if lease_ms is not None and triage.deliveries:
                held = [delivery.entry for delivery in triage.deliveries]
                renewal = consuming.extend(keys, self.group, self.name, held, policy, lease_ms=lease_ms)
                calls.append((renewal, lambda _: None))
        if calls:
            yield from self._records.finish(fetched, calls)
        counted = [(batch, _count_marked(batch, marked.get(keys))) for keys, batch in of_shards.items()]
        return ReadResult(counted, leased_at), skipped

    def enable_marks(self, marks: Marks | None = None) -> None:
        """Begins the life of a worker: it marks begun deliveries at the server, and registers in groups.

        Each life has a name of its own: its marks must not cover what an earlier one, which has crashed, had not begun.
        """
        self.name = self._records.consumer = f"{self.shown_name}-{secrets.token_hex(4)}{MARKING}"
        self._marks = marks
        # What a worker has not begun costs no attempt when its lease runs out.
        self._lost = None

    def mark(self, marks: Sequence[tuple[Delivery, StartMark]]) -> Flow[None]:
        """Marks whether deliveries have begun, and renews their leases. The latest mark of each counts."""
        yield [self._mark(delivery, begun) for delivery, begun in marks]

    def _mark(self, delivery: Delivery, begun: StartMark) -> Call[bool]:
        return self._mark_entry(self._keys[delivery.topic, delivery.shard], delivery.entry.entry, begun)

    def _mark_entry(self, keys: ShardKeys, entry: str, begun: StartMark = StartMark.YES) -> Call[bool]:
        return mark(keys, self.group, self.name, [entry], begun)

    def ack(self, deliveries: Sequence[Delivery]) -> Flow[list[AckOutcome]]:
        """Acks deliveries, and sends what follows them. Returns one outcome for each."""
        sizes = _close_follow_ups(deliveries)
        if any(sizes):
            return (yield from told_in_part(self._ack_followed(deliveries, sizes)))
        outcomes = yield from self._call_shards(deliveries, self._ack)
        count_acks(outcomes)
        return outcomes

    def _ack_followed(self, deliveries: Sequence[Delivery], sizes: Sequence[int]) -> Flow[list[AckOutcome]]:
        """Acks deliveries, some with what follows them, by one request after another: a link may be slow."""
        outcomes: list[AckOutcome] = []
        for part in cut(sizes, MAX_BATCH, MAX_BYTES):
            apart = {at for at, size in enumerate(sizes[part]) if size}
            of_part = yield from self._call_shards(deliveries[part], self._ack, apart=apart)
            count_acks(of_part)
            outcomes += of_part
        return outcomes

    def _ack(self, keys: ShardKeys, policy: Policy, batch: Sequence[Delivery]) -> Call[list[AckOutcome]]:
        if not batch[0].follow_up:
            return consuming.ack(keys, self.group, [delivery.entry for delivery in batch], policy)
        followed = [
            (d.entry, found.outgoing) for d in batch if d.follow_ups and (found := d.follow_ups.get(d.entry.entry))
        ]
        return consuming.follow(keys, self.group, followed, policy)

    def nack(
        self, deliveries: Sequence[Delivery], *, delay: Duration | None, error: object, rejected: bool = False
    ) -> Flow[list[NackOutcome]]:
        """Nacks deliveries. Returns one outcome for each."""
        delay_ms = None if delay is None else duration_ms("delay", delay)
        text = error_text(error)
        trace = last_frames(error) if isinstance(error, BaseException) else ()
        nacks = [(d, Nack(check_delivery(d).entry, text, delay_ms, rejected, trace=trace)) for d in deliveries]
        return [outcome for outcome, _ in (yield from self.nack_each(nacks))]

    def nack_each(self, nacks: Sequence[tuple[Delivery, Nack]]) -> Flow[list[tuple[NackOutcome, int | None]]]:
        """Nacks deliveries, each with a nack of its own. Returns for each the outcome, and a retry's due time in ms."""
        by_place = {delivery.place: nack for delivery, nack in nacks}

        def calls(keys: ShardKeys, policy: Policy, batch: Sequence[Delivery]) -> Call[Any]:
            chosen = [by_place[delivery.place] for delivery in batch]
            own = self._own_policy(keys.topic, policy)
            return consuming.nack(keys, self.group, chosen, own, release=self.app_release)

        results = yield from self._call_shards([delivery for delivery, _ in nacks], calls)
        count_nacks(results)
        return results

    def _own_policy(self, topic: str, policy: Policy) -> Policy:
        own = self.own_policies.get(topic)
        return Policy.of({**policy.model_dump(exclude_unset=True), **own}) if own else policy

    def release(self, deliveries: Sequence[Delivery], shut_ms: Mapping[str, int] | None = None) -> Flow[int]:
        """Releases deliveries without spending an attempt. Returns how many.

        Shuts the doors of the topics in `shut_ms` for so long: all shards, as a handler that has to wait meets the same
        limit with messages of each.
        """
        shut_ms = shut_ms or {}
        layouts = yield from self.topics.recall_each(shut_ms)
        doors = [consuming.shut_door(keys, ms) for topic, ms in shut_ms.items() if ms for keys in layouts[topic].served]
        calls = [
            consuming.release(keys, self.group, [d.entry for _, d in batch], shut_ms=shut_ms.get(keys.topic, 0))
            for keys, batch in self._by_shard(deliveries)
        ]
        replies = yield from self._end(deliveries, [*doors, *calls])
        released: int = sum(replies[len(doors) :])
        METRICS.count("lisa_settled_total", "released", by=released)
        return released

    def extend(self, deliveries: Sequence[Delivery], lease: Duration | None = None) -> Flow[list[bool]]:
        """Renews leases. Returns for each, whether this consumer still has it."""
        lease_ms = None if lease is None else duration_ms("lease", lease, low_ms=1)

        def calls(keys: ShardKeys, policy: Policy, batch: Sequence[Delivery]) -> Call[list[bool]]:
            entries = [delivery.entry for delivery in batch]
            return consuming.extend(keys, self.group, self.name, entries, policy, lease_ms=lease_ms)

        return (yield from self._call_shards(deliveries, calls, ends=False))

    def find_aborted(self, deliveries: Sequence[Delivery]) -> Flow[list[bool]]:
        """Whether an operator has aborted each of these deliveries, as far as the nodes of a Cluster answer."""
        batches = list(self._by_shard(deliveries))
        replies = yield IndependentCalls(
            consuming.find_aborted(keys, self.group, [delivery.entry for _, delivery in batch])
            for keys, batch in batches
        )
        answered = [(batch, reply) for (_, batch), reply in zip(batches, replies, strict=True) if type(reply) is list]
        aborted = {at for batch, reply in answered for (at, _), each in zip(batch, reply, strict=True) if each}
        return [at in aborted for at in range(len(deliveries))]

    def visibilities_s(self, topics: Collection[str]) -> Flow[dict[str, float]]:
        """The visibility timeouts of topics, in seconds."""
        layouts = yield from self.topics.resolve_each(topics)
        return {topic: layout.policy.visibility_ms / 1000 for topic, layout in layouts.items()}

    def _call_shards(
        self,
        deliveries: Sequence[Delivery],
        call: Callable[[ShardKeys, Policy, Sequence[Delivery]], Call[list[T]]],
        *,
        ends: bool = True,
        apart: Collection[int] = (),
    ) -> Flow[list[T]]:
        """Makes one call for each shard, all in one round trip. Returns in the order of the deliveries.

        Those at the positions in `apart` get calls of their own.
        """
        batches = list(self._by_shard(deliveries, apart))
        # Held deliveries do not wait for the registry: another server may hold it, and that one may be away.
        layouts = yield from self.topics.recall_each({keys.topic for keys, _ in batches})
        calls = [call(keys, layouts[keys.topic].policy, [delivery for _, delivery in batch]) for keys, batch in batches]
        replies: list[list[T]] = (yield from self._end(deliveries, calls)) if ends else (yield calls) if calls else []
        if len(replies) == 1:
            return replies[0]
        placed: dict[int, T] = {}
        for (_, batch), reply in zip(batches, replies, strict=True):
            for (position, _), result in zip(batch, reply, strict=True):
                placed[position] = result
        return [placed[position] for position in range(len(deliveries))]

    def _end(self, deliveries: Sequence[Delivery], calls: Sequence[Call[Any]]) -> Flow[list[Any]]:
        """Makes calls that end deliveries, and passes their marks on. Returns the result of each call."""
        if not self._marks:
            return (yield calls) if calls else []
        heirs = self._marks.heirs(deliveries)
        replies: list[Any] = yield [*(self._mark(heir, StartMark.YES) for heir in heirs), *calls]
        # A server may refuse a mark: then its heir is marked by the next request.
        self._marks.inherit([heir for heir, is_marked in zip(heirs, replies, strict=False) if is_marked])
        return replies[len(heirs) :]

    def _by_shard(
        self, deliveries: Sequence[Delivery], apart: Collection[int] = ()
    ) -> Iterator[tuple[ShardKeys, list[tuple[int, Delivery]]]]:
        """Deliveries of each shard with their positions, at most `MAX_BATCH` in one batch."""
        by_shard: dict[tuple[str, str, bool], list[tuple[int, Delivery]]] = defaultdict(list)
        for position, delivery in enumerate(deliveries):
            if type(delivery) is not Delivery:
                check_delivery(delivery)
            if delivery.group != self.group:
                raise InvalidInput("a delivery's group", delivery.group, f"{self.group!r}, the group of this consumer")
            by_shard[delivery.topic, delivery.shard, position in apart].append((position, delivery))
        for (topic, shard, _), of_shard in by_shard.items():
            for at in range(0, len(of_shard), MAX_BATCH):
                yield self._keys[topic, shard], of_shard[at : at + MAX_BATCH]


def _count_marked(deliveries: Sequence[Delivery], marked: str | None) -> int:
    """How many deliveries of a shard count as begun: none, if the entry that was to carry the mark became none."""
    if marked is None:
        return 0
    return next((number for number, each in enumerate(deliveries, 1) if each.entry.entry == marked), 0)


def _close_follow_ups(deliveries: Sequence[Delivery]) -> list[int]:
    """Makes `then` refuse further messages. Returns the bytes of the message that follows each delivery; 0 for none."""
    if set(map(type, deliveries)) != {Delivery}:
        return []
    for follow_ups, of_read in groupby(deliveries, _follow_ups_of):
        if follow_ups is not None:
            follow_ups.close(delivery.entry.entry for delivery in of_read)
    return follow_up_sizes(deliveries)


def follow_up_sizes(deliveries: Sequence[Delivery]) -> list[int]:
    """The bytes of the message that follows each delivery; 0 for none."""
    # Mostly there are none: deliveries that were read together share a `FollowUps`, and the loops are in C.
    if not any(set(map(_follow_ups_of, deliveries))):
        return [0] * len(deliveries)
    found = [d.follow_ups.get(d.entry.entry) if d.follow_ups else None for d in deliveries]
    return [len(each.outgoing.content) if each else 0 for each in found]
