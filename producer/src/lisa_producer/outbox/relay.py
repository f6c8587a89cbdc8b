"""Relays rows of the outbox to Lisa.

A relay works on one topic at a time, in three steps: a transaction that takes the topic's lease and reads its first
rows; the calls to Redis, while no transaction is open; and a transaction that deletes what is done and gives the lease
back. docs/design.md has the reasons.
"""

import logging
import secrets
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    BindParameter,
    Connection,
    Engine,
    and_,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    type_coerce,
    update,
)
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.types import NullType

from lisa_common.backoff import Backoff
from lisa_common.client.closing import Closing
from lisa_common.errors import UNDONE, InvalidInput, LisaError, QueueFull
from lisa_common.logs import event
from lisa_common.validation import check_int, duration_ms
from lisa_producer.client import Producer
from lisa_producer.message import Confirm
from lisa_producer.outbox.engine import failure_text
from lisa_producer.outbox.listening import check_listens, listening
from lisa_producer.outbox.relayed import RelayedMessage, Row
from lisa_producer.outbox.table import LEASES, ROWS, WAITS, age_ms, now_ms
from lisa_producer.results import BatchResults, PartialSend
from lisa_producer.settings import ProducerSettings

__all__ = ["Relay"]

logger = logging.getLogger(__name__)

_FIRST_POLL_S = 0.005
_SLOWER = 1.2
_RETRY: Final = Backoff(base=0.2, cap=10.0)
_BATCH_BYTES = 8 * 1024 * 1024
_STUCK_S = 30.0
_MOST_ROWS = 10_000
_LONGEST_LEASE_S = 3_600
_DEADLOCK = 1213
"""Of MySQL: two relays looked for the lease of a new topic, and each waits for the other to write it."""

# Made once: SQLAlchemy takes as long to make a statement as to run it.
_TOPIC: BindParameter[str] = bindparam("of")
_ME: BindParameter[str] = bindparam("me")
_FIRST_TOPIC = select(ROWS.c.topic).where(WAITS).order_by(ROWS.c.topic).limit(1)
_NEXT_TOPIC = _FIRST_TOPIC.where(ROWS.c.topic > _TOPIC)
_UNTIL = now_ms() + bindparam("lease_ms", type_=BigInteger)
_OF_TOPIC = update(LEASES).where(LEASES.c.topic == _TOPIC)
_MINE = _OF_TOPIC.where(LEASES.c.owner == _ME)
_TAKE = _OF_TOPIC.where(LEASES.c.owner == "").values(owner=_ME, until_ms=_UNTIL, began_ms=now_ms())
# One that lasts for longer than any is of a clock that was set back since: nobody would wait for its end.
_HAS_ENDED = or_(LEASES.c.until_ms < now_ms(), LEASES.c.until_ms > now_ms() + _LONGEST_LEASE_S * 1000)
_TAKE_OVER = _OF_TOPIC.where(or_(LEASES.c.owner == _ME, _HAS_ENDED)).values(owner=_ME)
_RENEW = _MINE.values(until_ms=_UNTIL, began_ms=func.coalesce(LEASES.c.began_ms, now_ms()))
_FIND_LEASE = select(LEASES.c.topic).where(LEASES.c.topic == _TOPIC)
_NEW_LEASE = insert(LEASES).values(topic=_TOPIC, owner=_ME, until_ms=_UNTIL, began_ms=now_ms())
_TRIED_MS = select(now_ms() - LEASES.c.began_ms).where(LEASES.c.topic == _TOPIC)
# By its length, too: MySQL and MariaDB ignore blanks at the end.
_WAITING = and_(ROWS.c.topic == _TOPIC, func.length(ROWS.c.topic) == func.length(_TOPIC), WAITS)
_IDS = select(ROWS.c.message_id).where(_WAITING).order_by(ROWS.c.id).limit(_MOST_ROWS)
_FIRST = (
    select(
        *(ROWS.c[name] for name in ("id", "command", "message_id", "due", "options")),
        # As the driver reads it: SQLAlchemy fails for text in SQLite, and with it the whole query.
        type_coerce(ROWS.c.body, NullType()),
        age_ms(ROWS.c.created_ms).label("age_ms"),
    )
    .where(_WAITING)
    .order_by(ROWS.c.id)
    .limit(bindparam("rows"))
)
# Read first, as bodies may be large.
_SIZES = _FIRST.with_only_columns(ROWS.c.message_id, func.coalesce(func.length(ROWS.c.body), 0))
# In the past; `outbox check` sees when a relay last worked.
_GIVE_BACK = _MINE.values(owner="", until_ms=now_ms() - 1, began_ms=None)
_KEEP = _MINE.values(began_ms=now_ms() - bindparam("tried_ms", type_=BigInteger))
_DELETE = delete(ROWS).where(ROWS.c.id.in_(bindparam("ids", expanding=True)))


@dataclass(slots=True)
class _Topic:
    """The state of a topic in a relay."""

    rows: int
    """Most rows to read at once."""
    tried: dict[str, float] | None = None
    """As in the latest claim, if that ended well; None where only the lease may know."""
    changed: float = 0.0
    failures: int = 0
    retry_at: float = 0.0
    problem: str = ""


@dataclass(slots=True)
class _Claim:
    """The first rows of a topic, while a lease on it lasts; times are of the monotonic clock."""

    rows: Sequence[Row]
    enough: float
    """When to begin no more rows: those under way need the rest of the lease."""
    until: float
    tried: dict[str, float]
    """Since when the first waiting row of a message id may have been sent; ids of rows that were not are absent."""
    changed: float
    """When the relay last cancelled, rescheduled or replaced a message of the topic."""
    done: list[int] = field(default_factory=list)
    aside: dict[int, str] = field(default_factory=dict)

    def end(self, row: Row, error: str = "") -> None:
        """Notes that a row is done, or set aside with an error. What follows it of its id was not tried."""
        if error:
            self.aside[row.id] = error
        else:
            self.done.append(row.id)
        self.tried.pop(row.message_id, None)

    def check(self) -> None:
        """Raises _LeaseEnded once another relay may work on the rows."""
        if time.monotonic() >= self.until:
            raise _LeaseEnded("the lease on the topic has ended")


class _LeaseEnded(LisaError):
    """A relay was too slow, or paused."""


class Relay(Closing):
    """Relays rows of an outbox: `run` until `stop`, or `relay_once`. Any number may run, in any number of processes.

    `engine` is SQLAlchemy's, a blocking one. Without `url` or `settings`, those of a producer come from the environment
    or `lisa.toml`. `confirm` is waited for before a row is deleted. Polls slow down to one in `poll` seconds (or
    timedelta) while nothing comes; `wake` makes the next one come at once, and with `listen` so does each commit of
    an `Outbox(notify=True)` in PostgreSQL. If a relay dies, another one takes over its topic after `lease`. Raises
    InvalidInput.
    """

    def __init__(
        self,
        engine: Engine,
        url: str | None = None,
        *,
        confirm: Confirm | None = None,
        settings: ProducerSettings | None = None,
        rows: int = 1_000,
        poll: Any = 1.0,
        lease: Any = 15.0,
        listen: bool = False,
    ) -> None:
        if not isinstance(engine, Engine):
            raise InvalidInput("engine", engine, "an Engine of SQLAlchemy, none of asyncio")
        if listen:
            check_listens(engine)
        self._listens = listen
        self._engine = engine
        self._most_rows = check_int("rows", rows, 1, _MOST_ROWS)
        self._poll_s = duration_ms("poll", poll, low_ms=10, high_s=60) / 1000
        self._lease_ms = duration_ms("lease", lease, low_ms=1_000, high_s=_LONGEST_LEASE_S)
        given = ProducerSettings.of(settings, redis_url=url)
        # It waits by itself, and without a lease.
        self._producer = Producer(confirm=confirm, settings=given.model_copy(update={"patience_s": 0.0}))
        self._name = secrets.token_hex(16)
        self._topics: dict[str, _Topic] = {}
        self._woken = threading.Event()
        self._stopped = False
        self._problem = ""
        self._looked_at = time.monotonic()

    @property
    def problem(self) -> str:
        """Why it does not relay now, or not to some topic; "" if it relays everything."""
        silent_s = time.monotonic() - self._looked_at
        if silent_s > self._poll_s + _STUCK_S:
            return f"the database or Redis has not answered for {silent_s:.0f} s"
        waiting = (f"{name}: {topic.problem}" for name, topic in list(self._topics.items()) if topic.problem)
        return self._problem or next(waiting, "")

    def run(self) -> None:
        """Relays until `stop`. Waits for the database and for Redis while they are away."""
        with listening(self._engine, self.wake) if self._listens else nullcontext():
            self._poll()

    def _poll(self) -> None:
        wait_s, failures = _FIRST_POLL_S, 0
        while not self._stopped:
            try:
                relayed = self.relay_once()
            except Exception as error:  # noqa: BLE001 - SQLAlchemy passes on some errors of drivers as they are
                self._note_problem(error)
                failures += 1
                wait_s = _RETRY.compute(failures)
            else:
                self._problem, failures = "", 0
                wait_s = 0 if relayed else min(max(wait_s, _FIRST_POLL_S) * _SLOWER, self._poll_s)
            if self._woken.wait(wait_s):
                self._woken.clear()
                wait_s = 0

    def wake(self) -> None:
        """Looks for rows now; for use as `Outbox(hint=relay.wake)`. Thread-safe."""
        self._woken.set()

    def stop(self) -> None:
        """Ends `run` after the rows at hand. Thread-safe."""
        self._stopped = True
        self.wake()

    def close(self) -> None:
        """Closes the connections to Redis; the engine is the caller's."""
        self.stop()
        self._producer.close()

    def relay_once(self) -> int:
        """Relays the first rows of each topic. Returns how many were sent, or set aside.

        A topic that Redis does not take waits, and is logged. Raises the errors of the database.
        """
        with self._engine.connect() as connection:
            try:
                return self._relay_topics(connection)
            except DBAPIError:
                # A server that takes no more writes, as after a fail-over, may go on answering: the next connection may
                # lead to another.
                connection.invalidate()
                raise

    def _relay_topics(self, connection: Connection) -> int:
        relayed, name = 0, None
        while not self._stopped and (name := self._find_topic_after(connection, name)) is not None:
            topic = self._topics.setdefault(name, _Topic(self._most_rows))
            if time.monotonic() < topic.retry_at or not (claim := self._claim(connection, name, topic)):
                continue
            failure = self._carry_out(name, claim)
            if self._finish(connection, name, claim, complete=failure is None and not claim.tried):
                topic.tried, topic.changed = claim.tried, claim.changed
            relayed += len(claim.done) + len(claim.aside)
            self._judge(name, topic, claim, failure)
        return relayed

    def _find_topic_after(self, connection: Connection, name: str | None) -> str | None:
        """The next topic that has waiting rows, by name; None for none. As quick with a million rows as with one."""
        self._looked_at = time.monotonic()
        with connection.begin():
            return connection.scalar(_FIRST_TOPIC if name is None else _NEXT_TOPIC, {"of": name})

    def _claim(self, connection: Connection, name: str, topic: _Topic) -> _Claim | None:
        """Takes the lease of a topic and reads its first rows; None while another relay has the lease."""
        asked = time.monotonic()
        known, topic.tried = topic.tried, None
        try:
            with connection.begin():
                tried = self._take(connection, name, known)
                if tried is None:
                    return None
                waiting = connection.execute(_SIZES, {"of": name, "rows": topic.rows}).all()
                before = accumulate((size for _, size in waiting[:-1]), initial=0)
                fit = sum(size < _BATCH_BYTES for size in before)
                found = connection.execute(_FIRST, {"of": name, "rows": fit}).all()
                # Before the commit, which may take longer than a cancel takes to follow a send.
                read_at = time.monotonic()
        except DBAPIError as error:
            if not isinstance(error, IntegrityError) and getattr(error.orig, "args", ())[:1] != (_DEADLOCK,):
                raise
            # Another relay has written the lease first.
            return None
        if len(waiting) < topic.rows:
            # These are all. Others of the ids were deleted by hand.
            tried = {id: tried[id] for id, _ in waiting if id in tried}
        rows = [Row._make((*row, read_at)) for row in found]
        lease_s = self._lease_ms / 1000
        return _Claim(rows, asked + lease_s / 2, asked + lease_s, tried, topic.changed)

    def _take(self, connection: Connection, name: str, known: dict[str, float] | None) -> dict[str, float] | None:
        """Takes or renews a lease. Returns what may have been tried; None while another relay has the lease."""
        of = {"of": name, "me": self._name, "lease_ms": self._lease_ms}
        if connection.execute(_TAKE, of).rowcount:
            return {}
        if known is not None and connection.execute(_RENEW, of).rowcount:
            return known
        if connection.execute(_TAKE_OVER, of).rowcount:
            known = self._read_tried(connection, name)
            connection.execute(_RENEW, of)
            return known
        if connection.scalar(_FIND_LEASE, of):
            return None
        connection.execute(_NEW_LEASE, of)
        return {}

    def _read_tried(self, connection: Connection, name: str) -> dict[str, float]:
        """What the owner of the lease before may have tried: only the time is known."""
        tried_ms = connection.scalar(_TRIED_MS, {"of": name})
        if tried_ms is None:
            return {}
        # Rounded down: a moment before the end of an earlier command of the id would make a send pass for a repeat of
        # what that command withdrew.
        since = time.monotonic() - max(0, int(tried_ms) - 1) / 1000
        return dict.fromkeys(connection.scalars(_IDS, {"of": name}), since)

    def _carry_out(self, name: str, claim: _Claim) -> LisaError | None:
        """Carries out the rows of a claim in order, until one fails or time is short; returns the error.

        Sends of different ids travel together. Two commands of one id never do.
        """
        sends: dict[str, tuple[Row, RelayedMessage]] = {}
        try:
            for row in claim.rows:
                try:
                    if row.command != "send" or row.message_id in sends:
                        self._send(name, claim, sends)
                    if row.command == "send":
                        since = claim.tried.get(row.message_id, time.monotonic())
                        sends[row.message_id] = row, row.message(since)
                    else:
                        self._change(name, claim, row)
                except InvalidInput as error:
                    claim.end(row, str(error))
                if time.monotonic() >= claim.enough:
                    break
            self._send(name, claim, sends)
        except LisaError as error:
            return error
        return None

    def _send(self, name: str, claim: _Claim, sends: dict[str, tuple[Row, RelayedMessage]]) -> None:
        """Sends messages, and forgets them. Raises the error of the first that was not refused for good."""
        taken = list(sends.values())
        sends.clear()
        if not taken:
            return
        claim.check()
        failures: list[LisaError] = []

        def take(results: BatchResults) -> None:
            for result in results:
                row, message = taken[result.position]
                if result.error is None or isinstance(result.error, InvalidInput):
                    claim.end(row, str(result.error or ""))
                    claim.changed = time.monotonic() if message.if_exists else claim.changed
                    continue
                failures.append(result.error)
                if not isinstance(result.error, UNDONE):
                    claim.tried.setdefault(row.message_id, message.since)

        try:
            self._producer.send_many(name, [message for _, message in taken], on_batch=take)
        except PartialSend as error:
            failures.append(error)
        except InvalidInput as error:
            for row, _ in taken:
                claim.end(row, str(error))
        if failures:
            raise failures[0]

    def _change(self, name: str, claim: _Claim, row: Row) -> None:
        """Cancels or reschedules a message. Raises InvalidInput for a row that nothing can carry out."""
        claim.check()
        if row.command == "cancel":
            outcome: str = self._producer.cancel(name, row.message_id)
        elif row.command == "reschedule":
            outcome = self._producer.reschedule(name, row.message_id, **row.due_option())
        else:
            raise InvalidInput("command", row.command, "send, cancel or reschedule")
        claim.changed = time.monotonic()
        claim.end(row)
        fields = event("outbox_row_relayed", topic=name, id=row.message_id, command=row.command, outcome=outcome)
        logger.debug("%s of %s in %s: %s", row.command, row.message_id, name, outcome, extra=fields)

    def _finish(self, connection: Connection, name: str, claim: _Claim, *, complete: bool) -> bool:
        """Deletes what is done, and gives the lease back if `complete`. Returns whether this relay still has the lease.

        Otherwise the lease says since when the rows that are left may have been sent, for a relay that knows no more.
        """
        of: dict[str, Any] = {"of": name, "me": self._name, "tried_ms": None}
        if claim.tried:
            # No earlier than the end of a change: what follows it of its id would pass for a repeat.
            tried = max(claim.changed, min(claim.tried.values()))
            of["tried_ms"] = int((time.monotonic() - tried) * 1000) - 1
        with connection.begin():
            kept = connection.execute(_GIVE_BACK if complete else _KEEP, of)
            if not kept.rowcount:
                claim.done, claim.aside = [], {}
                return False
            if claim.done:
                connection.execute(_DELETE, {"ids": claim.done})
            for id, error in claim.aside.items():
                connection.execute(update(ROWS).where(ROWS.c.id == id).values(error=error))
        for id, error in claim.aside.items():
            fields = event("outbox_row_set_aside", topic=name, row=id, error=error)
            logger.error("set aside row %d of the outbox for %s: %s", id, name, error, extra=fields)
        return True

    def _judge(self, name: str, topic: _Topic, claim: _Claim, failure: LisaError | None) -> None:
        """Decides when to look at a topic again, and how many rows to read."""
        cause = failure.__cause__ if isinstance(failure, PartialSend) else failure
        if isinstance(cause, QueueFull) and len(claim.rows) > 1:
            # A topic takes all messages of a call or none.
            topic.rows = max(1, min(topic.rows, len(claim.rows)) // 2)
            return
        if failure is None:
            topic.rows = min(self._most_rows, 2 * topic.rows)
            if topic.failures:
                logger.info("the outbox relays to %s again", name, extra=event("outbox_resumed", topic=name))
            topic.failures, topic.problem = 0, ""
            return
        topic.failures, topic.problem = topic.failures + 1, str(failure)
        topic.retry_at = time.monotonic() + _RETRY.compute(topic.failures)
        if topic.failures == 1:
            fields = event("outbox_waits", topic=name, error=str(failure))
            logger.warning("the outbox does not relay to %s: %s", name, failure, extra=fields)

    def _note_problem(self, error: Exception) -> None:
        reason = f"database: {failure_text(error)}"
        if reason != self._problem:
            logger.warning("the outbox relays nothing: %s", reason, extra=event("outbox_waits", error=reason))
        self._problem = reason
