"""The tables of the outbox: rows that wait for a relay, and the lease of each topic. For PostgreSQL, MySQL, SQLite."""

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    literal_column,
    type_coerce,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateIndex, CreateTable
from sqlalchemy.sql.functions import FunctionElement

from lisa_common.errors import InvalidInput
from lisa_common.validation import MAX_ID_BYTES, MAX_NAME_LENGTH

__all__ = ["LEASES", "METADATA", "ROWS", "WAITS", "age_ms", "ddl", "dialect_of", "now_ms", "outbox_tables"]

METADATA: Final = MetaData()

_ROW_ID = BigInteger().with_variant(Integer(), "sqlite")
# Topics differ by case.
_NAME = String(MAX_NAME_LENGTH).with_variant(
    mysql.VARCHAR(MAX_NAME_LENGTH, charset="ascii", collation="ascii_bin"), "mysql", "mariadb"
)
_BYTES = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
_OPTIONS: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4"}

ROWS: Final = Table(
    "lisa_outbox",
    METADATA,
    Column("id", _ROW_ID, Identity(), primary_key=True),
    Column("topic", _NAME, nullable=False),
    Column("command", String(10), nullable=False, comment="send, cancel or reschedule"),
    Column("message_id", String(MAX_ID_BYTES), nullable=False),
    Column("due", String(24), nullable=False, comment="ms since 1970, or +ms since created_ms"),
    Column("created_ms", BigInteger, nullable=False, comment="when the row was written, by the database's clock"),
    Column("options", Text, comment="JSON: the other options of a send"),
    Column("body", _BYTES),
    Column("error", Text, comment="why the row was set aside; set it to NULL to try again"),
    sqlite_autoincrement=True,
    **_OPTIONS,
)

WAITS: Final = ROWS.c.error.is_(None)
"""The condition of rows that wait for a relay."""

Index("lisa_outbox_waiting", ROWS.c.topic, ROWS.c.id, postgresql_where=WAITS, sqlite_where=WAITS)

LEASES: Final = Table(
    "lisa_outbox_lease",
    METADATA,
    Column("topic", _NAME, primary_key=True),
    Column("owner", String(32), nullable=False, comment="the relay that works on the topic; empty for none"),
    Column("until_ms", BigInteger, nullable=False, comment="when another relay may take over"),
    Column("began_ms", BigInteger, comment="since when its first rows may have been sent; NULL if none was"),
    **_OPTIONS,
)


class now_ms(FunctionElement[int]):  # noqa: N801 - a function of SQL
    """The database's clock in ms since 1970, in a transaction too: the time of the statement."""

    type = BigInteger()
    inherit_cache = True


def age_ms(created_ms: Any) -> Any:
    """The age of a row. As a fraction: an integer would overflow for times that other programs have written."""
    return type_coerce(now_ms() - created_ms * literal_column("1.0"), Float)


@compiles(now_ms)
def _of_postgresql(*_: Any, **__: Any) -> str:
    return "CAST(FLOOR(EXTRACT(epoch FROM clock_timestamp()) * 1000) AS BIGINT)"


@compiles(now_ms, "mysql", "mariadb")
def _of_mysql(*_: Any, **__: Any) -> str:
    # UNIX_TIMESTAMP goes by the time zone of the session, which may show an hour twice.
    return "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)"


@compiles(now_ms, "sqlite")
def _of_sqlite(*_: Any, **__: Any) -> str:
    return "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"


def outbox_tables(metadata: MetaData) -> tuple[Table, ...]:
    """Adds the tables to your metadata, as for Alembic's autogenerate; returns them."""
    return tuple(table.to_metadata(metadata) for table in METADATA.sorted_tables)


def dialect_of(name: str, paramstyle: Any = "pyformat") -> Dialect:
    """The dialect of a database by its name. Raises InvalidInput."""
    kinds: dict[str, Any] = {
        "postgresql": postgresql.dialect,
        "mysql": mysql.dialect,
        "mariadb": mysql.dialect,
        "sqlite": sqlite.dialect,
    }
    if name not in kinds:
        raise InvalidInput("dialect", name, f"one of {', '.join(kinds)}")
    dialect: Dialect = kinds[name](paramstyle=paramstyle)
    return dialect


def ddl(dialect: str) -> list[str]:
    """The statements that create the tables, for "postgresql", "mysql", "mariadb" or "sqlite"."""
    known = dialect_of(dialect)
    elements: list[Any] = [
        element
        for table in METADATA.sorted_tables
        for element in (CreateTable(table), *(CreateIndex(index) for index in table.indexes))
    ]
    return [str(element.compile(dialect=known)).strip().replace("\t", "    ") for element in elements]
