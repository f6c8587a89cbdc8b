"""The asyncio consumer that lends its deliveries."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.async_tasks import cancel_all
from lisa_common.client.per_loop import PerLoop
from lisa_common.errors import NOTHING_DONE, Closed, InvalidInput, LisaError, OutcomeUnknown
from lisa_common.model.delivery import Delivery
from lisa_common.protocol.consuming import AckOutcome, NackOutcome
from lisa_common.validation import Duration, check_bool, check_id, check_int, check_name, duration_ms
from lisa_consumer.delivery.arguments import error_text
from lisa_consumer.delivery.async_client import AsyncConsumer
from lisa_consumer.lending.flows import LendingFlows, Note, Settlement
from lisa_consumer.metrics import METRICS
from lisa_consumer.settings import ConsumerSettings

__all__ = ["AsyncLender"]

_MAX_ENDINGS = 500
"""Most settlements that share a call."""

_Asked = tuple[Settlement, "asyncio.Future[Any]"]


class AsyncLender(AsyncConsumer):
    """Reads for clients that are no consumers themselves, such as those of a gateway.

    Each read names its topics. It lends each delivery for a time of its own, and ends it by the topic and the id of its
    message alone, whichever lender has read it, of its own group or another. Many tasks may use it at once. A delivery
    that is lent and not ended in time is retried at once, without the topic's backoff, and spends an attempt; it is
    never run alone.
    """

    def __init__(
        self,
        group: str,
        *,
        url: str | None = None,
        name: str | None = None,
        most_bytes: int | None = None,
        settings: ConsumerSettings | None = None,
    ) -> None:
        """A read ends once it has `most_bytes` of records, and releases the others; one request brings 4 MiB.

        Raises InvalidInput for a limit that is no whole number from 1 to 2^62.
        """
        if most_bytes is not None:
            check_int("most_bytes", most_bytes, 1, 1 << 62)
        self._settings = ConsumerSettings.of(settings, redis_url=url)
        self._topics = ()  # each read names its own
        self._body = None
        METRICS.ask()
        self._core: LendingFlows = LendingFlows(self._settings.prefix, group, name, most_bytes=most_bytes)
        self._connection = AsyncConnection.of(
            self._settings, name="lisa-lender", url=url, blocking_s=self._settings.block_s
        )
        self._enders = PerLoop(lambda: _Ender(self._end_batch))

    @property
    def group(self) -> str:
        """The group that it reads for."""
        return self._core.group

    async def lend(self, *loans: tuple[Delivery, Duration], by_id: bool = True) -> list[bool]:
        """Lends deliveries that were just read, each for its own time, in one round trip.

        Without `by_id` only who knows the delivery itself can end it, and nothing is stored for that.
        Returns False for each whose lease ran out before; another consumer may have it. Raises InvalidInput for a time
        that is not from 1 ms to 10 years. After another error, `hand_back` them all: some may be lent.
        """
        return await self._run(self._core.lend(loans, by_id=by_id))

    async def ack_lent(
        self, topic: str, id: str, *, group: str | None = None, note: Note | None = None
    ) -> AckOutcome | None:
        """Acks the lent delivery of a message; None if nothing is lent. Safe to repeat.

        Calls of many tasks share round trips, whatever their groups; the default is the lender's own group. `note` is
        kept for `AsyncLender.note`. Raises InvalidInput.
        """
        outcome: AckOutcome | None = await self._end(
            Settlement(self.group if group is None else group, topic, id, note=note)
        )
        return outcome

    async def nack_lent(
        self,
        topic: str,
        id: str,
        *,
        group: str | None = None,
        delay: Duration | None = None,
        error: str = "",
        rejected: bool = False,
    ) -> NackOutcome | None:
        """Nacks the lent delivery of a message: see `nack`, and `reject` for `rejected`; None if nothing is lent."""
        delay_ms = None if delay is None else duration_ms("delay", delay)
        settlement = Settlement(
            self.group if group is None else group, topic, id, delay_ms, is_ack=False, rejected=rejected, error=error
        )
        outcome: NackOutcome | None = await self._end(settlement)
        return outcome

    async def hand_back(self, *deliveries: Delivery) -> None:
        """Releases deliveries that reach nobody, without an attempt. If it raises, the next read does, or the close."""
        await self._run(self._core.hand_back(deliveries))

    async def keep_note(self, topic: str, id: str, note: bytes, keep: Duration) -> None:
        """Stores a note on a message beside its topic, for as long as `keep`. Raises InvalidInput."""
        await self._run(self._core.store_note(topic, id, note, keep))

    async def note(self, topic: str, id: str) -> bytes | None:
        """The note on a message; None for none."""
        return await self._run(self._core.read_note(topic, id))

    async def drop_note(self, topic: str, id: str) -> bool:
        """Forgets the note on a message. Returns whether there was one."""
        return await self._run(self._core.drop_note(topic, id))

    async def end_window(self, topic: str, id: str) -> None:
        """Ends the dedup window of an id whose message has ended: it may be sent again at once. Raises InvalidInput."""
        await self._run(self._core.end_window(topic, id))

    async def server_time(self) -> int:
        """The server's time in ms."""
        return await self._run(self._core.server_time())

    async def close(self) -> None:
        """Closes the connections; see `AsyncConsumer.close`. Settlements under way raise OutcomeUnknown or Closed."""
        await self._enders.get().close()
        await super().close()

    async def _end(self, settlement: Settlement) -> Any:
        check_name("group", settlement.group)
        check_name("topic", settlement.topic)
        error_text(settlement.error)
        check_bool("rejected", settlement.rejected)
        if not isinstance(settlement.note, Note | None):
            raise InvalidInput("note", settlement.note, "a Note")
        check_id(settlement.id)
        return await self._enders.get().end(settlement)

    async def _end_batch(self, settlements: list[Settlement]) -> list[Any]:
        outcomes = await self._run(self._core.end_each(settlements))
        lost = [at for at, outcome in enumerate(outcomes) if isinstance(outcome, OutcomeUnknown)]
        # A settlement is fenced by its entry: a second one changes nothing if the first arrived. What it cannot settle
        # stays unknown.
        with suppress(LisaError):
            again = await self._run(self._core.end_each([settlements[at] for at in lost])) if lost else []
            for at, outcome in zip(lost, again, strict=True):
                if not isinstance(outcome, NOTHING_DONE):
                    outcomes[at] = outcome
        return outcomes


class _Ender:
    """Carries out settlements in batches: those that arrive during one batch go into the next. For one event loop.

    However its task ends, it leaves no caller waiting.
    """

    def __init__(self, end_batch: Callable[[list[Settlement]], Awaitable[list[Any]]]) -> None:
        self._end_batch = end_batch
        self._waiting: list[_Asked] = []
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    async def end(self, settlement: Settlement) -> Any:
        """Returns the outcome of a settlement."""
        if self._is_closed:
            raise Closed
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((settlement, future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._end_all())
        return await future

    async def close(self) -> None:
        """Ends the batch that is under way, with an unknown outcome; what waits for the next one is not done."""
        self._is_closed = True
        if self._task:
            await cancel_all(self._task)
        # A task that is cancelled early has never run.
        self._leave()

    async def _end_all(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:_MAX_ENDINGS], self._waiting[_MAX_ENDINGS:]
                outcomes: list[Any] = [OutcomeUnknown("the client was closed before the reply") for _ in batch]
                try:
                    outcomes = await self._end_batch([settlement for settlement, _ in batch])
                except Exception as error:  # noqa: BLE001 - each caller gets it
                    outcomes = [error] * len(batch)
                finally:
                    _answer(batch, outcomes)
        finally:
            self._leave()

    def _leave(self) -> None:
        """Ends the settlements that wait. No batch will carry them out."""
        _answer(self._waiting, [Closed() for _ in self._waiting])
        self._waiting = []


def _answer(batch: list[_Asked], outcomes: Sequence[Any]) -> None:
    for (_, future), outcome in zip(batch, outcomes, strict=True):
        if future.done():
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
