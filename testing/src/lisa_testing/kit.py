"""The object that the fixture `lisa` gives to a test."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from lisa_common.client.address import read_url
from lisa_common.client.connection import Connection
from lisa_common.client.per_loop import is_loop_running
from lisa_common.errors import InvalidInput
from lisa_common.model.keys import TOPIC_KEYS, dropped_key, topics_key
from lisa_common.model.policy import Policy
from lisa_common.protocol import groups
from lisa_common.protocol.call import command
from lisa_common.protocol.registry import Topics
from lisa_common.tls import NO_TLS
from lisa_common.validation import Duration, check_int, check_name, duration_ms, moment_ms
from lisa_consumer import Worker
from lisa_manager import Admin, DeadLetter, Found, ManagerSettings
from lisa_producer import Producer, ProducerSettings, SendResult
from lisa_testing.aging import age
from lisa_testing.attaching import Attached, Client
from lisa_testing.draining import Drained, FailOnce, drain
from lisa_testing.idling import IdleTopics
from lisa_testing.live import running_manager
from lisa_testing.sent import Sent, same_body, watch
from lisa_testing.turns import layouts, turn

__all__ = ["Lisa"]

_MOST_ROUNDS = 100
_SHOWN = 20
"""Most messages that a failed assertion lists."""

_ANY: Any = object()


class Lisa:
    """Lisa on a server of the test run, with a prefix of its own for each test.

    `producer` sends, `admin` looks at everything. Nothing falls due by itself: `advance` lets time pass and does a
    manager's work, `drain` runs a worker. For a manager and workers that run by themselves, see `manager`.
    """

    def __init__(self, url: str, prefix: str) -> None:
        self.url = url
        self.prefix = prefix
        self._connection = Connection(url, name="lisa-testing")
        self._idle_topics = IdleTopics(self._connection, prefix)
        self._attached = Attached(url, prefix)
        self._failures: list[FailOnce] = []
        self._sent: list[Sent] = []
        self.producer = Producer(settings=ProducerSettings(redis_url=url, prefix=prefix, patience_s=2))
        self.admin = Admin(settings=ManagerSettings(redis_url=url, prefix=prefix))

    @contextmanager
    def used(self) -> Iterator["Lisa"]:
        """For the time of a test: records what is sent, refuses other servers, and cleans up at the end."""
        try:
            with watch(read_url(self.url, NO_TLS).shown, self.prefix, self._sent.append):
                yield self
        finally:
            self._attached.restore()
            self._remove()
            self.producer.close()
            self.admin.close()
            self._connection.close()

    # Setting up

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables that point a program at this test: the fixture has set them in this process."""
        return {"LISA_REDIS_URL": self.url, "LISA_PREFIX": self.prefix}

    def attach(self, *clients: Client) -> None:
        """Points producers, consumers and workers that exist already at this test, until it ends.

        The groups of workers are created, as if the workers had begun before. Raises InvalidInput for other objects.
        """
        for client in clients:
            self._attached.add(client)
            if isinstance(client, Worker) and client.topics:
                topics = Topics(self.prefix)
                found = self._connection.run(topics.resolve_each(client.topics))
                self._connection.run(groups.join(list(found.values()), client.group))

    def set_policy(self, topic: str, **fields: Any) -> Policy:
        """Sets fields of a topic's policy, as `Admin.set_policy` does. Attached programs use it at once."""
        policy = self.admin.set_policy(topic, **fields)
        for topics in (self.producer._topics, *self._attached.registries):
            topics._known.pop(topic, None)
        return policy

    def send(self, topic: str, body: Any, **options: Any) -> SendResult:
        """Sends a message; see `Producer.send` for the options."""
        return self.producer.send(topic, body, **options)

    # Time

    def advance(
        self,
        duration: Duration = 0,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: float = 0,
    ) -> int:
        """Lets time pass, and does a manager's work. Returns how many messages became ready.

        What is stored becomes older; the clocks stay as they are. So a message that was due in two hours is due now,
        earlier leases run out, messages expire, dedup windows close. Durations add up. Raises InvalidInput.
        """
        units = {"days": days, "hours": hours, "minutes": minutes, "seconds": seconds, "milliseconds": milliseconds}
        try:
            more = timedelta(**units)
        except (ValueError, OverflowError):
            raise InvalidInput("duration", units, "a length of time") from None
        by_ms = duration_ms("duration", duration) + duration_ms("duration", more)
        if by_ms:
            found = layouts(self._connection, self.prefix)
            self._idle_topics.jump(found, by_ms)
            for layout in found:
                for keys in layout.served:
                    self._connection.call(age(keys, by_ms))
        return self.turn()

    def turn(self) -> int:
        """Does what a manager would have done by now: reclaims, expires, moves dead letters, promotes, trims.

        Drops topics that nobody uses. Returns how many messages were promoted, or moved to a dead letter topic.
        """
        return self._work()

    def _work(self, *, with_retries: bool = True) -> int:
        found = layouts(self._connection, self.prefix)
        count = turn(self._connection, found, with_retries=with_retries)
        self._idle_topics.drop(found)
        return count

    @contextmanager
    def manager(self, **settings: Any) -> Iterator[None]:
        """Runs a real manager in a thread of this process until the block ends; `settings` are those of the manager."""
        with running_manager(self.url, self.prefix, settings):
            yield

    # Workers

    def drain(self, worker: Worker) -> Drained:
        """Runs a worker until nothing is ready. Attaches it if it is not. Returns the outcome of each delivery.

        In an asyncio test, await `drain_async`. Messages that come again later, as their handlers failed, wait for
        `advance`.
        """
        if is_loop_running():
            raise InvalidInput("drain", worker.name, "awaited in an event loop: await lisa.drain_async(worker)")
        return asyncio.run(self.drain_async(worker))

    async def drain_async(self, worker: Worker) -> Drained:
        """As `drain`, in the event loop of the test."""
        self.attach(worker)
        return await drain(worker, self._work, self._failures, rounds=_MOST_ROUNDS)

    def fail_once(
        self,
        worker: Worker,
        topic: str | None = None,
        error: BaseException | None = None,
        *,
        after: bool = False,
        times: int = 1,
    ) -> None:
        """Makes the next delivery that the worker gets in a drain fail, of one topic or of any.

        `error` is raised before the handler runs; with `after`, once it has returned: its effects stay, and the message
        comes again, as when a worker dies. This is around the worker's middleware: before the handler, middleware does
        not run either; after it, middleware has seen a success, such as a transaction that is committed.
        Raises InvalidInput for `times` below 1, and for a topic that the worker does not handle.
        """
        check_int("times", times, 1, 1_000_000)
        if topic is not None and not worker._routing.handles(topic):
            raise InvalidInput("topic", topic, "one that the worker has a handler for")
        if error is None:
            error = RuntimeError("this delivery fails, as the test asked for it")
        self._failures.append(FailOnce(worker, topic, error, after, times))

    # Looking

    @property
    def sent(self) -> list[Sent]:
        """All messages that this process has sent in this test, in order; duplicates are left out."""
        return list(self._sent)

    def assert_sent(
        self,
        topic: str,
        *,
        id: str | None = None,
        body: Any = _ANY,
        delay: Duration | None = None,
        at: datetime | None = None,
        headers: Mapping[str, str] | None = None,
        count: int | None = None,
    ) -> Sent:
        """Asserts that a message was sent with all given values; with `count`, exactly so many. Returns the last one.

        `delay` and `at` are compared to the millisecond, a body by its JSON unless it is bytes or text.
        Raises InvalidInput for a topic that cannot be one.
        """
        # The report of a failure shows the test, and not this function.
        __tracebackhide__ = True
        check_name("topic", topic)
        wanted = {"id": id, "delay": delay, "at": at, "headers": headers}
        shown = ", ".join([f"{name}={value!r}" for name, value in wanted.items() if value is not None])
        if body is not _ANY:
            shown += f"{', ' if shown else ''}body={body!r}"
        fitting = [
            sent
            for sent in self._sent
            if sent.topic == topic
            and id in (None, sent.id)
            and (body is _ANY or same_body(sent, body))
            and _is_due(sent, delay, at)
            and (headers is None or sent.headers == dict(headers))
        ]
        if not fitting if count is None else len(fitting) != count:
            number = "no message" if not fitting else f"{len(fitting)} messages, not {count}"
            raise AssertionError(f"{number} sent to {topic!r} with {shown or 'anything'}; {self._listed(topic)}")
        return fitting[-1] if fitting else Sent(topic, "", b"", 0, None, None, None, 0, {})

    def assert_not_sent(self, topic: str, **wanted: Any) -> None:
        """Asserts that no message was sent with all given values; see `assert_sent`."""
        __tracebackhide__ = True
        self.assert_sent(topic, count=0, **wanted)

    def _listed(self, topic: str) -> str:
        sent = [str(each) for each in self._sent if each.topic == topic] or [str(each) for each in self._sent]
        return "\n  ".join(["sent were:", *sent[-_SHOWN:]]) if sent else "nothing was sent"

    def find(self, topic: str, id: str) -> Found | None:
        """State, attempts, body and failures of a message; None when it is unknown, or no longer known."""
        return self.admin.find(topic, id) if topic in self._topics() else None

    def garbage(self, topic: str) -> list[DeadLetter]:
        """The dead letters of a topic."""
        return list(self.admin.garbage(topic).letters) if topic in self._topics() else []

    def _topics(self) -> set[str]:
        return {layout.topic for layout in layouts(self._connection, self.prefix)}

    def _remove(self) -> None:
        for layout in layouts(self._connection, self.prefix):
            for keys in layout.ever:
                self._connection.call(command("DEL", *keys.of_each(TOPIC_KEYS)))
        for key in (topics_key(self.prefix), dropped_key(self.prefix)):
            self._connection.call(command("DEL", key))


def _is_due(sent: Sent, delay: Duration | None, at: datetime | None) -> bool:
    if delay is not None:
        return sent.delay_s is not None and round(sent.delay_s * 1000) == duration_ms("delay", delay)
    return at is None or sent.due_ms == moment_ms("at", at)
