"""The database of a command line."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from lisa_common.errors import Described, InvalidInput, LisaError
from lisa_common.escaping import named_text

__all__ = ["opened"]


@contextmanager
def opened(url: str) -> Iterator[Engine]:
    """An engine for a URL. Raises InvalidInput, and LisaError where the database raises an error of its own."""
    try:
        engine = create_engine(url, pool_pre_ping=True)
    except (ArgumentError, ModuleNotFoundError, ValueError) as error:
        expected = f"SQLAlchemy's URL of a database whose driver is installed ({named_text(error)})"
        raise InvalidInput("database", Described("another one"), expected.replace(url, "…")) from None
    try:
        yield engine
    except SQLAlchemyError as error:
        raise LisaError(f"the database fails: {named_text(getattr(error, 'orig', None) or error)}") from None
    finally:
        engine.dispose()
