"""What Lisa promises, as a small program without Redis: the yardstick of `test_machine.py`.

Written to be obviously right rather than fast. It keeps a message as an object with one copy for each group; only the
stream is modelled as it is, a list of entries that every group reads in order.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from lisa_common.model.policy import Policy

NOBODY = ""
"""Stands for the group of a copy that no group had yet."""

Place = Literal["ready", "delivered", "retry", "garbage"]


@dataclass(eq=False)
class Entry:
    """An entry of the stream. `group` None: for all groups."""

    message: "Message"
    attempt: int
    at_ms: int
    group: str | None = None
    deleted: bool = False
    alone: bool = False


@dataclass(eq=False)
class Copy:
    """One group's copy of a message."""

    place: Place
    entry: Entry | None = None
    """The entry that stands for it in ready, or is being delivered."""
    at_ms: int = 0
    """When the retry is due, or when it died."""
    attempts: int = 0
    settled: Entry | None = None
    """The last delivery that ended without an ack."""
    reason: str = ""

    def settle(self, place: Place, at_ms: int, entry: Entry | None, attempts: int, *, reason: str) -> None:
        """Notes how a delivery ended."""
        self.place, self.at_ms, self.entry, self.settled = place, at_ms, None, entry or self.settled
        self.attempts, self.reason = attempts, reason


@dataclass(eq=False)
class Message:
    """A message that is alive: somewhere, in garbage too."""

    id: str
    due_ms: int
    body: bytes
    ttl_ms: int | None
    max_retries: int | None
    priority: int
    waiting: bool = True
    cancelled: bool = False
    copies: dict[str, Copy] = field(default_factory=dict)
    counted: bool = False
    """Whether it became ready for two groups or more."""
    look_ms: int | None = None
    """When a sweep looks at it next."""

    @property
    def expires_ms(self) -> int | None:
        """When it expires, None for never."""
        return None if self.ttl_ms is None else self.due_ms + self.ttl_ms

    def expired(self, now_ms: int) -> bool:
        """Whether it must not be delivered any more."""
        return self.expires_ms is not None and self.expires_ms <= now_ms


@dataclass(eq=False)
class Group:
    """A consumer group: how far it has read, and the leases of what it has not settled."""

    read: int
    pending: dict[Entry, int] = field(default_factory=dict)


@dataclass
class Model:
    """One topic."""

    policy: Policy
    now_ms: int
    messages: dict[str, Message] = field(default_factory=dict)
    finished: dict[str, int] = field(default_factory=dict)
    stream: list[Entry] = field(default_factory=list)
    trimmed: int = 0
    shut_ms: int = 0
    """Until when a handler has shut the door."""
    groups: dict[str, Group] = field(default_factory=dict)

    # Sending

    def known(self, id: str) -> bool:
        """Whether a send of this id is a duplicate."""
        return id in self.messages or self.is_finished(id)

    def is_finished(self, id: str) -> bool:
        """Whether the id is in its dedup window."""
        return self.finished.get(id, 0) > self.now_ms

    @property
    def guarded(self) -> bool:
        """Whether what is due has to wait for a promotion."""
        policy = self.policy
        return bool(policy.paused or policy.max_in_flight or policy.rate) or self.shut_ms > self.now_ms

    def is_full(self, *ids: str) -> bool:
        """Whether there is no room for all of these."""
        new = {id for id in ids if not self.known(id)}
        most = self.policy.max_messages
        return bool(new) and most is not None and len(self.messages) + len(new) > most

    def room(self) -> int | None:
        """How many may become ready, None for any number; a rate apart."""
        if self.policy.paused or self.shut_ms > self.now_ms:
            return 0
        if self.policy.max_in_flight is None:
            return None
        in_flight = len(self.entries()) if not self.groups else max(map(self._in_flight, self.groups))
        return max(0, self.policy.max_in_flight - in_flight)

    def _in_flight(self, name: str) -> int:
        group = self.groups[name]
        unread = [entry for entry in self.stream[group.read :] if not entry.deleted and entry.group in (None, name)]
        return len(group.pending) + len(unread)

    def send(self, message: Message) -> int:
        """A new message, unless its id is known."""
        return 0 if self.known(message.id) else self._store(message)

    def replace(self, message: Message) -> int:
        """A new message, also in place of one that waits, or of which each copy is to be retried."""
        old = self.messages.get(message.id)
        if old is None:
            return self.send(message)
        if not old.waiting and (self.is_finished(old.id) or {copy.place for copy in old.copies.values()} != {"retry"}):
            return 0
        del self.messages[old.id]
        return -self._store(message)

    def _store(self, message: Message) -> int:
        self.messages[message.id] = message
        if message.id in self.finished:
            self.finished[message.id] = 0
        message.look_ms = message.expires_ms
        if message.due_ms <= self.now_ms and not self.guarded:
            self.make_ready(message, message.due_ms)
        return message.due_ms

    def make_ready(self, message: Message, at_ms: int) -> None:
        """One entry, and a copy for every group there is."""
        message.waiting = False
        entry = self.add(Entry(message, 1, at_ms))
        message.counted = len(self.groups) > 1
        message.copies = {name: Copy("ready", entry) for name in self.groups or [NOBODY]}

    def state(self, message: Message) -> str:
        """What a look at it finds: that of the copy that is nearest to a handler."""
        if message.cancelled:
            return "cancelled"
        places: set[str] = {copy.place for copy in message.copies.values()} or {"waiting"}
        if message.expired(self.now_ms):
            places = {"expired" if place in {"waiting", "ready", "retry"} else place for place in places}
        return next(
            state for state in ("delivered", "ready", "retry", "waiting", "expired", "garbage") if state in places
        )

    def add(self, entry: Entry) -> Entry:
        """Appends to the stream."""
        self.stream.append(entry)
        return entry

    def join(self, name: str) -> bool:
        """The first group begins at the beginning and owns what nobody had; later ones begin now."""
        if name in self.groups:
            return False
        first = not self.groups
        self.groups[name] = Group(self.trimmed if first else len(self.stream))
        for message in self.messages.values() if first else ():
            copy = message.copies.get(NOBODY)
            if copy and copy.place == "ready":
                message.copies = {name: copy}
        return True

    def drop(self, name: str) -> None:
        """Its copies end. Without groups there is nothing in the stream that a group to come should get."""
        for message in list(self.messages.values()):
            if name in message.copies:
                self.end(message, name)
        del self.groups[name]
        if not self.groups:
            self.trimmed = len(self.stream)

    # Promotion

    def promote(self, limit: int, room: int | None = None) -> int:
        """Due messages in order of due time, priority, id; then due retries likewise. Returns how many.

        If there is not room for all, those with the earliest due time or highest priority, of both.
        """
        due = sorted((due, -m.priority, m.id.encode(), m) for due, m in self.waiting() if due <= self.now_ms)[:limit]
        retries = sorted(
            (copy.at_ms, -message.priority, f"{group}/{message.id}".encode(), message, group)
            for message, group, copy in self.copies("retry")
            if copy.at_ms <= self.now_ms
        )[:limit]
        if room is not None and room < len(due) + len(retries):
            ranked = [(at_ms, rank, 0) for at_ms, rank, *_ in due] + [(at_ms, rank, 1) for at_ms, rank, *_ in retries]
            first = [kind for *_, kind in sorted(ranked)[:room]]
            due, retries = due[: first.count(0)], retries[: first.count(1)]
        for due_ms, _, _, message in due:
            self.make_ready(message, due_ms)
        for at_ms, _, _, message, group in retries:
            copy = message.copies[group]
            entry = Entry(message, copy.attempts + 1, at_ms, group, alone=copy.reason == "isolated")
            copy.place, copy.entry = "ready", self.add(entry)
        return len(due) + len(retries)

    def waiting(self) -> list[tuple[int, Message]]:
        """Messages that wait, with their due times."""
        return [(m.due_ms, m) for m in self.messages.values() if m.waiting]

    def copies(self, *places: Place) -> Iterator[tuple[Message, str, Copy]]:
        """The copies at these places."""
        for message in list(self.messages.values()):
            for group, copy in list(message.copies.items()):
                if copy.place in places:
                    yield message, group, copy

    def next_due_ms(self) -> int | None:
        """The earliest due time of all."""
        dues = [due for due, _ in self.waiting()] + [copy.at_ms for _, _, copy in self.copies("retry")]
        return min(dues, default=None)

    # Reading

    def take(self, group: str, limit: int) -> list[Entry]:
        """Entries become pending."""
        state = self.groups[group]
        taken: list[Entry] = []
        while state.read < len(self.stream) and len(taken) < limit:
            entry = self.stream[state.read]
            state.read += 1
            if not entry.deleted:
                taken.append(entry)
                state.pending[entry] = self.now_ms + self.policy.visibility_ms
                if copy := self.copy_of(entry, group):
                    copy.place = "delivered"
        return taken

    def copy_of(self, entry: Entry, group: str) -> Copy | None:
        """The copy that the entry stands for in this group."""
        copy = entry.message.copies.get(group)
        return copy if self.alive(entry.message) and copy and copy.entry is entry else None

    def alive(self, message: Message) -> bool:
        """Whether it is this very message that has the id now."""
        return self.messages.get(message.id) is message

    def judge(self, group: str, entries: list[Entry]) -> list[Entry]:
        """Which of the entries are delivered; the others are settled."""
        delivered = []
        for entry in entries:
            message, copy = entry.message, self.copy_of(entry, group)
            if copy and not message.cancelled and not message.expired(self.now_ms):
                delivered.append(entry)
                continue
            del self.groups[group].pending[entry]
            if copy and message.cancelled:
                self.end(message, group)
            elif copy:
                self.expire(message, group, entry, attempts=entry.attempt - 1)
        return delivered

    # Settling

    def ack(self, group: str, entry: Entry) -> str:
        """Acked, late or stale."""
        message, copy = entry.message, entry.message.copies.get(group)
        if self.groups[group].pending.pop(entry, None) is not None:
            self.end(message, group, self.now_ms + self.policy.dedup_window_ms)
            return "acked"
        if not self.alive(message) or not copy or copy.settled is not entry or copy.place == "delivered":
            return "stale"
        if copy.place == "ready" and copy.entry:
            copy.entry.deleted = True
        self.end(message, group, self.now_ms + self.policy.dedup_window_ms)
        return "late"

    def follow(self, group: str, entry: Entry, following: Message) -> str:
        """As an ack, if there is a place for the message that follows."""
        message, same_id = entry.message, following.id == entry.message.id
        is_pending, was_cancelled = entry in self.groups[group].pending, message.cancelled
        is_mine = self.alive(message) and (group in message.copies or not message.counted)
        if (is_pending or is_mine) and message.counted and set(message.copies) - {group}:
            most = self.policy.max_messages
            if same_id or (most is not None and len(self.messages) >= most):
                return "owed" if same_id else "full"
        before = dict(self.finished)
        outcome = self.ack(group, entry)
        if outcome == "stale":
            return outcome
        if was_cancelled:
            return "cancelled"
        if same_id:
            self.finished = before
        elif self.known(following.id):
            return "duplicate"
        self._store(following)
        return outcome

    def end(self, message: Message, group: str, until_ms: int | None = None) -> None:
        """The group is done with the message; the last one to be done forgets it. Its id is known until then."""
        del message.copies[group]
        if not message.copies:
            del self.messages[message.id]
        if until_ms is not None and not message.id.endswith("~"):
            self.finished[message.id] = until_ms

    def nack(self, group: str, entry: Entry, reason: str, delay_ms: int | None = None) -> tuple[str, int | None]:
        """Retry, garbage, dropped, gone or stale; for a retry when."""
        if self.groups[group].pending.pop(entry, None) is None:
            return "stale", None
        message, copy = entry.message, self.copy_of(entry, group)
        if not copy:
            return "gone", None
        if message.cancelled:
            self.end(message, group)
            return "gone", None
        retries = self.policy.max_retries if message.max_retries is None else message.max_retries
        in_a_row = copy.attempts == entry.attempt - 1 and copy.reason in ("abandoned", "isolated")
        isolated = reason == "abandoned" and (entry.attempt > retries or in_a_row)
        if reason == "rejected" or entry.attempt > retries + (3 if isolated and not entry.alone else 0):
            copy.settle("garbage", self.now_ms, entry, entry.attempt, reason=reason)
            return "garbage", None
        if message.expired(self.now_ms):
            return self.expire(message, group, entry, attempts=entry.attempt), None
        backoff_ms = min(self.policy.backoff_cap_ms, self.policy.backoff_base_ms * 2 ** (entry.attempt - 1))
        due_ms = self.now_ms + (backoff_ms if delay_ms is None else delay_ms)
        copy.settle("retry", due_ms, entry, entry.attempt, reason="isolated" if isolated else reason)
        return "retry", due_ms

    def expire(self, message: Message, group: str, entry: Entry | None, *, attempts: int) -> str:
        """Garbage or dropped, by policy."""
        if self.policy.on_expire == "drop":
            self.end(message, group, self.now_ms + self.policy.dedup_window_ms)
            return "dropped"
        message.copies[group].settle("garbage", self.now_ms, entry, attempts, reason="expired")
        return "garbage"

    def release(self, group: str, entry: Entry) -> bool:
        """Ready again, as the same attempt, for this group alone."""
        if self.groups[group].pending.pop(entry, None) is None:
            return False
        copy = self.copy_of(entry, group)
        if not copy:
            return False
        if entry.message.cancelled:
            self.end(entry.message, group)
            return False
        copy.settled, copy.attempts, copy.reason = entry, entry.attempt - 1, copy.reason or "released"
        if self.guarded:
            copy.place, copy.entry, copy.at_ms = "retry", None, self.now_ms
            return True
        again = Entry(entry.message, entry.attempt, self.now_ms, group, alone=copy.reason == "isolated")
        copy.place, copy.entry = "ready", self.add(again)
        return True

    def extend(self, group: str, entry: Entry) -> bool:
        """A new lease, if the old one was not taken back."""
        if entry not in self.groups[group].pending:
            return False
        self.groups[group].pending[entry] = self.now_ms + self.policy.visibility_ms
        return True

    def reclaim(self, group: str) -> dict[str, int]:
        """Takes back what is out of its lease. Returns how many of each outcome."""
        counts = dict.fromkeys(("retry", "garbage", "gone", "dropped"), 0)
        for entry, until_ms in list(self.groups[group].pending.items()):
            if until_ms <= self.now_ms:
                counts[self.nack(group, entry, "abandoned")[0]] += 1
        return counts

    # Operators

    def cancel(self, id: str) -> str:
        """Nothing is delivered any more; what is being delivered stays known until it is settled."""
        message = self.messages.get(id)
        if message is None:
            return "finished" if self.is_finished(id) else "unknown"
        if message.cancelled:
            return "cancelled"
        places = {copy.place for copy in message.copies.values()}
        if places == {"garbage"}:
            return "garbage"
        if "delivered" not in places:
            for copy in message.copies.values():
                if copy.place == "ready" and copy.entry:
                    copy.entry.deleted = True
            del self.messages[id]
            return "cancelled"
        message.cancelled, message.look_ms = True, None
        message.copies = {g: c for g, c in message.copies.items() if c.place in ("ready", "delivered")}
        return "delivered"

    def reschedule(self, id: str, due_ms: int) -> str:
        """Another due time for what waits, and for retries if there is nothing else."""
        message = self.messages.get(id)
        if message is None or message.cancelled:
            return "finished" if self.is_finished(id) else "unknown"
        if message.waiting:
            message.due_ms = due_ms
            message.look_ms = message.expires_ms
            return "rescheduled"
        places = {copy.place for copy in message.copies.values()}
        if places != {"retry"}:
            others: list[str] = [message.copies[g].place for g in sorted(message.copies)]
            return "delivered" if "delivered" in places else [p for p in others if p != "retry"][-1]
        for copy in message.copies.values():
            copy.at_ms = due_ms
        return "rescheduled"

    def replay(self, id: str, group: str) -> str:
        """A dead copy is ready again, with all attempts before it; the message has no time to live any more."""
        message = self.messages.get(id)
        copy = message.copies.get(group) if message else None
        if message is None or copy is None or copy.place != "garbage":
            return "unknown"
        message.ttl_ms = None
        if group == NOBODY and self.guarded:
            message.waiting, message.copies = True, {}
        elif group == NOBODY:
            self.make_ready(message, self.now_ms)
        elif self.guarded:
            copy.place, copy.attempts, copy.reason, copy.at_ms = "retry", 0, "replayed", self.now_ms
        else:
            copy.place, copy.attempts, copy.reason = "ready", 0, "replayed"
            copy.entry = self.add(Entry(message, 1, self.now_ms, group))
        return "replayed"

    def purge(self, id: str, group: str) -> int:
        """A dead copy is deleted."""
        message = self.messages.get(id)
        copy = message.copies.get(group) if message else None
        if message is None or copy is None or copy.place != "garbage":
            return 0
        self.end(message, group)
        return 1

    # Housekeeping

    def sweep(self) -> tuple[int, int, int]:
        """Expires, forgets ids, ages out garbage. Returns how many of each."""
        return self.sweep_expired(), self.forget(), self.age_out()

    def sweep_expired(self) -> int:
        """Expires what is not being delivered; an entry in ready goes when no group has it."""
        expired = 0
        for message in list(self.messages.values()):
            if message.look_ms is None or message.look_ms > self.now_ms:
                continue
            message.look_ms = None
            if not message.expired(self.now_ms):
                continue
            if message.waiting:
                message.waiting, message.copies = False, {NOBODY: Copy("ready")}
                self.expire(message, NOBODY, None, attempts=0)
                expired += 1
                continue
            delivered = any(copy.place == "delivered" for copy in message.copies.values())
            for group, copy in list(message.copies.items()):
                if copy.place == "retry" or (copy.place == "ready" and not delivered):
                    if copy.entry:
                        copy.entry.deleted = True
                    self.expire(message, group, copy.entry, attempts=copy.attempts)
                    expired += 1
            if delivered:
                message.look_ms = self.now_ms + self.policy.visibility_ms
        return expired

    def forget(self) -> int:
        """Ids whose window is over."""
        over = [id for id, until_ms in self.finished.items() if until_ms <= self.now_ms]
        for id in over:
            del self.finished[id]
        return len(over)

    def age_out(self) -> int:
        """Garbage that is too old or too much, oldest first."""
        dead = sorted((c.at_ms, f"{group}/{m.id}".encode(), m, group) for m, group, c in self.copies("garbage"))
        old = sum(at_ms <= self.now_ms - self.policy.garbage_retention_ms for at_ms, *_ in dead)
        over = max(old, len(dead) - self.policy.garbage_max_messages, 0)
        for _, _, message, group in dead[:over]:
            self.end(message, group)
        return over

    def trim(self) -> int:
        """Removes what every group has read and settled, up to the first entry that is not. Returns how many."""
        before = self.trimmed
        if self.groups:
            self.trimmed = min(self._keep_from(group) for group in self.groups.values())
        return sum(not entry.deleted for entry in self.stream[before : self.trimmed])

    def _keep_from(self, group: Group) -> int:
        position: Callable[[Entry], int] = self.stream.index
        return min((position(entry) for entry in group.pending), default=group.read)

    def entries(self) -> list[Entry]:
        """What stands in the stream."""
        return [entry for entry in self.stream[self.trimmed :] if not entry.deleted]
