"""The blocking producer."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar

from lisa_common.client.connection import Connection
from lisa_common.protocol.call import Flow
from lisa_common.protocol.producing import CancelOutcome, Found, RescheduleOutcome
from lisa_common.protocol.registry import Topics
from lisa_common.validation import Duration
from lisa_producer import by_id, core
from lisa_producer.batch import open_batch
from lisa_producer.gathering import Gatherer
from lisa_producer.message import (
    Confirm,
    Message,
    PartialSend,
    SendReport,
    SendResult,
    due_argument,
)
from lisa_producer.settings import ProducerSettings

__all__ = ["Producer"]

T = TypeVar("T")


class Producer:
    """Sends messages. Safe to share among threads; `lisa_producer.AsyncProducer` is its asyncio twin.

    The URL, and everything that `ProducerSettings` holds, comes from the environment or `lisa.toml` where it is not
    given. `confirm` is the default for every send. A topic that is not declared is, with the default policy.

    While the server is away or refuses writes, each call tries again for `settings.patience_s` seconds, then raises
    `Unreachable` or `Refused`. A connection that breaks between request and reply is tried again as well where that
    cannot send twice: the message has an id of the caller's, which the topic's dedup window keeps known for as long as
    this producer tries (`patience_s` and twice `timeout_s`), or it is due in more than that and in more than 5 minutes.
    Else the call raises `OutcomeUnknown`, unless `settings.at_least_once` accepts that.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        confirm: Confirm | None = None,
        settings: ProducerSettings | None = None,
    ) -> None:
        self._settings = settings or ProducerSettings.load(redis_url=url)
        self._confirm = confirm
        self._topics = Topics(self._settings.prefix)
        self._connection = Connection.of(self._settings, name="lisa-producer", url=url)
        self._calls = Gatherer(self._connection, self._settings)

    def send(
        self,
        topic: str,
        body: Any,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        id: str | None = None,
        ttl: Duration | None = None,
        max_retries: int | None = None,
        priority: int | None = None,
        headers: Mapping[str, str] | None = None,
        confirm: Confirm | None = None,
    ) -> SendResult:
        """Sends one message; see `Message` for what each option means.

        Raises InvalidInput before anything is written, NotConfirmed after it was written.
        """
        message = Message(
            body=body,
            delay=delay,
            at=at,
            id=id,
            ttl=ttl,
            max_retries=max_retries,
            priority=priority,
            headers=headers,
        )
        return self._calls.run(topic, core.send(self._topics, topic, message, self._settings, confirm or self._confirm))

    def send_many(
        self,
        topic: str,
        messages: Iterable[Message],
        *,
        on_result: Callable[[SendResult], object] | None = None,
        confirm: Confirm | None = None,
    ) -> SendReport:
        """Sends messages in batches, in order, holding one batch in memory at a time.

        Each message gets a result: to `on_result` as its batch is done, or else kept in the report. A bad message does
        not keep the others from being sent; an absent server, after the producer's patience, does. Raises PartialSend
        at the end when any failed and there is no `on_result` to know of it, and always when it had to stop.
        """
        report = SendReport()
        tell = on_result or report.results.append
        batch = self._run(open_batch(self._topics, topic, self._settings, confirm or self._confirm))

        def flush() -> None:
            for result in self._run(batch.flush()):
                report.count(result)
                tell(result)
            if batch.broken:
                raise PartialSend(topic, report) from batch.broken

        for message in messages:
            if batch.add(message):
                flush()
        flush()
        if report.failed and on_result is None:
            raise PartialSend(topic, report)
        return report

    def cancel(self, topic: str, id: str) -> CancelOutcome:
        """Cancels a message that was not delivered yet; see `CancelOutcome`."""
        return self._calls.run(topic, by_id.cancel(self._topics, topic, id, self._settings.patience_s))

    def reschedule(
        self, topic: str, id: str, *, delay: Duration | None = None, at: datetime | None = None
    ) -> RescheduleOutcome:
        """Gives a message that is waiting, or to be retried, another due time; others are left as they are."""
        due = due_argument(delay, at)
        return self._calls.run(topic, by_id.reschedule(self._topics, topic, id, due, self._settings.patience_s))

    def find(self, topic: str, id: str) -> Found | None:
        """Where a message stands: state, due time, attempts; None when it is not known (any more)."""
        return self._calls.run(topic, by_id.find(self._topics, topic, id))

    def close(self) -> None:
        """Closes the connections. Calls that wait for their turn end with Unreachable."""
        self._calls.close()
        self._connection.close()

    def _run(self, flow: Flow[T]) -> T:
        return self._connection.run(flow, patience_s=self._settings.patience_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
