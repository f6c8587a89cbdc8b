"""The reporter: publishes the events of the other jobs, for gateways, which count them in windows."""

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import AccessDenied
from lisa_common.model.keys import events_channel
from lisa_common.model.needs import Optional
from lisa_common.protocol.call import command
from lisa_common.protocol.managing import Promoted
from lisa_manager.admin.events import TopicEvents, write_events
from lisa_manager.jobs.history_writer import HistoryWriter

__all__ = ["Reporter"]

_MAX_TOPICS = 10_000


class Reporter:
    """Gathers what happened to each topic until its next turn. Events that a turn cannot publish are lost."""

    def __init__(self, connection: AsyncConnection, prefix: str, history_writer: HistoryWriter | None = None) -> None:
        self._connection = connection
        self._prefix = prefix
        self._history_writer = history_writer
        self._events: dict[str, TopicEvents] = {}

    def note_promoted(self, topic: str, promoted: Promoted) -> None:
        """Notes messages that became ready now."""
        lags_ms = [(max(0, promoted.now_ms - due_ms), count) for due_ms, count in promoted.dues]
        if self._history_writer:
            self._history_writer.note_promoted(topic, lags_ms)
        if promoted.count and (of := self._of(topic)):
            of.ready += promoted.count
            of.late_ms += sum(lag_ms * count for lag_ms, count in lags_ms)
            of.latest_ms = max([of.latest_ms, *(lag_ms for lag_ms, _ in lags_ms)])

    def note_ended(self, topic: str, *, timeouts: int = 0, ended: int = 0) -> None:
        """Notes deliveries whose leases had ended, and messages that will not be delivered again."""
        if (timeouts or ended) and (of := self._of(topic)):
            of.timeouts += timeouts
            of.ended += ended

    def _of(self, topic: str) -> TopicEvents | None:
        if topic not in self._events and len(self._events) >= _MAX_TOPICS:
            return None
        return self._events.setdefault(topic, TopicEvents())

    async def turn(self) -> None:
        """Publishes the gathered events, if there are any."""
        events, self._events = self._events, {}
        if events:
            try:
                await self._connection.call(command("PUBLISH", events_channel(self._prefix), write_events(events)))
            except AccessDenied as error:
                self._connection.refusals.note(Optional.PUBLISH, error)
