"""Writes commands for Lisa with a transaction of the caller."""

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, Connection, bindparam, cast, event, func, insert, select
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.sql.base import Executable

from lisa_common.bodies import Codec, check_codec, coded
from lisa_common.errors import InvalidInput
from lisa_common.model.message import IfExists
from lisa_common.model.policy import DEFAULT_POLICY
from lisa_common.model.record import HEAD_BYTES, VERSION, unpack_record
from lisa_common.protocol.ids import new_ids
from lisa_common.validation import GENERATED_SUFFIX, Duration, check_callable, check_id, check_name
from lisa_producer.message import Message, check_message, new_due
from lisa_producer.outbox.listening import NOTIFY
from lisa_producer.outbox.table import ROWS, dialect_of, now_ms

__all__ = ["Outbox"]

_ANY_SIZE = DEFAULT_POLICY.model_copy(update={"max_body_bytes": sys.maxsize})
_HEAD = bytes((VERSION,)).ljust(HEAD_BYTES - 1, b"\0")
_VALUES = ("topic", "command", "message_id", "due", "options", "body")
_INSERT = insert(ROWS).values(created_ms=now_ms(), **{name: bindparam(name) for name in _VALUES})
_LOCKS = func.unnest(cast(bindparam("locks", type_=ARRAY(BigInteger)), ARRAY(BigInteger))).column_valued("id_lock")
_TAKE_LOCKS = select(func.pg_advisory_xact_lock(_LOCKS))
_DRIVERS = {
    "psycopg": "postgresql",
    "psycopg2": "postgresql",
    "pymysql": "mysql",
    "MySQLdb": "mysql",
    "sqlite3": "sqlite",
}


class Outbox:
    """Writes sends, cancels and reschedules as rows of the caller's transaction; relays carry them out once it commits.

    `connection` is a Connection or Session of SQLAlchemy, a connection of Django, or one of psycopg, psycopg2, pymysql,
    MySQLdb or sqlite3; asyncio sessions call `await session.run_sync(outbox.send, "orders", ...)`. Nothing is asked of
    Redis. So what only the topic's policy decides, such as the largest body, is refused by the relay, which sets the
    row aside.

    Commands of one id are carried out in the order of their commits; PostgreSQL waits for an open transaction that has
    written a command of the same id. MySQL and MariaDB keep the order of transactions that do not overlap.

    `codec` is as for `Producer`. `hint` is called after each commit of a SQLAlchemy session or Django connection, and
    at that of a SQLAlchemy connection: `Relay.wake`, where a relay runs in this process. With `notify`, relays that
    listen look after each commit in PostgreSQL, which commits such transactions one after another.
    """

    def __init__(
        self, *, codec: Codec | None = None, hint: Callable[[], object] | None = None, notify: bool = False
    ) -> None:
        self._codec = check_codec(codec)
        self._notify = notify
        check_callable("hint", hint)
        self._hint = hint

    def send(
        self,
        connection: Any,
        topic: str,
        body: Any,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        at_local: datetime | str | None = None,
        tz: str | None = None,
        id: str | None = None,
        ttl: Duration | None = None,
        max_retries: int | None = None,
        priority: int | None = None,
        headers: Mapping[str, str] | None = None,
        key: str | None = None,
        if_exists: IfExists | None = None,
    ) -> str:
        """Sends one message once the transaction commits; see `Message` for the options. Returns the message id.

        A delay counts from this call, by the database's clock. Raises InvalidInput before the row is written.
        """
        message = Message(
            body=body,
            delay=delay,
            at=at,
            at_local=at_local,
            tz=tz,
            id=id,
            ttl=ttl,
            max_retries=max_retries,
            priority=priority,
            headers=headers,
            key=key,
            if_exists=if_exists,
        )
        return self.send_many(connection, topic, [message])[0]

    def send_many(self, connection: Any, topic: str, messages: Iterable[Message]) -> list[str]:
        """Sends messages once the transaction commits, by one statement for all. Returns the message ids.

        Raises InvalidInput for the first that is invalid, before any row is written.
        """
        check_name("topic", topic)
        taken = [*map(check_message, messages)]
        rows = [self._row_of(message) for message in taken]
        self._write(connection, "send", topic, rows, shared=[message.id for message in taken if message.id is not None])
        return [str(row["message_id"]) for row in rows]

    def cancel(self, connection: Any, topic: str, id: str) -> None:
        """Cancels a message that was not delivered by then, once the transaction commits. Raises InvalidInput."""
        row = {"message_id": check_id(id), "due": "+0"}
        self._write(connection, "cancel", check_name("topic", topic), [row], shared=(id,))

    def reschedule(
        self, connection: Any, topic: str, id: str, *, delay: Duration | None = None, at: datetime | None = None
    ) -> None:
        """Gives a waiting message, or one to be retried, another due time, once the transaction commits.

        A delay counts from this call, by the database's clock. Raises InvalidInput.
        """
        row = {"due": new_due(delay, at), "message_id": check_id(id)}
        self._write(connection, "reschedule", check_name("topic", topic), [row], shared=(id,))

    def _row_of(self, message: Message) -> dict[str, Any]:
        """Returns what is stored of a message. Raises InvalidInput."""
        # A relay that dies repeats its sends, and an id of Lisa's own would not be known after an ack.
        is_new = message.id is None and message.if_exists is None
        chosen = new_ids(1)[0].removesuffix(GENERATED_SUFFIX) if is_new else message.id
        outgoing = replace(message, body=coded(message.body, self._codec), id=chosen).outgoing(_ANY_SIZE, "")
        record = unpack_record(_HEAD + outgoing.content)
        options = {
            "ttl_ms": record.ttl_ms,
            "max_retries": message.max_retries,
            "priority": message.priority,
            "headers": dict(record.headers) or None,
            "if_exists": message.if_exists,
        }
        given = json.dumps({name: value for name, value in options.items() if value is not None})
        return {"message_id": outgoing.id, "due": outgoing.due, "options": given, "body": record.body}

    def _write(
        self, connection: Any, command: str, topic: str, rows: Sequence[dict[str, Any]], *, shared: Iterable[str]
    ) -> None:
        """Writes rows; `shared` are the message ids of which other transactions may write commands."""
        if not rows:
            return
        execute, dialect = _executor(connection)
        # In one order, so that two calls with the same ids cannot deadlock.
        locks = sorted({_lock_of(topic, id) for id in shared})
        if dialect == "postgresql" and locks:
            # A row's id is assigned before the commit: without it, a row could come before one that committed first.
            execute(_TAKE_LOCKS, {"locks": locks})
        execute(_INSERT, [dict.fromkeys(_VALUES) | row | {"command": command, "topic": topic} for row in rows])
        if self._notify and dialect == "postgresql":
            execute(NOTIFY, {})
        if self._hint:
            self._hint_after_commit(connection)

    def _hint_after_commit(self, connection: Any) -> None:
        if isinstance(connection, scoped_session):
            connection = connection()
        if isinstance(connection, Session | Connection):
            name = "after_commit" if isinstance(connection, Session) else "commit"
            if not event.contains(connection, name, self._on_commit):
                event.listen(connection, name, self._on_commit)
        elif hasattr(connection, "on_commit"):
            connection.on_commit(self._on_commit)

    def _on_commit(self, *_: object) -> None:
        if self._hint:
            self._hint()


def _lock_of(topic: str, id: str) -> int:
    digest = hashlib.blake2b(f"lisa_outbox\0{topic}\0{id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def _executor(connection: Any) -> tuple[Callable[[Any, Any], object], str]:
    """Returns what runs statements on a caller's connection, and its dialect. Raises InvalidInput."""
    if isinstance(connection, Session | scoped_session):
        return connection.execute, connection.get_bind(clause=_INSERT).dialect.name
    if isinstance(connection, Connection):
        return connection.execute, connection.dialect.name
    is_django = hasattr(connection, "vendor") and hasattr(connection, "on_commit")
    # Programs have subclasses, and libraries that trace have proxies, which tell the class of what is behind them.
    kinds = connection.__class__.__mro__
    known = (name for kind in kinds if (name := _DRIVERS.get(kind.__module__.partition(".")[0])))
    dialect = connection.vendor if is_django else next(known, None)
    if dialect is None or not hasattr(connection, "cursor") or any("Async" in kind.__name__ for kind in kinds):
        expected = "a connection or session of SQLAlchemy, or a connection of Django or of a driver, none of asyncio"
        raise InvalidInput("connection", connection, expected)
    paramstyle = "named" if dialect == "sqlite" and not is_django else "pyformat"

    def execute(statement: Any, values: Any) -> None:
        cursor = connection.cursor()
        try:
            run = cursor.executemany if isinstance(values, list) else cursor.execute
            run(_text_of(statement, dialect, paramstyle), values)
        finally:
            cursor.close()

    return execute, dialect


@cache
def _text_of(statement: Executable, dialect: str, paramstyle: str) -> str:
    return str(statement.compile(dialect=dialect_of(dialect, paramstyle)))  # type: ignore[attr-defined]
