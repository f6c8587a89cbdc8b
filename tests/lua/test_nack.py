"""nack: a delivery given up goes to retry, or to garbage."""

from collections.abc import Callable

import pytest

from lisa_common.model.failure import Failure
from lisa_common.model.policy import Policy
from lisa_common.protocol.call import command
from lisa_common.protocol.consuming import NackOutcome
from support.queue import EPOCH_MS, STEADY, Queue, outgoing


def test_retry_is_due_after_the_backoff(queue: Queue) -> None:
    """The backoff counts from now, not from the old due time; what is known of the failure is kept."""
    queue.join("g")
    queue.send("a")
    (delivery,) = queue.read("g")
    queue.advance(5_000)
    due_ms = EPOCH_MS + 6_000
    assert queue.nack(delivery, error="no\nluck é") == [(NackOutcome.RETRY, due_ms)]
    contents = queue.contents()
    assert contents.left == ["records", "retry", "failures"]
    assert contents.retry == {"g/a": due_ms}
    entry = delivery.entry.entry
    assert contents.failures["g/a"] == Failure(1, entry, None, EPOCH_MS, EPOCH_MS + 5_000, "nack", "no\nluck é")
    assert contents.groups["g"].pending == {}


def test_a_snooze_spends_no_attempt(queue: Queue) -> None:
    """Even without attempts left: the next delivery has the same number."""
    queue.join("g")
    queue.send("a", max_retries=0)
    for _ in range(3):
        (delivery,) = queue.read("g")
        assert delivery.attempt == 1
        assert queue.nack(delivery, delay_ms=60_000, snoozed=True) == [(NackOutcome.RETRY, queue.now_ms + 60_000)]
        failure = queue.failure("g/a")
        assert (failure.attempts, failure.reason) == (0, "snoozed")
        queue.advance(60_000)
        queue.promote()


@pytest.mark.parametrize(
    ("policy", "delays"),
    [
        (STEADY, [1_000, 2_000, 4_000, 8_000]),
        (Policy(backoff_jitter=0, backoff_base_ms=10, backoff_cap_ms=25), [10, 20, 25, 25]),
        (Policy(backoff_jitter=0, backoff="fixed", backoff_base_ms=70), [70, 70, 70, 70]),
        (Policy(backoff_jitter=0, backoff="fixed", backoff_base_ms=70, backoff_cap_ms=50), [50, 50, 50, 50]),
    ],
)
def test_backoff(queue: Queue, policy: Policy, delays: list[int]) -> None:
    """Exponential up to the cap, or fixed, by policy."""
    queue.policy = policy
    queue.join("g")
    queue.send("a")
    for attempt, delay_ms in enumerate(delays, 1):
        (delivery,) = queue.read("g")
        assert delivery.attempt == attempt
        assert queue.nack(delivery) == [(NackOutcome.RETRY, queue.now_ms + delay_ms)]
        queue.advance(delay_ms)
        queue.promote()


def test_jitter_stays_in_bounds_and_varies(queue: Queue) -> None:
    """Delays differ from message to message and from call to call, by no more than the policy's share."""
    queue.policy = Policy(backoff="fixed", backoff_base_ms=10_000, backoff_jitter=0.1)
    queue.join("g")
    delays: list[set[int]] = []
    for batch in range(3):
        queue.send_all([outgoing(f"{batch}-{n}") for n in range(50)])
        delays.append({due - queue.now_ms for _, due in queue.nack(*queue.read("g")) if due})
    every = set.union(*delays)
    assert 9_000 <= min(every) < 9_500
    assert 10_500 < max(every) <= 11_000
    assert delays[0] != delays[1] != delays[2]


@pytest.mark.parametrize("backoff", ["fixed", "exponential"])
def test_jitter_ends_at_the_cap(queue: Queue, backoff: str) -> None:
    """No delay is longer than the cap, and those that are about as long still differ."""
    queue.policy = Policy.of(
        {"backoff": backoff, "backoff_base_ms": 10_000, "backoff_cap_ms": 10_000, "backoff_jitter": 0.5}
    )
    queue.join("g")
    queue.send_all([outgoing(f"{n}") for n in range(50)])
    delays = {due - queue.now_ms for _, due in queue.nack(*queue.read("g")) if due}
    assert 3_333 <= min(delays) < 5_000
    assert 8_000 < max(delays) <= 10_000
    assert len(delays) > 25


def test_no_attempts_left(queue: Queue) -> None:
    """Deliveries are max retries + 1, then the message is garbage (promise 7)."""
    queue.join("g")
    queue.send("a", max_retries=2)
    outcomes = []
    while delivery := next(iter(queue.read("g")), None):
        outcomes += queue.nack(delivery, error=f"try {delivery.attempt}", delay_ms=0)
        queue.promote()
    assert [outcome for outcome, _ in outcomes] == ["retry", "retry", "garbage"]
    contents = queue.contents()
    assert contents.left == ["records", "failures", "garbage"]
    assert contents.garbage == {"g/a": EPOCH_MS}
    failure = queue.failure("g/a")
    assert (failure.attempts, failure.reason, failure.error) == (3, "nack", "try 3")


def test_the_message_overrides_the_policy(queue: Queue) -> None:
    """Max retries of the policy hold only for messages that have none of their own."""
    queue.policy = Policy(max_retries=0)
    queue.join("g")
    queue.send_all([outgoing("policy"), outgoing("own", max_retries=1)])
    assert [outcome for outcome, _ in queue.nack(*queue.read("g"))] == ["garbage", "retry"]


def test_rejected_goes_to_garbage_at_once(queue: Queue) -> None:
    """A reject does not retry, whatever is left of attempts."""
    queue.join("g")
    queue.send("a")
    assert queue.nack(*queue.read("g"), error="never", rejected=True) == [(NackOutcome.GARBAGE, None)]
    assert queue.contents().garbage == {"g/a": EPOCH_MS}
    assert queue.failure("g/a").reason == "rejected"


def test_stale_changes_nothing(queue: Queue) -> None:
    """A nack of a delivery that was settled or reclaimed is fenced off, whoever has the message now."""
    queue.join("g")
    queue.send_all([outgoing("acked"), outgoing("again")])
    acked, again = queue.read("g")
    queue.ack(acked)
    queue.advance(STEADY.visibility_ms)
    queue.reclaim("g")
    queue.advance(1_000)
    queue.promote()
    queue.read("g")
    before = queue.contents()
    assert queue.nack(acked, again) == [(NackOutcome.STALE, None)] * 2
    assert queue.nack(again, rejected=True) == [(NackOutcome.STALE, None)]
    assert queue.contents() == before


@pytest.mark.parametrize(("on_expire", "left"), [("garbage", ["garbage"]), ("drop", ["finished"])])
def test_expired_meanwhile(queue: Queue, on_expire: str, left: list[str]) -> None:
    """What outlived its time to live while it was handled is not retried but garbage, or dropped, by policy."""
    queue.policy = Policy.of({"on_expire": on_expire})
    queue.join("g")
    queue.send("a", ttl_ms=100)
    (delivery,) = queue.read("g")
    queue.advance(100)
    assert queue.nack(delivery)[0][0] == {"garbage": NackOutcome.GARBAGE, "drop": NackOutcome.DROPPED}[on_expire]
    contents = queue.contents()
    assert contents.left[-1:] == left
    assert contents.retry == {}
    if on_expire == "garbage":
        assert (queue.failure("g/a").reason, queue.failure("g/a").attempts) == ("expired", 1)


def test_cancelled_meanwhile(queue: Queue) -> None:
    """A cancelled message is not retried; its id is free once the delivery is given up."""
    queue.join("g")
    queue.send("a")
    (delivery,) = queue.read("g")
    queue.cancel("a")
    assert queue.nack(delivery) == [(NackOutcome.GONE, None)]
    assert queue.contents().left == []
    assert queue.send("a")


def test_a_retry_does_not_renew_the_ttl(queue: Queue) -> None:
    """The time to live counts from the due time of the message, also for its retries."""
    queue.join("g")
    queue.send("a", ttl_ms=1_500)
    queue.nack(*queue.read("g"))
    assert queue.contents().expiring == {"a": EPOCH_MS + 1_500}


def test_only_this_group_retries(queue: Queue) -> None:
    """Another group's copy is not touched."""
    queue.join("g", "h")
    queue.send("a")
    queue.nack(*queue.read("g"), rejected=True)
    (in_h,) = queue.read("h")
    assert queue.ack(in_h) == ["acked"]
    contents = queue.contents()
    assert contents.garbage.keys() == {"g/a"}
    assert contents.owed == {"a": "g"}


def test_wake_only_for_an_earlier_retry(queue: Queue, wakes: Callable[[], list[str]]) -> None:
    """A nack publishes when its retry is due before all other retries."""
    queue.join("g")
    queue.send_all([outgoing("a"), outgoing("b"), outgoing("c")])
    first, second, third = queue.read("g")
    wakes()
    queue.nack(first, delay_ms=50)
    assert wakes() == [f"orders {EPOCH_MS + 50}"]
    queue.nack(second, delay_ms=50)
    assert wakes() == []
    queue.nack(third, delay_ms=49)
    assert wakes() == [f"orders {EPOCH_MS + 49}"]


def test_long_errors_are_cut(queue: Queue) -> None:
    """An error's text is kept up to a limit."""
    queue.join("g")
    queue.send("a")
    queue.nack(*queue.read("g"), error="x" * 10_000)
    assert queue.failure("g/a").error == "x" * 2_000


def test_damaged_record_is_buried(queue: Queue) -> None:
    """A message whose record cannot be read goes to garbage when it is read, and says why."""
    queue.join("g")
    queue.send("a")
    queue.connection.call(command("HSET", queue.keys.of("messages"), "a", b"\7rubbish"))
    assert queue.read("g") == []
    assert queue.contents().garbage == {"g/a": EPOCH_MS}
    assert "unreadable record" in queue.failure("g/a").error
    assert queue.purge("g/a") == 1
    assert queue.contents().left == []


def test_thousand_at_once(queue: Queue) -> None:
    """1,000 nacks in one call."""
    queue.join("g", "h")
    queue.send_all([outgoing(f"{n}", ttl_ms=9) for n in range(1_000)])
    assert {outcome for outcome, _ in queue.nack(*queue.read("g"))} == {"retry"}
    assert len(queue.contents().retry) == 1_000
    assert {outcome for outcome, _ in queue.nack(*queue.read("h"), rejected=True)} == {"garbage"}
    assert len(queue.contents().garbage) == 1_000
