"""Dedup windows of messages of several groups (promise 6): what a group has acked stays known in its window."""

from collections.abc import Callable

import pytest

from lisa_common.model.delivery import Delivery
from lisa_common.model.policy import Policy
from support.queue import Queue

WINDOW_MS = 60_000
POLICY = Policy.of({"backoff_jitter": 0, "dedup_window_ms": WINDOW_MS, "garbage_retention_ms": 1_000})


def _purge(queue: Queue, held: Delivery) -> None:
    queue.nack(held, rejected=True)
    assert queue.purge("h/a") == 1


def _age_out(queue: Queue, held: Delivery) -> None:
    queue.nack(held, rejected=True)
    queue.advance(2_000)
    assert queue.sweep().aged_out == 1


def _cancel_retry(queue: Queue, held: Delivery) -> None:
    queue.nack(held, delay_ms=5_000)
    assert queue.cancel("a") == ["cancelled"]


def _cancel_delivered(queue: Queue, held: Delivery) -> None:
    assert queue.cancel("a") == ["delivered"]
    queue.nack(held)


def _leave(queue: Queue, held: Delivery) -> None:
    queue.nack(held, delay_ms=5_000)
    queue.destroy("h")
    assert queue.end_copies("h", "a") == 1


@pytest.mark.parametrize("end", [_purge, _age_out, _cancel_retry, _cancel_delivered, _leave])
def test_an_acked_id_is_known_however_the_last_copy_ends(queue: Queue, end: Callable[[Queue, Delivery], None]) -> None:
    """A duplicate until the window after the ack has passed, and then a new message."""
    queue.policy = POLICY
    queue.join("g", "h")
    queue.send("a")
    (in_g,), (in_h,) = queue.read("g"), queue.read("h")
    until = queue.now_ms + WINDOW_MS
    queue.ack(in_g)
    end(queue, in_h)
    assert queue.contents().records == {}
    assert queue.send("a") == 0
    found = queue.find("a")
    assert found is not None
    assert found.state == "finished"
    queue.advance(until - queue.now_ms)
    assert queue.send("a")


@pytest.mark.parametrize("end", [_purge, _age_out, _cancel_retry, _cancel_delivered])
def test_an_id_that_no_group_acked_is_free_at_once(queue: Queue, end: Callable[[Queue, Delivery], None]) -> None:
    """Nobody has handled it."""
    queue.policy = POLICY
    queue.join("h")
    queue.send("a")
    end(queue, queue.read("h")[0])
    assert queue.send("a")


def test_the_last_ack_counts(queue: Queue) -> None:
    """Alive for longer than the window after the first ack, the id is known all the while, and after the second."""
    queue.policy = POLICY
    queue.join("g", "h")
    queue.send("a")
    (in_g,), (in_h,) = queue.read("g"), queue.read("h")
    queue.ack(in_g)
    queue.advance(WINDOW_MS)
    assert queue.sweep().forgotten == 1
    assert queue.send("a") == 0
    queue.ack(in_h)
    queue.advance(WINDOW_MS - 1)
    assert queue.send("a") == 0


def test_generated_ids_leave_nothing(queue: Queue) -> None:
    """Nobody can send them again."""
    queue.join("g", "h")
    queue.send("a~")
    queue.ack(*queue.read("g"))
    assert queue.contents().finished == {}
