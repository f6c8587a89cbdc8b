"""Hints from commits in other processes: NOTIFY of PostgreSQL, by psycopg."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import Engine, text

from lisa_common.errors import InvalidInput
from lisa_common.logs import event
from lisa_producer.outbox.engine import failure_text

__all__ = ["NOTIFY", "check_listens", "listening"]

logger = logging.getLogger(__name__)

NOTIFY: Final = text("NOTIFY lisa_outbox")

_LOOK_S = 0.5
_AWAY_S = 5.0


def check_listens(engine: Engine) -> None:
    """Raises InvalidInput for a database or a driver that cannot be listened to."""
    if (engine.dialect.name, engine.dialect.driver) != ("postgresql", "psycopg"):
        raise InvalidInput("listen", True, "False, unless the database is PostgreSQL by psycopg 3")  # noqa: FBT003


@contextmanager
def listening(engine: Engine, wake: Callable[[], object]) -> Iterator[None]:
    """Calls `wake` after each commit that notifies, while its block runs."""
    ending = threading.Event()
    thread = threading.Thread(target=_listen, args=(engine, wake, ending), name="lisa-outbox-listen", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def _listen(engine: Engine, wake: Callable[[], object], ending: threading.Event) -> None:
    while not ending.is_set():
        try:
            with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                # Its own: it goes on listening.
                connection.detach()
                connection.execute(text("LISTEN lisa_outbox"))
                wake()
                driver: Any = connection.connection.driver_connection
                while not ending.is_set():
                    for _ in driver.notifies(timeout=_LOOK_S, stop_after=1):
                        wake()
        except Exception as error:  # noqa: BLE001 - drivers raise their own; the relay polls meanwhile
            reason = failure_text(error)
            logger.warning("the outbox does not listen: %s", reason, extra=event("outbox_deaf", error=reason))
            ending.wait(_AWAY_S)
