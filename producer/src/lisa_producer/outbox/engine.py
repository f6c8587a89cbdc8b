"""The database of a command line."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from lisa_common.errors import InvalidInput, LisaError, Verbatim
from lisa_common.escaping import named_text

__all__ = ["failure_text", "opened"]


def failure_text(error: Exception) -> str:
    """Returns the text of a driver's error on one line: drivers write line breaks and tabs."""
    return " ".join(named_text(getattr(error, "orig", None) or error).split())


def _is_missing_file(url: URL) -> bool:
    """Whether a URL names a file of SQLite that does not exist: to open it would make an empty database."""
    name = url.database or ":memory:"
    return url.get_backend_name() == "sqlite" and not name.startswith((":memory:", "file:")) and not Path(name).exists()


@contextmanager
def opened(url: str) -> Iterator[Engine]:
    """An engine for a URL. Raises InvalidInput, and LisaError where the database raises an error of its own."""
    try:
        engine = create_engine(url, pool_pre_ping=True)
    except (ArgumentError, ModuleNotFoundError, ValueError) as error:
        # Where Python cannot read the port, it shows what follows a colon: it may be the rest of a password.
        reason = "in a password, write : / @ as %XX" if isinstance(error, ValueError) else named_text(error)
        expected = f"SQLAlchemy's URL of a database whose driver is installed ({reason})"
        raise InvalidInput("database", Verbatim("another one"), expected.replace(url or "\n", "…")) from None
    if _is_missing_file(engine.url):
        raise InvalidInput("database", engine.url.render_as_string(), "a file that exists")
    try:
        yield engine
    except SQLAlchemyError as error:
        raise LisaError(f"the database fails: {failure_text(error)}") from None
    finally:
        engine.dispose()
