"""Settles deliveries that any consumers have read, from asyncio tasks."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.closing import AsyncClosing
from lisa_common.errors import UNDONE, InvalidInput, LisaError, in_part
from lisa_common.model.delivery import Delivery
from lisa_common.protocol.call import Flow, error_in
from lisa_common.protocol.consuming import AckOutcome, NackOutcome
from lisa_common.protocol.registry import Topics
from lisa_common.protocol.side_by_side import run_each
from lisa_common.validation import Duration, check_list, check_name
from lisa_consumer.delivery.arguments import check_delivery
from lisa_consumer.delivery.core import Core
from lisa_consumer.settings import ConsumerSettings

__all__ = ["AsyncSettler", "Held"]

T = TypeVar("T")


class Held(NamedTuple):
    """A delivery and the consumer that has read it. Only the delivery's place, id and entry matter here."""

    delivery: Delivery
    consumer: str


class AsyncSettler(AsyncClosing):
    """Acks, nacks, releases and extends deliveries for the consumers of any groups, over connections of its own.

    Its calls have the guarantees of `AsyncConsumer`. Results are in the order of the arguments.
    """

    def __init__(self, url: str | None = None, *, settings: ConsumerSettings | None = None) -> None:
        self._settings = ConsumerSettings.of(settings, redis_url=url)
        self._connection = AsyncConnection.of(self._settings, name="lisa-settler", url=url)
        self._topics = Topics(self._settings.prefix)

    async def ack(self, held: Sequence[Held]) -> list[AckOutcome]:
        """Acks handled deliveries. Returns one outcome for each; see `AckOutcome`."""
        return await self._each(held, lambda core, batch: core.ack(batch))

    async def nack(self, held: Sequence[Held], *, delay: Duration | None = None, error: str = "") -> list[NackOutcome]:
        """Nacks failed deliveries: they are retried after `delay` or the policy's backoff, or become garbage."""
        return await self._each(held, lambda core, batch: core.nack(batch, delay=delay, error=error))

    async def reject(self, held: Sequence[Held], *, error: str = "") -> list[NackOutcome]:
        """Turns deliveries into garbage, whatever attempts are left."""
        return await self._each(held, lambda core, batch: core.nack(batch, delay=None, error=error, rejected=True))

    async def extend(self, held: Sequence[Held], lease: Duration | None = None) -> list[bool]:
        """Renews leases, to `lease` from now or the topic's visibility timeout. Returns False for each lost lease."""
        return await self._each(held, lambda core, batch: core.extend(batch, lease))

    async def release(self, held: Sequence[Held]) -> int:
        """Releases deliveries that were not begun: they are ready at once, no attempt is spent. Returns how many."""
        return sum(released for _, released in await self._run(held, lambda core, batch: core.release(batch)))

    async def _each(self, held: Sequence[Held], flow: Callable[[Core, Sequence[Delivery]], Flow[list[T]]]) -> list[T]:
        results = dict[int, T]()
        for places, own in await self._run(held, flow):
            results.update(zip(places, own, strict=True))
        return [results[place] for place in range(len(results))]

    async def _run(
        self, held: Sequence[Held], flow: Callable[[Core, Sequence[Delivery]], Flow[T]]
    ) -> list[tuple[list[int], T]]:
        """Runs a flow for each consumer. Returns the places of its deliveries, and the result of its flow."""
        held, places = _check_held(held), defaultdict[tuple[str, str], list[int]](list)
        for place, (delivery, consumer) in enumerate(held):
            places[delivery.group, consumer].append(place)
        flows = [flow(self._core(*of), [held[place].delivery for place in at]) for of, at in places.items()]
        results = await self._connection.run(run_each(flows), patience_s=self._settings.patience_s)
        done = [result for result in results if not isinstance(result, LisaError)]
        if error := error_in(results):
            # The others may have been carried out as well, if their replies were lost.
            raise error if all(isinstance(result, UNDONE) for result in results) else in_part(error)
        return list(zip(places.values(), done, strict=True))

    def _core(self, group: str, consumer: str) -> Core:
        core = Core(self._settings.prefix, group, consumer)
        # One cache for all consumers.
        core.topics = self._topics
        return core

    async def close(self) -> None:
        """Closes the connections."""
        await self._connection.close()


def _check_held(value: object) -> list[Held]:
    held = [tuple(each) if isinstance(each, tuple) else (each,) for each in check_list("held", value, "Held")]
    for each in held:
        if len(each) != len(Held._fields):
            raise InvalidInput("held", each, "pairs of a delivery and its consumer")
    return [Held(check_delivery(delivery), check_name("consumer", consumer)) for delivery, consumer in held]
