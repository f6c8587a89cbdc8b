"""The metrics and the health of a relay over HTTP."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from lisa_common.observing.catalog import Program
from lisa_common.observing.health import Health
from lisa_common.observing.server import serving
from lisa_producer import metrics
from lisa_producer.outbox.inspection import read_backlog

__all__ = ["observed"]


@contextmanager
def observed(address: str | None, engine: Engine, health: Health) -> Iterator[None]:
    """Serves the metrics of a producer and of the outbox, and health, while its block runs; nothing without an address.

    Raises MissingExtra without the packages, and InvalidInput if it cannot listen.
    """
    if address is None:
        yield
        return
    metrics.register()
    # Imported here, as only this needs the extra.
    from prometheus_client.registry import Collector  # noqa: PLC0415

    from lisa_common.observing.prometheus import Values, default, families_of  # noqa: PLC0415

    class Rows(Collector):
        """Counts the rows at each scrape. While the database is away there are none."""

        def collect(self) -> Any:
            values: Values = {}
            try:
                backlog = read_backlog(engine)
            except SQLAlchemyError:
                # The relay logs it, and is not ready.
                pass
            else:
                values["lisa_outbox_rows"] = {("waiting",): backlog.waiting, ("set_aside",): backlog.set_aside}
                values["lisa_outbox_oldest_seconds"] = {(): backlog.oldest_s}
            return families_of(Program.PRODUCER, values)

        def describe(self) -> Any:
            return families_of(Program.PRODUCER, {})

    registry, rows = default(), Rows()
    registry.register(rows)
    try:
        with serving(address, registry, health):
            yield
    finally:
        registry.unregister(rows)
