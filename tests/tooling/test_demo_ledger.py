"""The demo's ledger finds what does not balance: each violation is planted in an otherwise good day."""

import pytest

from demo.events import Begun, Cancelled, Ended, Event, Killed, Rescheduled, Sent
from demo.ledger import End, Ledger, audit, lines

VISIBILITY_MS = 2_000


def _sent(due_ms: int = 1_000) -> Sent:
    return Sent("m", "EWR", due_ms, max_retries=2)


def _begun(attempt: int = 1, due_ms: int = 1_000, at_ms: int | None = None, worker: str = "w1") -> Begun:
    return Begun("m", attempt, worker, "EWR", due_ms, due_ms + 5 if at_ms is None else at_ms)


def _ended(attempt: int = 1, at_ms: int = 1_100, error: str = "") -> Ended:
    return Ended("m", attempt, "w1", at_ms, error)


def _audit(*events: Event, end: str = "finished") -> Ledger:
    return audit(events, {"m": End(end, "nack: broken" if end == "garbage" else "")}, visibility_ms=VISIBILITY_MS)


BOARDED = (_sent(), _begun(), _ended())


def test_a_good_day_balances() -> None:
    """Acked, cancelled and dead messages are counted, and their sum is what was sent."""
    events = (
        *BOARDED,
        Sent("late", "EWR", 1_000, 2),
        Rescheduled("late", 5_000, "rescheduled", 400),
        Begun("late", 1, "w1", "EWR", 5_000, 5_003),
        Ended("late", 1, "w1", 5_100),
        Sent("off", "JFK", 1_000, 2),
        Cancelled("off", "cancelled", 500),
        Sent("dead", "LGA", 1_000, 0),
        Begun("dead", 1, "w2", "LGA", 1_000, 1_009),
        Ended("dead", 1, "w2", 1_010, "Reject: no"),
    )
    ends = {"m": End("finished"), "late": End("finished"), "off": End("unknown"), "dead": End("garbage", "rejected")}
    ledger = audit(events, ends, visibility_ms=VISIBILITY_MS)
    assert ledger.problems == []
    assert (ledger.sent, ledger.acked, ledger.cancelled, ledger.garbage, ledger.rescheduled) == (4, 2, 1, 1, 1)
    assert sorted(ledger.lags_ms) == [3, 5, 9]
    assert list(lines(ledger))[-1].strip() == "balanced"


def test_retries_and_a_killed_worker_explain_duplicates() -> None:
    """A failure explains the next attempt, and so does the death of the worker that held the delivery."""
    ledger = _audit(
        _sent(),
        _begun(1),
        _ended(1, error="GateTaken"),
        _begun(2, 1_300, worker="w1"),
        _ended(2, 1_400),  # handled, but the ack did not get out
        Killed("w1", 1_410, [("m", 2)]),
        _begun(3, 3_700, worker="w2"),
        _ended(3, 3_800),
    )
    assert ledger.problems == []
    assert sorted(len(deliveries) for deliveries in ledger.duplicates.values()) == [1, 1]
    assert ledger.rescue_ms == [3_705 - 1_410]


def test_a_change_may_move_a_retry() -> None:
    """The first attempt has begun at its due time before the change returned, and failed."""
    moved = Rescheduled("m", 1_300, "rescheduled", 1_030)
    ledger = _audit(
        _sent(), moved, _begun(1, 1_000, at_ms=1_005), _ended(1, 1_010, "GateTaken"), _begun(2, 1_300), _ended(2, 1_350)
    )
    assert ledger.problems == []
    late = _audit(_sent(), moved, _begun(1, 1_000, at_ms=1_040), _ended())
    assert late.problems == ["m: delivered for another due time than promised, off by -300 ms"]


def test_a_delivery_that_died_before_its_handler_began_explains_the_next() -> None:
    """What a killed worker held but had not begun has no journal; its next delivery is explained all the same."""
    ledger = _audit(_sent(), Killed("w1", 1_002, [("m", 1)]), _begun(2, 3_200, worker="w2"), _ended(2, 3_300))
    assert ledger.problems == []


def test_a_lease_that_ran_out_explains_a_duplicate() -> None:
    """A handler that outlived its lease, as on a machine that stalls, may be followed by another delivery."""
    ledger = _audit(_sent(), _begun(1), _begun(2, 3_200), _ended(1, 3_300), _ended(2, 3_400))
    assert ledger.problems == []


def test_what_a_killed_worker_held_at_its_last_attempt_comes_once_more() -> None:
    """Also if its handler had failed, and the worker died before it could say so."""
    attempts = [(_begun(attempt, attempt * 1_000), _ended(attempt, error="no")) for attempt in (1, 2, 3, 4)]
    events = [_sent(), *(event for pair in attempts for event in pair)]
    assert _audit(*events, Killed("w1", 3_200, [("m", 3)]), end="garbage").problems == []
    assert _audit(*events, Killed("w1", 2_200, [("m", 2)]), end="garbage").problems


DUPLICATE = (_begun(2, 1_300), _ended(2, 1_400))

VIOLATIONS: dict[str, tuple[tuple[Event, ...], str, str]] = {
    "early": ((_sent(), _begun(at_ms=999), _ended()), "finished", "1 ms early"),
    "other due": ((_sent(5_000), _begun(), _ended()), "finished", "another due time than promised, off by -4000 ms"),
    "lost": ((_sent(),), "unknown", "lost"),
    "lost after delivery": (BOARDED, "unknown", "lost"),
    "left behind": ((_sent(),), "ready", "still ready"),
    "acked unhandled": ((_sent(), _begun()), "finished", "no handler has finished it"),
    "acked after failure": ((_sent(), _begun(), _ended(error="no")), "finished", "no handler has finished it"),
    "unexplained": ((_sent(), _begun(), *DUPLICATE), "finished", "nothing explains it"),
    "unheard-of attempt": ((_sent(), *DUPLICATE), "finished", "nothing explains it"),
    "twice the same": ((*BOARDED, _begun()), "finished", "was delivered twice"),
    "after ack": ((*BOARDED, *DUPLICATE), "finished", "delivered after its ack"),
    "after ack, other killed": (
        (*BOARDED, Killed("w1", 1_200, []), _begun(2, 1_300), _ended(2, 1_400)),
        "finished",
        "delivered after its ack",
    ),
    "cancelled but delivered": (
        (_sent(), Cancelled("m", "cancelled", 500), _begun(), _ended()),
        "unknown",
        "cancelled, but delivered",
    ),
    "cancelled but acked": ((_sent(), Cancelled("m", "cancelled", 500)), "finished", "although it was cancelled"),
    "cancel refused, gone": ((_sent(), Cancelled("m", "unknown", 500)), "unknown", "lost"),
    "too often": (
        (
            _sent(),
            *(_begun(attempt, attempt * 1_000) for attempt in (1, 2, 3, 4)),
            *(_ended(attempt, error="no") for attempt in (1, 2, 3, 4)),
        ),
        "garbage",
        "delivered 4 times, 3 are allowed",
    ),
    "never sent": ((Begun("other", 1, "w1", "EWR", 1, 2), *BOARDED), "finished", "never sent"),
    "killed holding a stranger": ((*BOARDED, Killed("w1", 1_200, [("other", 1)])), "finished", "never sent"),
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_planted_violation_is_found(name: str) -> None:
    """Every violation is named, and the ledger does not balance."""
    events, end, expected = VIOLATIONS[name]
    ledger = _audit(*events, end=end)
    assert any(expected in problem for problem in ledger.problems), ledger.problems
    assert not ledger.balanced
    assert "DOES NOT BALANCE" in list(lines(ledger))[-1]
