"""Retries beside the handler: what a registration says holds for its handler, in place of the topic's policy."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from lisa_common.model.policy import Policy
from lisa_consumer import (
    BatchFailed,
    Delivery,
    Exponential,
    Fixed,
    InvalidInput,
    Reject,
    Retry,
    Snooze,
    Worker,
)
from lisa_producer import AsyncProducer, Found, State
from support.running import managed, new_worker, working

HOUR_S = 3_600


@pytest.fixture
def worker(redis_url: str, prefix: str) -> Worker:
    """A worker that does not run yet."""
    return new_worker(redis_url, prefix)


async def _failed_once(worker: Worker, sender: AsyncProducer, error: BaseException, **options: Any) -> Found:
    """A message whose handler has raised an error once."""

    @worker.on("orders", **options)
    async def handle(_: Delivery) -> None:
        raise error

    await sender.send("orders", b"x", id="a")
    await worker.serve(burst=True)
    found = await sender.find("orders", "a")
    assert found
    return found


def _delay_s(found: Found) -> float:
    [copy] = found.copies
    assert copy.failure
    return (copy.at_ms - copy.failure.at_ms) / 1000


@pytest.mark.parametrize(("of_policy", "of_handler"), [(0, 2), (5, 2), (5, 0)])
async def test_the_limit_of_the_handler_holds_in_place_of_the_policy(
    *,
    worker: Worker,
    sender: AsyncProducer,
    declare: Callable[..., Policy],
    redis_url: str,
    prefix: str,
    of_policy: int,
    of_handler: int,
) -> None:
    """Below and above the policy's limit; the handler sees it, and its last attempt."""
    declare("orders", max_retries=of_policy, backoff_base_ms=1)
    seen: list[tuple[int, int | None, bool]] = []
    ended = asyncio.Event()

    @worker.on("orders", max_retries=of_handler, backoff=Fixed(0.01))
    async def handle(delivery: Delivery) -> None:
        seen.append((delivery.attempt, delivery.max_retries, delivery.is_last_attempt))
        if delivery.is_last_attempt:
            ended.set()
        raise ValueError("no")

    async with managed(redis_url, prefix), working(worker):
        await sender.send("orders", b"x", id="a")
        await ended.wait()
    found = await sender.find("orders", "a")
    assert found
    assert (found.state, found.attempts) == (State.GARBAGE, of_handler + 1)
    assert seen == [(n, of_handler, n == of_handler + 1) for n in range(1, of_handler + 2)]


async def test_the_limit_of_a_message_holds_before_that_of_the_handler(worker: Worker, sender: AsyncProducer) -> None:
    """The sender has said it for this message alone."""

    @worker.on("orders", max_retries=5)
    async def handle(_: Delivery) -> None:
        raise ValueError("no")

    await sender.send("orders", b"x", id="a", max_retries=0)
    await worker.serve(burst=True)
    found = await sender.find("orders", "a")
    assert found
    assert found.state == State.GARBAGE


@pytest.mark.parametrize(
    ("backoff", "low_s", "high_s"),
    [
        (Exponential(HOUR_S, cap=2 * HOUR_S), 0.9 * HOUR_S, 1.1 * HOUR_S),
        (Exponential(timedelta(hours=3), cap=timedelta(hours=3)), 2 * HOUR_S, 3 * HOUR_S),
        (Fixed(10 * HOUR_S), 9 * HOUR_S, 11 * HOUR_S),
        (None, 0.9, 1.1),
    ],
)
async def test_the_backoff_of_the_handler_holds_in_place_of_the_policy(
    *, worker: Worker, sender: AsyncProducer, backoff: Any, low_s: float, high_s: float
) -> None:
    """Also beyond the longest delay of the policy."""
    found = await _failed_once(worker, sender, ValueError("no"), backoff=backoff)
    assert found.state == State.RETRY
    assert low_s <= _delay_s(found) <= high_s


class _Refused(ConnectionError):
    """An error of the user's own."""


@pytest.mark.parametrize(
    ("error", "options", "state"),
    [
        (ValueError("no"), {"reject_on": (ValueError,)}, State.GARBAGE),
        (UnicodeError("no"), {"reject_on": (ValueError,)}, State.GARBAGE),
        (KeyError("no"), {"reject_on": (ValueError,)}, State.RETRY),
        (KeyError("no"), {"reject_on": LookupError}, State.GARBAGE),
        (OSError("no"), {"retry_on": (OSError,)}, State.RETRY),
        (_Refused("no"), {"retry_on": [OSError]}, State.RETRY),
        (KeyError("no"), {"retry_on": (OSError,)}, State.GARBAGE),
        (KeyError("no"), {"retry_on": (OSError,), "reject_on": (ValueError,)}, State.GARBAGE),
        # The nearest class that is named decides.
        (_Refused("no"), {"retry_on": (ConnectionError,), "reject_on": (OSError,)}, State.RETRY),
        (_Refused("no"), {"retry_on": (OSError,), "reject_on": (ConnectionError,)}, State.GARBAGE),
        (FileNotFoundError("no"), {"retry_on": (ConnectionError,), "reject_on": (OSError,)}, State.GARBAGE),
        # What a handler asks for is obeyed.
        (Retry("later"), {"retry_on": (OSError,)}, State.RETRY),
        (Snooze(60), {"retry_on": (OSError,), "reject_on": (Exception,)}, State.RETRY),
        (Reject("never"), {"retry_on": (Exception,)}, State.GARBAGE),
        # Of a group any error that is to be rejected.
        (ExceptionGroup("two", [OSError("no"), ValueError("no")]), {"reject_on": (ValueError,)}, State.GARBAGE),
        (ExceptionGroup("one", [OSError("no")]), {"retry_on": (OSError,)}, State.RETRY),
        (ExceptionGroup("two", [OSError("no"), KeyError("no")]), {"retry_on": (OSError,)}, State.GARBAGE),
        (ExceptionGroup("two", [Retry("later"), ValueError("no")]), {"reject_on": (ValueError,)}, State.GARBAGE),
    ],
)
async def test_the_class_of_an_error_decides_whether_it_is_retried(
    *, worker: Worker, sender: AsyncProducer, error: Exception, options: dict[str, Any], state: State
) -> None:
    """Rejected errors keep their text."""
    found = await _failed_once(worker, sender, error, **options)
    assert found.state == state
    [copy] = found.copies
    assert copy.failure
    if state is State.GARBAGE:
        assert (copy.failure.reason, found.attempts) == ("rejected", 1)
        assert "n" in copy.failure.error


async def test_each_error_of_a_batch_is_judged_by_itself(worker: Worker, sender: AsyncProducer) -> None:
    """Some of a batch are retried, others become garbage, the rest is acked."""

    @worker.on("orders", batch=3, retry_on=(OSError,))
    async def handle(deliveries: list[Delivery]) -> None:
        errors = {"a": OSError("no"), "b": ValueError("no")}
        raise BatchFailed((each, errors[each.id]) for each in deliveries if each.id in errors)

    for id in ("a", "b", "c"):
        await sender.send("orders", b"x", id=id)
    await worker.serve(burst=True)
    found = {id: await sender.find("orders", id) for id in ("a", "b", "c")}
    states = {id: each.state for id, each in found.items() if each}
    assert states == {"a": State.RETRY, "b": State.GARBAGE, "c": State.FINISHED}


async def test_topics_that_a_pattern_finds_have_the_retries_of_its_handler(
    worker: Worker, sender: AsyncProducer
) -> None:
    """Each topic that fits."""

    @worker.on("orders.*", max_retries=0)
    async def handle(_: Delivery) -> None:
        raise ValueError("no")

    await sender.send("orders.eu", b"x", id="a")
    await worker.serve(burst=True)
    found = await sender.find("orders.eu", "a")
    assert found
    assert found.state == State.GARBAGE


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_retries": -1}, "max_retries must be "),
        ({"max_retries": True}, "max_retries must be "),
        ({"backoff": 5}, "backoff must be Exponential(base, cap=...) or Fixed(delay); got 5"),
        ({"backoff": Exponential}, "backoff must be Exponential(base, cap=...) or Fixed(delay)"),
        ({"retry_on": ()}, "retry_on must be a class of exceptions"),
        ({"retry_on": ("OSError",)}, "retry_on must be a class of exceptions"),
        ({"retry_on": 3}, "retry_on must be a class of exceptions"),
        ({"reject_on": (ValueError("no"),)}, "reject_on must be a class of exceptions"),
        ({"reject_on": (Retry,)}, "reject_on must be a class of exceptions"),
        ({"reject_on": (asyncio.CancelledError,)}, "reject_on must be a class of exceptions"),
        ({"reject_on": (ExceptionGroup,)}, "reject_on must be a class of exceptions"),
        ({"retry_on": (OSError,), "reject_on": (IOError,)}, "retry_on must be a class that reject_on does not name"),
    ],
)
def test_a_wrong_option_is_refused_when_a_handler_is_registered(
    worker: Worker, options: dict[str, Any], text: str
) -> None:
    """With one error, and the topic stays free."""
    with pytest.raises(InvalidInput) as refused:
        worker.on("orders", **options)
    assert text in str(refused.value)
    assert worker.topics == []


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Exponential(0), "base must be seconds or a timedelta from 0.001 s"),
        (lambda: Exponential(20, cap=10), "base must be at most the cap, 10 s; got 20"),
        (lambda: Exponential(1, cap=-1), "cap must be seconds"),
        (lambda: Fixed("1"), "delay must be seconds"),  # type: ignore[arg-type]
    ],
)
def test_a_backoff_out_of_range_is_refused(make: Callable[[], object], text: str) -> None:
    """Before anything is registered."""
    with pytest.raises(InvalidInput) as refused:
        make()
    assert text in str(refused.value)
