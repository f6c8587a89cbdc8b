"""The asyncio producer."""

from collections.abc import Callable, Mapping
from contextlib import aclosing, closing
from datetime import datetime
from typing import Any, TypeVar

from lisa_common.bodies import Codec, check_codec, coded
from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.closing import AsyncClosing
from lisa_common.errors import OF_THE_SERVER
from lisa_common.model.message import IfExists
from lisa_common.observing import tracing
from lisa_common.protocol.call import Flow
from lisa_common.protocol.managers import find_absence
from lisa_common.protocol.producing import CancelOutcome, Found, RescheduleOutcome
from lisa_common.protocol.registry import Topics
from lisa_common.validation import Duration, check_callable
from lisa_producer import sent_message, single_send
from lisa_producer.async_coalescing import AsyncCoalescer
from lisa_producer.batch import Sender, open_batch
from lisa_producer.batch_sending import AsyncMessages, AsyncMessageSource, async_send_batches
from lisa_producer.message import Confirm, Message, check_confirm, new_due
from lisa_producer.metrics import METRICS
from lisa_producer.pace import Pace
from lisa_producer.results import BatchResults, PartialSend, SendReport, SendResult
from lisa_producer.settings import ProducerSettings
from lisa_producer.shared_flow import SharedFlow

__all__ = ["AsyncProducer"]

T = TypeVar("T")


class AsyncProducer(AsyncClosing):
    """Sends messages. Share a `Producer` among threads, an `AsyncProducer` among the tasks of any event loops.

    Without `url` or `settings`, the values of `ProducerSettings` come from the environment or `lisa.toml`. `confirm` is
    the default for every send. `codec` encodes bodies that are neither bytes nor text, in place of JSON. The first send
    to a new topic declares it, with the default policy.

    While the server is unreachable or refuses writes, each call retries for `settings.patience_s` seconds, then raises
    `Unreachable` or `Refused`. When a connection breaks between request and reply, the call retries only where that
    cannot send twice: the caller chose the message's id, and the topic's dedup window lasts as long as this producer
    may retry (`patience_s` and twice `timeout_s`), or the message is due later than that and in more than 5 minutes.
    Otherwise it raises `OutcomeUnknown`, unless `settings.at_least_once` permits duplicates.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        confirm: Confirm | None = None,
        codec: Codec | None = None,
        settings: ProducerSettings | None = None,
    ) -> None:
        self._settings = ProducerSettings.of(settings, redis_url=url)
        self._confirm = check_confirm(confirm)
        self._tracing = tracing.ask()
        METRICS.ask()
        self._codec = check_codec(codec)
        self._pace = Pace(self._settings.batch_messages)
        self._topics = Topics(self._settings.prefix)
        self._connection = AsyncConnection.of(self._settings, name="lisa-producer", url=url, wakes=True)
        self._coalescer = AsyncCoalescer(self._connection, self._settings)

    async def send(
        self,
        topic: str,
        body: Any,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        at_local: datetime | str | None = None,
        tz: str | None = None,
        id: str | None = None,
        ttl: Duration | None = None,
        max_retries: int | None = None,
        priority: int | None = None,
        headers: Mapping[str, str] | None = None,
        key: str | None = None,
        if_exists: IfExists | None = None,
        confirm: Confirm | None = None,
    ) -> SendResult:
        """Sends one message, and returns its id, whether it was sent, replaced or known, and when it is due.

        body           bytes, text, or any JSON value; also a pydantic model, a dataclass, UUID, Decimal, datetime
        delay, at      seconds or timedelta from now by the server's clock, or an aware datetime; due now by default
        at_local, tz   a local time in their place, as a datetime or its ISO text, and its IANA zone
        id             sent at most once while it is alive or in the topic's dedup window; made up by default
        ttl            seconds or timedelta after the due time in which it may be delivered; the topic's by default
        max_retries    most retries after the first delivery; the topic's by default
        priority       0 to 255, highest first among messages due in the same millisecond; the topic's by default
        headers        text to text
        key            what the message is about, such as a customer, for the topic's `max_in_flight_per_key`
        if_exists      "replace" replaces a message of this id that waits or is to be retried; needs `id`
        confirm        the replicas or the disk to wait for

        `Message` says more about each. Raises InvalidInput and QueueFull before the message is written, NotConfirmed
        after it was written, and as the class says Unreachable, Refused and OutcomeUnknown.
        """
        body = coded(body, self._codec)
        message = Message(
            body=body,
            delay=delay,
            at=at,
            at_local=at_local,
            tz=tz,
            id=id,
            ttl=ttl,
            max_retries=max_retries,
            priority=priority,
            headers=headers,
            key=key,
            if_exists=if_exists,
        )
        return await self._coalescer.run(self._send(topic, message, confirm))

    async def send_many(
        self,
        topic: str,
        messages: AsyncMessages,
        *,
        on_result: Callable[[SendResult], object] | None = None,
        on_batch: Callable[[BatchResults], object] | None = None,
        confirm: Confirm | None = None,
    ) -> SendReport:
        """Sends messages in batches, in order, holding one batch in memory at a time; of a list or a tuple two.

        Such messages are prepared while the server stores those before, so the list must not change meanwhile.

        After each batch `on_result` receives the result of each message, and `on_batch` all of them, which takes less
        time; with neither, the report keeps them. An invalid message, or a value that is not a Message, does not stop
        the others; an unreachable server does, after the producer's patience, and so does an error of `messages`
        itself, once what came before it is sent. Raises PartialSend when the send stopped early, and at the end if any
        message failed and there is no callback.
        """
        check_callable("on_result", on_result)
        check_callable("on_batch", on_batch)
        report = SendReport()
        confirm = check_confirm(confirm) or self._confirm
        source = AsyncMessageSource(messages)
        sender = Sender(self._topics, self._settings, confirm, self._pace)
        batch = await self._run(open_batch(sender, topic, self._tracing))
        batches = async_send_batches(self._connection, self._settings.patience_s, batch, source, self._codec)
        with closing(batch):
            async with aclosing(batches):
                async for results in batches:
                    report.take(results, on_result, on_batch)
                    if batch.broken:
                        raise PartialSend(topic, report) from batch.broken
        if source.error:
            raise PartialSend(topic, report, source.error) from source.error
        if report.failed and on_result is None and on_batch is None:
            raise PartialSend(topic, report)
        return report

    async def cancel(self, topic: str, id: str) -> CancelOutcome:
        """Cancels a message that was not delivered yet; see `CancelOutcome`."""
        return await self._coalescer.run(sent_message.cancel(self._topics, topic, id, self._settings.patience_s))

    async def reschedule(
        self, topic: str, id: str, *, delay: Duration | None = None, at: datetime | None = None
    ) -> RescheduleOutcome:
        """Gives a waiting message, or one to be retried, another due time; leaves others unchanged.

        Raises InvalidInput; see `RescheduleOutcome`.
        """
        flow = sent_message.reschedule(self._topics, topic, id, new_due(delay, at), self._settings.patience_s)
        return await self._coalescer.run(flow)

    async def find(self, topic: str, id: str) -> Found | None:
        """State, due time and attempts of a message; None when it is unknown, or no longer known."""
        return await self._coalescer.run(sent_message.find(self._topics, topic, id))

    async def health(self) -> str:
        """Returns in one line why sends fail, or why what is sent would wait: no manager runs; "" if all is well."""
        try:
            return await self._connection.run(find_absence(self._settings.prefix))
        except OF_THE_SERVER as error:
            return str(error)

    async def close(self) -> None:
        """Closes the connections. Queued calls end with Unreachable, later ones with Closed."""
        self._coalescer.close()
        await self._connection.close()

    def _send(self, topic: str, message: Message, confirm: Confirm | None) -> SharedFlow[SendResult]:
        confirm = check_confirm(confirm) or self._confirm
        return single_send.send(self._topics, topic, message, self._settings, confirm=confirm, tracing=self._tracing)

    async def _run(self, flow: Flow[T]) -> T:
        return await self._connection.run(flow, patience_s=self._settings.patience_s)
