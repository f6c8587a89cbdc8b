"""The asyncio producer."""

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.protocol.call import Flow
from lisa_common.protocol.producing import CancelOutcome, Found, RescheduleOutcome
from lisa_common.protocol.registry import Topics
from lisa_common.validation import Duration
from lisa_producer import by_id, core
from lisa_producer.aio_gathering import AsyncGatherer
from lisa_producer.batch import open_batch
from lisa_producer.message import (
    Confirm,
    Message,
    PartialSend,
    SendReport,
    SendResult,
    due_argument,
)
from lisa_producer.settings import ProducerSettings

__all__ = ["AsyncProducer"]

T = TypeVar("T")


class AsyncProducer:
    """Sends messages from the tasks of one event loop. Promises what `Producer` promises."""

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
        self._connection = AsyncConnection.of(self._settings, name="lisa-producer", url=url)
        self._calls = AsyncGatherer(self._connection, self._settings)

    async def send(
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
        """Sends one message; see `Producer.send`."""
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
        return await self._calls.run(
            topic, core.send(self._topics, topic, message, self._settings, confirm or self._confirm)
        )

    async def send_many(
        self,
        topic: str,
        messages: Iterable[Message] | AsyncIterable[Message],
        *,
        on_result: Callable[[SendResult], object] | None = None,
        confirm: Confirm | None = None,
    ) -> SendReport:
        """Sends messages in batches; see `Producer.send_many`. The messages may come asynchronously too."""
        report = SendReport()
        tell = on_result or report.results.append
        batch = await self._run(open_batch(self._topics, topic, self._settings, confirm or self._confirm))

        async def flush() -> None:
            for result in await self._run(batch.flush()):
                report.count(result)
                tell(result)
            if batch.broken:
                raise PartialSend(topic, report) from batch.broken

        async for message in _each(messages):
            if batch.add(message):
                await flush()
        await flush()
        if report.failed and on_result is None:
            raise PartialSend(topic, report)
        return report

    async def cancel(self, topic: str, id: str) -> CancelOutcome:
        """Cancels a message that was not delivered yet; see `CancelOutcome`."""
        return await self._calls.run(topic, by_id.cancel(self._topics, topic, id, self._settings.patience_s))

    async def reschedule(
        self, topic: str, id: str, *, delay: Duration | None = None, at: datetime | None = None
    ) -> RescheduleOutcome:
        """Gives a message that is waiting, or to be retried, another due time; others are left as they are."""
        due = due_argument(delay, at)
        return await self._calls.run(topic, by_id.reschedule(self._topics, topic, id, due, self._settings.patience_s))

    async def find(self, topic: str, id: str) -> Found | None:
        """Where a message stands: state, due time, attempts; None when it is not known (any more)."""
        return await self._calls.run(topic, by_id.find(self._topics, topic, id))

    async def close(self) -> None:
        """Closes the connections. Calls that wait for their turn end with Unreachable."""
        self._calls.close()
        await self._connection.close()

    async def _run(self, flow: Flow[T]) -> T:
        return await self._connection.run(flow, patience_s=self._settings.patience_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


async def _each(messages: Iterable[Message] | AsyncIterable[Message]) -> AsyncIterator[Message]:
    if isinstance(messages, AsyncIterable):
        async for message in messages:
            yield message
    else:
        for message in messages:
            yield message
