"""What the tables of the outbox tell operators: how much waits, and what is wrong."""

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, case, func, inspect, select

from lisa_producer.outbox.table import LEASES, METADATA, ROWS, WAITS, age_ms, now_ms

__all__ = ["Backlog", "find_problems", "read_backlog"]

_MOST_MS = 2**53
"""SQLite takes times that are infinite, which JSON does not."""
_LATE_MS = 60_000
"""Rows that wait for longer are late; a topic that no relay has worked on for that long has none."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """The number of rows in the outbox, and their age."""

    waiting: int
    oldest_s: float
    """Age of the oldest waiting row; 0 for none."""
    set_aside: int


def read_backlog(engine: Engine) -> Backlog:
    """Counts the rows. Takes longer the more there are: 0.1 s for a million."""
    query = select(
        func.count(case((WAITS, 1))),
        age_ms(func.min(case((WAITS, ROWS.c.created_ms)))),
        func.count(ROWS.c.error),
    )
    with engine.connect() as connection:
        waiting, oldest_ms, set_aside = connection.execute(query).one()
    return Backlog(waiting, max(0, min(oldest_ms or 0, _MOST_MS)) / 1000, set_aside)


def find_problems(engine: Engine) -> list[str]:
    """Returns a line for each problem of the tables, or of the rows if the tables are as they must be."""
    return list(_of_tables(engine)) or list(_of_rows(engine))


def _of_tables(engine: Engine) -> Iterator[str]:
    remedy = f"see lisa-producer outbox ddl --dialect {engine.dialect.name}"
    found = inspect(engine)
    for table in METADATA.sorted_tables:
        if not found.has_table(table.name):
            yield f"table {table.name} is missing; {remedy}"
            continue
        columns = {column["name"] for column in found.get_columns(table.name)}
        if missing := [column.name for column in table.columns if column.name not in columns]:
            yield f"table {table.name} has no column {', '.join(missing)}: another release has created it; {remedy}"
        indexes = {index["name"] for index in found.get_indexes(table.name)}
        for index in table.indexes:
            if index.name not in indexes:
                yield f"table {table.name} has no index {index.name}, so relays read all of it; {remedy}"


def _of_rows(engine: Engine) -> Iterator[str]:
    aside = (
        select(ROWS.c.topic, func.count(), func.min(ROWS.c.id))
        .where(ROWS.c.error.is_not(None))
        .group_by(ROWS.c.topic)
        .order_by(ROWS.c.topic)
    )
    oldest_ms = age_ms(func.min(ROWS.c.created_ms))
    late = (
        select(ROWS.c.topic, func.count(), oldest_ms)
        .where(WAITS)
        .group_by(ROWS.c.topic)
        .having(oldest_ms > _LATE_MS)
        .order_by(ROWS.c.topic)
    )
    with engine.connect() as connection:
        for topic, count, first in connection.execute(aside):
            error = connection.scalar(select(ROWS.c.error).where(ROWS.c.id == first))
            yield f"{count} rows for {topic or 'no topic'} are set aside, the first (id {first}) because {error}"
        for topic, count, late_ms in connection.execute(late):
            cause = (
                "a relay has tried: its log and /readyz say why"
                if _is_served(connection, topic)
                else "no relay works on them: start lisa-producer outbox run"
            )
            yield f"{count} rows for {topic} wait, the oldest for {min(late_ms, _MOST_MS) // 1000:.0f} s, and {cause}"


def _is_served(connection: Connection, topic: str) -> bool:
    recent = select(LEASES.c.topic).where(LEASES.c.topic == topic, LEASES.c.until_ms > now_ms() - _LATE_MS)
    return connection.scalar(recent) is not None
