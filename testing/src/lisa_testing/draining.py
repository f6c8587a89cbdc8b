"""Runs a worker until nothing is ready, and notes the outcome of each delivery."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from lisa_consumer import BatchFailed, Delivery, Middleware, Retry, Snooze, Worker

__all__ = ["Drained", "FailOnce", "drain"]


@dataclass(slots=True)
class Drained:
    """The deliveries of one drain: `handled` if the handler returned, `failed`, with its error, if it raised."""

    handled: list[Delivery] = field(default_factory=list)
    failed: list[tuple[Delivery, BaseException]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.handled) + len(self.failed)


@dataclass(slots=True)
class FailOnce:
    """A planned failure: of the next delivery of a topic, or of any, before its handler runs or after."""

    worker: Worker
    topic: str | None
    error: BaseException
    after: bool
    left: int

    def fits(self, worker: Worker, topic: str) -> bool:
        """Whether it concerns a delivery of this topic to this worker."""
        return self.left > 0 and worker is self.worker and self.topic in (None, topic)


async def drain(worker: Worker, turn: Callable[..., int], failures: list[FailOnce], *, rounds: int) -> Drained:
    """Runs the worker until nothing is ready or due at once.

    `turn` does a manager's work, with retries or without (`with_retries`), and returns how many were promoted. Retries
    with a delay wait for another drain, however long this one takes. Raises AssertionError if there is still something
    to do after so many rounds.
    """
    drained = Drained()
    await asyncio.to_thread(turn, with_retries=False)
    with worker.using(_noting(worker, drained, failures)):
        for _ in range(rounds):
            before = len(drained.failed)
            await worker.serve(burst=True)
            # What a handler snoozed, or failed with, for no time at all is due again.
            with_retries = any(_comes_at_once(error) for _, error in drained.failed[before:])
            if not await asyncio.to_thread(turn, with_retries=with_retries):
                return drained
    raise AssertionError(f"worker {worker.name} is not done after {rounds} rounds: does a handler snooze for 0 s?")


def _noting(worker: Worker, drained: Drained, failures: list[FailOnce]) -> Middleware:
    """Middleware that notes the outcome of each delivery, and fails those that shall fail."""

    async def note(given: Delivery | list[Delivery], call_next: Callable[[Any], Awaitable[object]]) -> None:
        deliveries = given if isinstance(given, list) else [given]
        failure = next((each for each in failures if each.fits(worker, deliveries[0].topic)), None)
        if failure:
            failure.left -= 1
        try:
            if failure is None or failure.after:
                await call_next(given)
        except BatchFailed as error:
            drained.failed += error.failed
            places = {delivery.place for delivery, _ in error.failed}
            drained.handled += [delivery for delivery in deliveries if delivery.place not in places]
            raise
        except BaseException as error:
            drained.failed += [(delivery, error) for delivery in deliveries]
            raise
        if failure:
            drained.failed += [(delivery, failure.error) for delivery in deliveries]
            raise failure.error
        drained.handled += deliveries

    return note


def _comes_at_once(error: BaseException) -> bool:
    """Whether a delivery that failed so is due again at once. The backoff of a policy is never 0."""
    return isinstance(error, (Retry, Snooze)) and error.delay_ms == 0
