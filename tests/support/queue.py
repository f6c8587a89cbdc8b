"""One topic under the control of a test: every script as a verb, a clock that the test sets, and all keys to read.

The clock starts in 2001. Scripts take its time as `now_ms`; only leases are measured by the server's own clock, which
is why every read sets them to the test's time. That works for times in the server's past, without sleeping. Entry
ids have the server's clock, too: a message sent in its future counts as younger than its own entries.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lisa_common.client.connection import Connection
from lisa_common.model.delivery import Delivery, Entry
from lisa_common.model.failure import Failure, read_failure
from lisa_common.model.key import KEY_HEADER
from lisa_common.model.keys import ShardKeys
from lisa_common.model.limits import limits_of
from lisa_common.model.message import Outgoing, Replacement
from lisa_common.model.policy import LIMIT_FIELDS, Policy
from lisa_common.model.record import VERSION, pack_content
from lisa_common.model.sharding import Layout
from lisa_common.protocol import consuming, managing, producing
from lisa_common.protocol.call import Call, command
from lisa_common.protocol.consuming import AckOutcome, Nack, NackOutcome
from lisa_common.protocol.fetching import fetch
from lisa_common.protocol.managing import AbortOutcome, Promoted, Reclaimed, Swept, Trimmed
from lisa_common.protocol.marking import StartMark, mark
from lisa_common.protocol.producing import CancelOutcome, Found, RescheduleOutcome
from lisa_common.protocol.triage import sort_entries
from lisa_common.validation import headers_json
from lisa_manager.topic_limits import read_limits

__all__ = ["EPOCH_MS", "PAUSE_MS", "STEADY", "Contents", "GroupState", "Queue", "ends_in", "outgoing"]

EPOCH_MS = 1_000_000_000_000
STEADY = Policy(backoff_jitter=0)
"""The default policy without jitter, so that a test knows when a retry is due."""

PAUSE_MS = 1_000
"""A script may pause for so long on a busy machine. Before version 7.2, the clock of Redis runs on meanwhile."""

_ALL = 100_000


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group as Redis has it."""

    last: str
    pending: dict[str, str]
    """Entry → consumer."""


@dataclass(frozen=True, slots=True)
class Contents:
    """Everything that a topic's keys hold."""

    waiting: dict[str, float]
    records: dict[str, bytes]
    expiring: dict[str, float]
    finished: dict[str, float]
    withdrawn: dict[str, float]
    """Messages that were cancelled or purged soon after they were sent, which a repeat of the send must not undo."""
    owed: dict[str, str]
    retry: dict[str, float]
    failures: dict[str, Failure | None]
    garbage: dict[str, float]
    stream: dict[str, dict[str, str]]
    """Entry → its fields."""
    groups: dict[str, GroupState]
    busy: dict[str, str]
    slots: list[str]
    parked: list[str]

    @property
    def ready_ids(self) -> list[str]:
        """The message ids of the stream's entries, in order."""
        return [fields["id"] for fields in self.stream.values()]

    @property
    def left(self) -> list[str]:
        """The keys that hold anything, the stream apart: none once everything is done and forgotten."""
        names = (
            *("waiting", "records", "expiring", "finished", "owed", "retry", "failures", "garbage"),
            *("busy", "slots", "parked"),
        )
        return [name for name in names if getattr(self, name)]


def outgoing(
    id: str,
    *,
    due: str = "+0",
    body: bytes = b"body",
    ttl_ms: int | None = None,
    max_retries: int | None = None,
    priority: int = 0,
    headers: dict[str, str] | None = None,
    key: str | None = None,
) -> Outgoing:
    """A message as a producer hands it to the send script."""
    all_headers = (headers or {}) if key is None else {KEY_HEADER: key, **(headers or {})}
    content = pack_content(
        body, ttl_ms=ttl_ms, max_retries=max_retries, priority=priority, headers=headers_json(all_headers)
    )
    return Outgoing(id, due, content)


def ends_in(reclaimed: Reclaimed, ms: int) -> bool:
    """Whether the first lease ends in so many ms, or up to `PAUSE_MS` sooner."""
    return reclaimed.next_in_ms is not None and 0 <= ms - reclaimed.next_in_ms <= PAUSE_MS


@dataclass
class Queue:
    """A topic, its policy, and the time."""

    connection: Connection
    keys: ShardKeys
    policy: Policy = STEADY
    now_ms: int = EPOCH_MS

    def advance(self, ms: int) -> None:
        """Lets time pass."""
        self.now_ms += ms

    def catch_up(self) -> None:
        """Sets the clock to the server's: later messages are younger than every entry."""
        before: int = self._do(consuming.server_time())
        while self.now_ms <= before:
            self.now_ms = self._do(consuming.server_time())

    def _do(self, call: Call[Any]) -> Any:
        return self.connection.call(call)

    # Producers

    def send(self, id: str, **options: Any) -> int:
        """Sends a message, due now unless `due` says otherwise. Returns its due time, 0 for a duplicate."""
        return self.send_all([outgoing(id, **options)])[0]

    def send_as_before(self, id: str, due_ms: int, **options: Any) -> None:
        """Stores a ready message as the previous release did, which kept due times in the past."""
        message = outgoing(id, **options)
        stamp = bytes((VERSION,)) + self.now_ms.to_bytes(6, "big") + due_ms.to_bytes(6, "big")
        self._do(command("HSET", self.keys.of("messages"), id, stamp + message.content))
        if ttl_ms := options.get("ttl_ms"):
            self._do(command("ZADD", self.keys.of("expiring"), due_ms + ttl_ms, id))
        self._do(command("XADD", self.keys.of("ready"), "*", "id", id, "due", due_ms, "n", 1))

    def send_all(self, messages: Sequence[Outgoing]) -> list[int]:
        """Sends messages in one call."""
        dues: list[int] = self._do(producing.send(self.keys, messages, repeatable=False, now_ms=self.now_ms))
        return dues

    def replace(self, id: str, *, tried_ms: float | None = None, **options: Any) -> int:
        """Sends a message in place of the one with its id, or repeats that send, first tried so long ago.

        Returns its due time, negative where it replaced another, 0 for a duplicate.
        """
        message = Replacement(*outgoing(id, **options))
        if tried_ms is not None:
            message = message._replace(due=f"~{tried_ms} {message.due}")
        dues: list[int] = self._do(producing.send(self.keys, [message], repeatable=False, now_ms=self.now_ms))
        return dues[0]

    def cancel(self, *ids: str, sent_ms: int | str = "") -> list[CancelOutcome]:
        """Cancels messages, with `sent_ms` only those of that time."""
        outcomes: list[CancelOutcome] = self._do(producing.cancel(self.keys, ids, sent_ms=sent_ms, now_ms=self.now_ms))
        return outcomes

    def abort(self, id: str) -> AbortOutcome:
        """Aborts the deliveries of a message."""
        outcome: AbortOutcome = self._do(managing.abort(self.keys, id, now_ms=self.now_ms))
        return outcome

    def reschedule(self, *dues: tuple[str, str], sent_ms: int | str = "") -> list[tuple[RescheduleOutcome, int]]:
        """Gives messages, as pairs of id and due, new due times, with `sent_ms` only to those of that time."""
        outcomes: list[tuple[RescheduleOutcome, int]] = self._do(
            producing.reschedule(self.keys, dues, sent_ms=sent_ms, now_ms=self.now_ms)
        )
        return outcomes

    def find(self, id: str) -> Found | None:
        """Where a message stands."""
        found: Found | None = self._do(producing.find(self.keys, id, now_ms=self.now_ms))
        return found

    # Consumers

    def join(self, *groups: str) -> list[bool]:
        """Makes groups that are not there."""
        return [self._do(consuming.join(self.keys, group)) for group in groups]

    def take(self, group: str, consumer: str = "c", *, limit: int = _ALL) -> list[Entry]:
        """The first half of a read: entries become pending, nobody looks at their messages."""
        call = consuming.read([self.keys], group, consumer, limit=limit, block_ms=None)
        entries = [entry for _, batch in self._do(call) for entry in batch]
        if entries:
            kept = self._extend(group, consumer, entries, None)
            assert all(kept)
        return entries

    def judge(self, group: str, entries: Sequence[Entry]) -> list[Delivery]:
        """The second half of a read: the messages of entries; those that must not be delivered are settled."""
        if not entries:
            return []
        records = self.connection.call(fetch(self.keys, [entry.id or "" for entry in entries]))
        assert not isinstance(records, str)
        found = sort_entries(self.keys, group, entries, records, self.now_ms)
        if found.skip:
            self.discard(group, found.skip)
        if found.unreadable:
            self._do(consuming.nack(self.keys, group, found.unreadable, self.policy, now_ms=self.now_ms))
        return found.deliveries

    def read(self, group: str, consumer: str = "c", *, limit: int = _ALL) -> list[Delivery]:
        """Reads as a consumer does."""
        return self.judge(group, self.take(group, consumer, limit=limit))

    def discard(self, group: str, entries: Sequence[Entry]) -> int:
        """Passes over entries. Returns how many messages had expired."""
        expired: int = self._do(consuming.discard(self.keys, group, entries, self.policy, now_ms=self.now_ms))
        return expired

    def ack(self, *deliveries: Delivery) -> list[AckOutcome]:
        """Acks deliveries of one group."""
        entries = [delivery.entry for delivery in deliveries]
        call = consuming.ack(self.keys, deliveries[0].group, entries, self.policy, now_ms=self.now_ms)
        outcomes: list[AckOutcome] = self._do(call)
        return outcomes

    def follow(self, delivery: Delivery, message: Outgoing) -> str:
        """Acks a delivery together with the message that follows it."""
        followed = [(delivery.entry, message)]
        call = consuming.follow(self.keys, delivery.group, followed, self.policy, now_ms=self.now_ms)
        [outcome] = self._do(call)
        return str(outcome)

    def nack(
        self,
        *deliveries: Delivery,
        error: str = "",
        delay_ms: int | None = None,
        rejected: bool = False,
        snoozed: bool = False,
    ) -> list[tuple[NackOutcome, int | None]]:
        """Nacks deliveries of one group, all in the same way."""
        nacks = [Nack(delivery.entry, error, delay_ms, rejected, snoozed) for delivery in deliveries]
        call = consuming.nack(self.keys, deliveries[0].group, nacks, self.policy, now_ms=self.now_ms)
        outcomes: list[tuple[NackOutcome, int | None]] = self._do(call)
        return outcomes

    def release(self, *deliveries: Delivery, shut_ms: int = 0) -> int:
        """Releases deliveries of one group, and shuts the door for so long. Returns their number."""
        entries = [delivery.entry for delivery in deliveries]
        call = consuming.release(self.keys, deliveries[0].group, entries, shut_ms=shut_ms, now_ms=self.now_ms)
        released: int = self._do(call)
        return released

    def extend(self, consumer: str, *deliveries: Delivery, lease_ms: int | None = None) -> list[bool]:
        """Renews leases of one group."""
        return self._extend(deliveries[0].group, consumer, [d.entry for d in deliveries], lease_ms)

    def lend(self, consumer: str, *deliveries: Delivery, lease_ms: int) -> list[bool]:
        """Marks deliveries of one group as lent, for so long."""
        group, entries = deliveries[0].group, [delivery.entry for delivery in deliveries]
        call = consuming.extend(
            *(self.keys, group, consumer, entries, self.policy), lease_ms=lease_ms, lent=True, now_ms=self.now_ms
        )
        kept: list[bool] = self._do(call)
        return kept

    def _extend(self, group: str, consumer: str, entries: Sequence[Entry], lease_ms: int | None) -> list[bool]:
        call = consuming.extend(self.keys, group, consumer, entries, self.policy, lease_ms=lease_ms, now_ms=self.now_ms)
        kept: list[bool] = self._do(call)
        return kept

    def mark(self, begun: StartMark, *deliveries: Delivery, consumer: str = "worker~") -> bool:
        """Marks deliveries of one group as begun, or not, with leases that begin now."""
        entries = [delivery.entry for delivery in deliveries]
        call = mark(self.keys, deliveries[0].group, consumer, [entry.entry for entry in entries], begun)
        marked: bool = self._do(call)
        self._extend(deliveries[0].group, consumer, entries, None)
        return marked

    # The manager

    def promote(self, *, limit: int = 1_000, with_dues: bool = False) -> Promoted:
        """Promotes one batch."""
        call = managing.promote(self.keys, limit=limit, now_ms=self.now_ms, with_dues=with_dues)
        promoted: Promoted = self._do(call)
        return promoted

    def reclaim(
        self, group: str, *, cursor: str = "0-0", limit: int = 1_000, visibility_ms: int | None = None
    ) -> Reclaimed:
        """Takes one step of reclaim."""
        call = managing.reclaim(
            *(self.keys, group, self.policy),
            cursor=cursor,
            limit=limit,
            visibility_ms=visibility_ms,
            now_ms=self.now_ms,
        )
        reclaimed: Reclaimed = self._do(call)
        return reclaimed

    def sweep(self, *, limit: int = 1_000) -> Swept:
        """Sweeps one batch."""
        swept: Swept = self._do(managing.sweep(self.keys, self.policy, limit=limit, now_ms=self.now_ms))
        return swept

    def trim(self, *, spent_ms: int = 3_600_000, silent_ms: int | None = None) -> Trimmed:
        """Trims the stream."""
        trimmed: Trimmed = self._do(managing.trim(self.keys, spent_ms=spent_ms, silent_ms=silent_ms))
        return trimmed

    def limit(self, **fields: Any) -> None:
        """Sets limits, and no others."""
        others = self.policy.model_dump(exclude_unset=True, exclude=set(LIMIT_FIELDS))
        self.policy = Policy.of(others | fields)
        before: str = self._do(read_limits(self.keys))
        layout = Layout(self.keys.prefix, self.keys.topic, self.policy)
        assert self._do(managing.set_door(self.keys, before, limits_of(layout, self.keys)))

    def shut(self, ms: int) -> None:
        """Shuts the door for a while."""
        self._do(consuming.shut_door(self.keys, ms, now_ms=self.now_ms))

    def door(self) -> dict[str, str]:
        """What the door holds."""
        fields: dict[str, bytes] = self._do(command("HGETALL", self.keys.of("door"), decode=_pairs))
        return {name: value.decode() for name, value in fields.items()}

    def tidy(self, *, mend: bool = True) -> int:
        """Tidies the slots of keys. Returns how many were wrong."""
        cursor, total = b"", 0
        while True:
            page: tuple[bytes, int] = self._do(managing.tidy_slots(self.keys, cursor, mend=mend))
            cursor, total = page[0], total + page[1]
            if not cursor:
                return total

    def replay(self, *copies: str) -> list[str]:
        """Replays dead letters."""
        outcomes: list[str] = self._do(managing.replay(self.keys, copies, now_ms=self.now_ms))
        return outcomes

    def purge(self, *copies: str) -> int:
        """Purges dead letters."""
        purged: int = self._do(managing.purge(self.keys, copies))
        return purged

    def end_copies(self, group: str, *ids: str) -> int:
        """Ends a group's copies of messages, all in one call."""
        done, ended = self._do(managing.end_copies(self.keys, group, ids))
        assert done == len(ids)
        return int(ended)

    # The tester

    def destroy(self, group: str) -> None:
        """Destroys a group and nothing else, as XGROUP DESTROY by hand or an interrupted `group drop` does."""
        self._do(command("XGROUP", "DESTROY", self.keys.of("ready"), group))

    def dump(self) -> dict[str, bytes]:
        """All keys of the topic, for `restore`."""
        keys = self.keys.all()
        dumps = self.connection.execute([command("DUMP", key) for key in keys])
        return {key: dump for key, dump in zip(keys, dumps, strict=True) if dump is not None}

    def restore(self, dumps: dict[str, bytes]) -> None:
        """Sets the topic back, as a server does that was killed and has lost its last writes.

        Entries are named by the server's clock. As no server starts again within a millisecond, this takes one too.
        """
        killed_ms = self.connection.call(consuming.server_time())
        self.connection.execute([command("DEL", *self.keys.all())])
        self.connection.execute([command("RESTORE", key, 0, dump) for key, dump in dumps.items()])
        while self.connection.call(consuming.server_time()) <= killed_ms:
            pass

    def contents(self) -> Contents:
        """Reads all keys, in one round trip and a second one for what is pending."""
        of = self.keys.of
        zsets = ("waiting", "expiring", "finished", "retry", "garbage")
        results = self.connection.execute(
            [
                *(command("ZRANGE", of(name), 0, -1, "WITHSCORES", decode=_scores) for name in zsets),
                *(command("HGETALL", of(name), decode=_pairs) for name in ("messages", "owed", "failures", "busy")),
                *(command("ZRANGE", of(name), 0, -1) for name in ("slots", "parked")),
                command("XRANGE", of("ready"), "-", "+", decode=_entries),
                command("XINFO", "GROUPS", of("ready"), decode=_groups, takes_errors=True),
            ]
        )
        waiting, expiring, finished, retry, garbage, records, owed, failures, busy, slots, parked, *streams = results
        stream, last = streams
        pending = self.connection.execute(
            [command("XPENDING", of("ready"), group, "-", "+", _ALL, decode=_pending) for group in last]
        )
        return Contents(
            waiting=waiting,
            records=records,
            expiring=expiring,
            finished={id: until_ms for id, until_ms in finished.items() if not id.endswith("\0")},
            withdrawn={id[:-1]: until_ms for id, until_ms in finished.items() if id.endswith("\0")},
            owed={id: names.decode() for id, names in owed.items()},
            retry=retry,
            failures={copy: read_failure(value) for copy, value in failures.items()},
            garbage=garbage,
            stream=stream,
            groups={group: GroupState(last[group], p) for group, p in zip(last, pending, strict=True)},
            busy={id: key.decode() for id, key in busy.items()},
            slots=[member.decode() for member in slots],
            parked=[member.decode() for member in parked],
        )

    def failure(self, copy: str) -> Failure:
        """The last failure of a copy; there must be one."""
        failure = self.contents().failures[copy]
        assert failure is not None
        return failure


def _pairs(flat: list[bytes]) -> dict[str, bytes]:
    return {key.decode(): value for key, value in zip(flat[::2], flat[1::2], strict=True)}


def _scores(flat: list[bytes]) -> dict[str, float]:
    return {member: float(score) for member, score in _pairs(flat).items()}


def _entries(reply: list[Any]) -> dict[str, dict[str, str]]:
    return {entry.decode(): {k: v.decode() for k, v in _pairs(flat).items()} for entry, flat in reply}


def _groups(reply: Any) -> dict[str, str]:
    if isinstance(reply, Exception):
        return {}
    infos = [dict(zip(info[::2], info[1::2], strict=True)) for info in reply]
    return {info[b"name"].decode(): info[b"last-delivered-id"].decode() for info in infos}


def _pending(reply: list[Any]) -> dict[str, str]:
    return {entry.decode(): consumer.decode() for entry, consumer, _, _ in reply}
