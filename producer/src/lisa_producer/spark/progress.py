"""What the queries of a session have sent: the sink stores the counts of each micro-batch, and a listener reads them.

PySpark gives a sink written in Python no way to add metrics to the progress of its query.
"""

import json
import logging
from collections import Counter
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from lisa_common.client.connection import Connection
from lisa_common.errors import LisaError
from lisa_common.logs import event
from lisa_common.model.keys import ShardKeys
from lisa_common.protocol import jobs
from lisa_producer.settings import ProducerSettings

__all__ = ["COUNTS", "LisaListener", "batch_of"]

logger = logging.getLogger(__name__)

COUNTS = "counts"
"""Names the counts of a batch among what is kept of it."""


def batch_of(query: str, batch: int, write: str = "") -> str:
    """Names what is kept of a batch, for its query's sink, or for a write of `foreachBatch`."""
    return f"{query}/{batch}/{write}" if write else f"{query}/{batch}"


class LisaListener(StreamingQueryListener):
    """Adds up what queries write to a topic: `written[query id]` counts `rows`, `sent`, `duplicates` and `bad`.

    Override `on_written` to receive the counts of each micro-batch. Without `url` the environment's is used.
    """

    def __init__(self, topic: str, url: str | None = None, *, prefix: str | None = None) -> None:
        given = {"prefix": prefix} if prefix else {}
        settings = ProducerSettings.load(redis_url=url, **given)
        self.written: dict[str, Counter[str]] = {}
        self._keys = ShardKeys(settings.prefix, topic)
        self._connection = Connection.of(settings, name="lisa-spark", url=url)

    def on_written(self, query: str, batch: int, counts: dict[str, int]) -> None:
        """Called with the counts of a micro-batch; does nothing."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Does nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Reads the counts of the micro-batch."""
        query, batch = str(event.progress.id), event.progress.batchId
        try:
            text = self._connection.call(jobs.read_written(self._keys, batch_of(query, batch), COUNTS))
        except LisaError as error:
            _report(error)
            return
        if text:
            counts: dict[str, Any] = json.loads(text)
            self.written.setdefault(query, Counter()).update(counts)
            self.on_written(query, batch, counts)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Does nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Does nothing."""


def _report(error: LisaError) -> None:
    logger.warning("counts of a batch are unknown: %s", error, extra=event("counts_unknown", error=str(error)))
