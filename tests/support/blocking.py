"""Measures how long one command keeps the server busy: every script and command over a topic's whole life.

A topic is filled, and its messages pass through all states; after each step the server's SLOWLOG shows its longest
command. Large messages, many groups or a long stream must not make it long.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import redis

from lisa_common.client.connection import Connection
from lisa_common.model.delivery import Entry
from lisa_common.model.keys import topics_key
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_common.protocol import consuming, managing, paging, producing
from lisa_common.protocol.call import Call, script
from lisa_common.protocol.consuming import Nack
from lisa_common.protocol.paging import END, START
from lisa_common.protocol.producing import State
from lisa_manager.admin.audit.check import check
from lisa_manager.admin.garbage.shard import Pages, Selector
from lisa_manager.admin.groups.debts import read_groups
from lisa_manager.admin.topics import policies
from lisa_manager.admin.topics.status import read_status
from lisa_manager.shard_groups import drop_group as drop_group_flow
from support.queue import Queue, outgoing

__all__ = ["Blocks", "Life", "Timed", "drop_group", "drop_topic", "look"]

_POLICY = Policy(backoff_jitter=0, backoff_base_ms=1, visibility_ms=1_000, dedup_window_ms=1_000, max_retries=100)
_AT_ONCE = 200
_SLOW_US = 1_000
_CALL_BYTES = 2 * 1024 * 1024


class Timed(Connection):
    """A connection that keeps the most processor time of the server that one round trip took."""

    def __init__(self, url: str, pid: int) -> None:
        super().__init__(url, timeout_s=60)
        # As the C library's clock_getcpuclockid makes it, which Python does not have.
        self._clock = (~pid << 3) | 2
        self.longest_ms = 0.0

    def busy_ms(self) -> float:
        """The processor time of the server so far."""
        return time.clock_gettime(self._clock) * 1000

    def execute_each(self, calls: Sequence[Call[Any]], meanwhile: Callable[[], object] | None = None) -> list[Any]:
        """Executes, and measures the time."""
        before = self.busy_ms()
        results = super().execute_each(calls, meanwhile)
        self.longest_ms = max(self.longest_ms, self.busy_ms() - before)
        return results


@dataclass
class Blocks:
    """The longest command of each step, in ms.

    That is what SLOWLOG says, or what the longest round trip took of the processor where that is less: then the server
    had to wait for other programs.
    """

    client: redis.Redis
    connection: Timed
    longest: dict[str, float] = field(default_factory=dict)
    commands: dict[str, str] = field(default_factory=dict)
    """Step → its longest command."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Has the server log slow commands, and restores its settings at the end."""
        before: dict[str, str] = self.client.config_get("slowlog-*")  # type: ignore[assignment]
        self.client.config_set("slowlog-log-slower-than", _SLOW_US)
        self.client.config_set("slowlog-max-len", 10_000)
        try:
            yield
        finally:
            for name, value in before.items():
                self.client.config_set(name, value)
            self.client.slowlog_reset()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measures one step."""
        self.client.slowlog_reset()
        self.connection.longest_ms = 0.0
        yield
        slow: list[dict[str, Any]] = self.client.slowlog_get(10_000)
        slowest = max(slow, key=lambda entry: entry["duration"], default=None)
        took_ms = min(slowest["duration"] / 1000 if slowest else 0.0, self.connection.longest_ms)
        if slowest is None or took_ms < self.longest.get(name, 0.0):
            self.longest.setdefault(name, 0.0)
            return
        self.longest[name] = took_ms
        self.commands[name] = slowest["command"][:60].decode("ascii", "replace")

    @property
    def worst(self) -> str:
        """The step with the longest command, and that."""
        name = max(self.longest, key=self.longest.__getitem__)
        return f"{name}: {self.longest[name]:.1f} ms, {self.commands.get(name, '')}"


@dataclass
class Life:
    """A topic whose messages pass through all states. The test sets its clock, see `support.queue`."""

    blocks: Blocks
    queue: Queue
    groups: Sequence[str]
    """At least two groups: they get all messages."""
    messages: int
    body: bytes

    def __post_init__(self) -> None:
        self.queue.policy = _POLICY
        self.keys, self.connection, self.client = self.queue.keys, self.queue.connection, self.blocks.client
        self.ids = [f"m{number}" for number in range(self.messages)]
        self.client.hset(topics_key(self.keys.prefix), self.keys.topic, _POLICY.dump())
        self.queue.join(*self.groups)

    def live(self) -> None:
        """All steps; the last one drops the topic."""
        for part in (self._wait, self._deliver, self._cancel_deliveries, self._fail, self._bury, self._expire):
            part()
            self._clear()
        self._make_ready()
        self._put([f"later{number}" for number in range(self.messages)])
        look(self.blocks, self.queue, [*self.ids[:3], "later1"])
        for group in self.groups[:2]:
            self._take(group)
            drop_group(self.blocks, self.queue, group)
        drop_topic(self.blocks, self.queue)

    def _each(self, name: str, call: Callable[[Sequence[Any]], Call[Any]], items: Sequence[Any]) -> None:
        """A step that makes a call for as many items at once as operators do."""
        with self.blocks.step(name):
            for at in range(0, len(items), _AT_ONCE):
                self.connection.call(call(items[at : at + _AT_ONCE]))

    def _put(self, ids: Sequence[str], *, due: str = "+10", ttl_ms: int | None = None) -> None:
        """Sends messages, as many in one call as a producer does."""
        step = max(1, min(1_000, _CALL_BYTES // len(self.body)))
        with self.blocks.step("send"):
            for at in range(0, len(ids), step):
                some = [outgoing(id, due=due, body=self.body, ttl_ms=ttl_ms) for id in ids[at : at + step]]
                self.queue.send_all(some)

    def _make_ready(self, ttl_ms: int | None = None) -> None:
        self._put(self.ids, ttl_ms=ttl_ms)
        self._promote(10)

    def _promote(self, after_ms: int) -> None:
        self.queue.advance(after_ms)
        with self.blocks.step("promote"):
            while self.queue.promote().more:
                pass

    def _take(self, group: str) -> list[Entry]:
        with self.blocks.step("read"):
            return self.queue.take(group)

    def _reschedule(self, ids: Sequence[str]) -> Call[Any]:
        return producing.reschedule(self.keys, [(id, "+20") for id in ids], now_ms=self.queue.now_ms)

    def _cancel(self, ids: Sequence[str]) -> Call[Any]:
        return producing.cancel(self.keys, ids, now_ms=self.queue.now_ms)

    def _ack(self, group: str) -> Callable[[Sequence[Entry]], Call[Any]]:
        return lambda entries: consuming.ack(self.keys, group, entries, _POLICY, now_ms=self.queue.now_ms)

    def _release(self, group: str) -> Callable[[Sequence[Entry]], Call[Any]]:
        return lambda entries: consuming.release(self.keys, group, entries, now_ms=self.queue.now_ms)

    def _pass(self, group: str) -> Callable[[Sequence[Entry]], Call[Any]]:
        return lambda entries: consuming.discard(self.keys, group, entries, _POLICY, now_ms=self.queue.now_ms)

    def _nack(self, group: str, *, rejected: bool = False) -> Callable[[Sequence[Entry]], Call[Any]]:
        def call(entries: Sequence[Entry]) -> Call[Any]:
            nacks = [Nack(entry, "x" * 2_000, None, rejected) for entry in entries]
            return consuming.nack(self.keys, group, nacks, _POLICY, now_ms=self.queue.now_ms)

        return call

    def _clear(self) -> None:
        """Ends all messages, so that the next part begins with an empty topic."""
        ready = self.keys.of("ready")
        for group in self.groups:
            self.client.xgroup_setid(ready, group, "$")
            if entries := [row["message_id"] for row in self.client.xpending_range(ready, group, "-", "+", 100_000)]:
                self.client.xack(ready, group, *entries)
        names = ("messages", "owed", "failures", "retry", "garbage", "waiting", "expiring", "finished")
        self.client.unlink(*map(self.keys.of, names))
        with self.blocks.step("trim"):
            while self.queue.trim().more:
                pass

    def _wait(self) -> None:
        """Waiting messages are rescheduled and cancelled; then ready ones."""
        self._put(self.ids)
        self._each("reschedule, waiting", self._reschedule, self.ids)
        self._each("cancel, waiting", self._cancel, self.ids)
        self._make_ready()
        self._each("reschedule, ready", self._reschedule, self.ids)
        self._each("cancel, ready", self._cancel, self.ids)

    def _deliver(self) -> None:
        """Deliveries are given back and acked, some of them twice."""
        self._make_ready()
        for group in self.groups[2:]:
            self._each("ack", self._ack(group), self._take(group))
        for group in self.groups[:2]:
            self._each("release", self._release(group), self._take(group))
            entries = self._take(group)
            self._each("ack", self._ack(group), entries[::2])
            self._each("ack, half of them stale", self._ack(group), entries)

    def _cancel_deliveries(self) -> None:
        """Messages are cancelled that consumers have, and met again."""
        self._make_ready()
        entries = self._take(self.groups[0])
        self._each("cancel, delivered", self._cancel, self.ids)
        self._each("pass, cancelled", self._pass(self.groups[0]), entries)

    def _fail(self) -> None:
        """Deliveries fail, are retried, and fail again as their leases run out; then they are cancelled."""
        self._make_ready()
        for group in self.groups[:2]:
            self._each("nack", self._nack(group), self._take(group))
        self._each("reschedule, retry", self._reschedule, self.ids)
        # A retry of which nothing is known has its record looked at.
        self.client.unlink(self.keys.of("failures"))
        self._promote(1_000)
        for group in self.groups[:2]:
            self._take(group)
        self.queue.advance(5_000)
        with self.blocks.step("reclaim"):
            for group in self.groups[:2]:
                cursor = self.queue.reclaim(group, limit=_AT_ONCE).cursor
                while cursor != "0-0":
                    cursor = self.queue.reclaim(group, cursor=cursor, limit=_AT_ONCE).cursor
        self._each("cancel, retry", self._cancel, self.ids)

    def _bury(self) -> None:
        """Dead letters are listed, replayed, purged and removed, also those of a group that is gone."""
        first, second = self.groups[:2]
        self._make_ready(ttl_ms=100_000)
        for group in (first, second):
            self._each("nack, rejected", self._nack(group, rejected=True), self._take(group))
        with self.blocks.step("garbage list"):
            pages = Pages(self.keys, Selector())
            while not pages.done:
                self.connection.run(pages.next_page())
        letters = [f"{group}/{id}" for id in self.ids for group in (first, second)]
        self._each("replay", lambda some: managing.replay(self.keys, some, now_ms=self.queue.now_ms), letters[::2])
        self._each("nack, rejected", self._nack(first, rejected=True), self._take(first))
        self.queue.destroy(second)
        self._each("purge", lambda some: managing.purge(self.keys, some), letters[: len(self.ids)])
        self._sweep("sweep, garbage", Policy.of({**_POLICY.model_dump(exclude_unset=True), "garbage_max_messages": 0}))
        self.queue.join(second)

    def _sweep(self, name: str, policy: Policy = _POLICY) -> None:
        call = managing.sweep(self.keys, policy, limit=_AT_ONCE, now_ms=self.queue.now_ms)
        with self.blocks.step(name):
            while self.connection.call(call).more:
                pass

    def _expire(self) -> None:
        """Messages outlive their time to live: while they wait, while they are ready, and in a consumer's hands."""
        self._put(self.ids, ttl_ms=10)
        self.queue.advance(100)
        self._sweep("sweep, waiting")
        self._clear()
        self._make_ready(ttl_ms=10)
        self.queue.advance(100)
        self._sweep("sweep, ready")
        self._clear()
        self._make_ready(ttl_ms=10)
        self.queue.advance(100)
        self._each("pass, expired", self._pass(self.groups[0]), self._take(self.groups[0]))


def look(blocks: Blocks, queue: Queue, ids: Sequence[str]) -> None:
    """The queries of operators: status, groups, an audit, messages one by one and page by page."""
    connection, keys = queue.connection, queue.keys
    with blocks.step("status"):
        connection.run(read_status(keys.prefix, keys.topic))
    with blocks.step("group list"):
        connection.run(read_groups(Layout(keys.prefix, keys.topic)))
    with blocks.step("check"):
        connection.run(check(keys, mend=True))
    with blocks.step("find"):
        for id in ids:
            queue.find(id)
    with blocks.step("inspect"):
        for id in ids:
            connection.call(script("inspect", keys, id=id, since="0-0", names=""))
    with blocks.step("list"):
        page = connection.call(paging.list_messages(keys, State.WAITING, START, END))
        while page.rest:
            page = connection.call(paging.list_messages(keys, State.WAITING, page.rest, END))


def drop_group(blocks: Blocks, queue: Queue, group: str) -> None:
    """`group drop --force`."""
    with blocks.step("group drop"):
        queue.connection.run(drop_group_flow(Layout(queue.keys.prefix, queue.keys.topic), group, force=True))


def drop_topic(blocks: Blocks, queue: Queue) -> None:
    """`topic drop --force`."""
    with blocks.step("topic drop"):
        queue.connection.run(policies.drop_topic(queue.keys.prefix, queue.keys.topic, force=True))
