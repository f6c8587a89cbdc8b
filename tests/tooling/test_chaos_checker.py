"""The checker finds planted violations of each promise, and no others."""

import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.checker import check
from chaos.history import (
    Asked,
    Begun,
    Clock,
    Damage,
    Drained,
    Ended,
    Event,
    Fault,
    Left,
    Letter,
    Outage,
    Problem,
    Read,
    Recorder,
    Repeated,
    Sending,
    Sent,
    Settled,
    Settling,
    Taken,
    Told,
    Unrecorded,
    Visit,
    read_history,
)
from chaos.kinds import CRASH, STRANDED
from chaos.stories import Topic
from chaos.verdict import Verdict

EPOCH = 1_000_000_000_000
GROUP = "billing"
TOPIC = Topic(visibility_ms=2_000, max_retries=2)


class Run:
    """A history that a test writes by hand. The server's clock is EPOCH at 0 s."""

    def __init__(self) -> None:
        self.events: list[Event] = [Clock(at, at, EPOCH + at * 1000) for at in range(100)]
        self._ops = 0

    def add(self, *events: Event) -> None:
        """Adds events."""
        self.events += events

    def op(self) -> str:
        """A name for an operation."""
        self._ops += 1
        return f"op{self._ops}"

    def send(
        self, at: float, mark: str = "m1", outcome: str = "sent", *, due: float | None = None, **more: object
    ) -> None:
        """A send, told at once."""
        sending = replace(Sending(mark, mark, zlib.crc32(mark.encode()), 0), **more)  # type: ignore[arg-type]
        op = self.op()
        due_ms = int(EPOCH + (at if due is None else due) * 1000) + sending.delay_ms
        known = due_ms if outcome == "sent" else None
        self.add(Sent(at, op, "orders", [sending]))
        if outcome != "unknown":
            self.add(Told(at, op, "ok", [[sending.id, outcome, known]]))

    def tell(self, at: float, mark: str, outcome: str, *, after: float = 0.1, error: str = "", **more: object) -> None:
        """A send that is answered some seconds after."""
        sending = replace(Sending(mark, mark, zlib.crc32(mark.encode()), 0), **more)  # type: ignore[arg-type]
        op = self.op()
        due_ms = int(EPOCH + at * 1000) if outcome == "sent" else None
        row = [sending.id, outcome, due_ms]
        self.add(Sent(at, op, "orders", [sending]), Told(at + after, op, "ok", [row], error))

    def read(
        self,
        at: float,
        mark: str = "m1",
        *,
        id: str | None = None,
        due: float = 1,
        group: str = GROUP,
        asked: float | None = None,
        **more: object,
    ) -> list[str]:
        """A delivery. Returns its place."""
        taken = Taken(
            *("orders", id or mark, f"{int(EPOCH + at * 1000)}-0", 1, int(EPOCH + due * 1000)),
            *(None, mark, zlib.crc32(mark.encode())),
        )
        taken = replace(taken, **more)  # type: ignore[arg-type]
        self.add(Read(at, at, at if asked is None else asked, group, [taken]))
        return list(taken.place)

    def handle(self, at: float, place: list[str], error: str = "") -> None:
        """A handler runs."""
        self.add(Begun(at, GROUP, place), Ended(at, GROUP, place, error))

    def settle(self, at: float, what: str, place: list[str], outcome: str | None) -> None:
        """A delivery is settled."""
        op = self.op()
        self.add(Settling(at, op, what, GROUP, [place]), Settled(at, op, None if outcome is None else [outcome]))

    def ack(self, at: float, place: list[str], outcome: str | None = "acked") -> None:
        """A delivery is handled and acked."""
        self.handle(at, place)
        self.settle(at, "ack", place, outcome)

    def ask(self, at: float, what: str, outcome: str, id: str = "m1") -> None:
        """A cancel or a replay."""
        op = self.op()
        self.add(Asked(at, op, what, "orders", id), Told(at, op, "ok", [[outcome]]))

    def letter(self, mark: str = "m1", crc: int | None = None) -> None:
        """A dead letter that was moved."""
        crc = zlib.crc32(mark.encode()) if crc is None else crc
        self.add(Letter(98, "orders", GROUP, mark, "rejected", crc))

    def check(self, topic: Topic = TOPIC) -> Verdict:
        """The verdict, drained."""
        done = Drained(99, 1.0, {})
        return check(sorted([*self.events, done], key=lambda event: event.at), {"orders": topic}, [GROUP])


@pytest.fixture
def run() -> Run:
    """A history in which m1 is sent at 1 s."""
    fresh = Run()
    fresh.send(1)
    return fresh


def test_a_good_run_is_good(run: Run) -> None:
    """Sent, read, handled, acked; and a second one that failed first, was abandoned next, and acked at last."""
    run.ack(3, run.read(2))
    run.send(4, "m2", delay_ms=1_000)
    first = run.read(6, "m2", due=5)
    run.handle(6, first, "it broke")
    run.settle(6.1, "nack", first, "retry")
    run.read(7, "m2", due=5, attempt=2, at_ms=EPOCH + 6_500)
    run.ack(10, run.read(9.5, "m2", due=5, attempt=3, at_ms=EPOCH + 9_400))
    verdict = run.check()
    assert verdict.violations == []
    assert verdict.explained == {"its handler failed: a nack": 1, "its lease ran out": 1}
    assert verdict.ends == {"acked": 2}
    assert {verdict.checked[promise] > 0 for promise in (1, 2, 3, 4, 7, 10, 14)} == {True}
    assert "checked" in "\n".join(verdict.lines())


def early_entry(run: Run) -> None:
    """Ready before its due time, by the entry's id."""
    run.ack(3, run.read(2, due=2.001))


def early_clock(run: Run) -> None:
    """Ready before its due time by the server's clock, though the entry's id is later."""
    run.ack(3, run.read(2, due=4, entry=f"{EPOCH + 5_000}-0"))


def early_due(run: Run) -> None:
    """The due time was not computed on the server's clock."""
    run.send(1, "m2", due=0.5)
    run.ack(3, run.read(2.5, "m2", due=0.5))
    run.ack(3, run.read(2))


def early_record(run: Run) -> None:
    """Delivered for another time than was told."""
    run.ack(3, run.read(2, due=0.9))


def lost(run: Run) -> None:
    """Never delivered."""


def lost_after_nack(run: Run) -> None:
    """Given up, to be retried, and never seen again."""
    place = run.read(2)
    run.handle(2, place, "it broke")
    run.settle(3, "nack", place, "retry")


def acked_unhandled(run: Run) -> None:
    """Acked before its handler ended."""
    place = run.read(2)
    run.settle(3, "ack", place, "acked")
    run.handle(4, place)


def failed_but_done(run: Run) -> None:
    """A send that certainly failed was delivered."""
    run.ack(3, run.read(2))
    run.add(Fault(4, 3, "kill the server"))
    run.send(4, "m2", "failed")
    run.ack(6, run.read(5, "m2", due=4))


def twice(run: Run) -> None:
    """A second attempt while the lease of the first held."""
    run.read(2)
    run.ack(4, run.read(3, attempt=2, at_ms=EPOCH + 2_500))


def twice_renewed(run: Run) -> None:
    """A second attempt long after the first was read, but soon after its lease was renewed."""
    place = run.read(2)
    run.settle(8, "extend", place, "kept")
    run.ack(10, run.read(9, attempt=2, at_ms=EPOCH + 8_500))


def twice_same(run: Run) -> None:
    """Two deliveries of one attempt, though nobody gave the first back, and its handler had begun."""
    run.handle(2, run.read(2), "it broke")
    run.ack(10, run.read(9))


def twice_same_in_time(run: Run) -> None:
    """Two deliveries of one attempt: the first had not begun, but its lease held."""
    run.read(2)
    run.ack(4, run.read(3))


def unseen_attempt(run: Run) -> None:
    """A second attempt without a first, and no fault that could have swallowed it."""
    run.ack(10, run.read(9, attempt=2, at_ms=EPOCH + 8_500))


def after_ack(run: Run) -> None:
    """Delivered again after its ack."""
    run.ack(3, run.read(2))
    run.ack(10, run.read(9, attempt=2, at_ms=EPOCH + 8_500))


def stale_for_nothing(run: Run) -> None:
    """A stale ack of the only delivery."""
    run.ack(3, run.read(2), "stale")


def sent_twice(run: Run) -> None:
    """Two sends of one id were both told that they were the first."""
    run.ack(3, run.read(2))
    run.send(4, "m2", id="m1")


def two_bodies(run: Run) -> None:
    """The send that was told "duplicate" is delivered."""
    run.send(2, "m2", "duplicate", id="m1")
    run.ack(4, run.read(3, "m2", id="m1"))


def too_often(run: Run) -> None:
    """A fourth delivery, where three are allowed."""
    for attempt in (1, 2, 3, 4):
        place = run.read(3 * attempt, attempt=attempt, at_ms=EPOCH + 3_000 * attempt)
        run.handle(3 * attempt, place, "it broke")
        if attempt < 4:
            run.settle(3 * attempt + 1, "nack", place, "retry")
    run.ack(14, place)


def twice_replayed_once(run: Run) -> None:
    """Three first attempts, though it was replayed once."""
    entries = [run.read(2), run.read(9), run.read(16)]
    run.handle(10, entries[1], "it broke")
    run.settle(3, "nack", entries[0], "garbage")
    run.ask(4, "replay", "replayed")
    run.ack(17, entries[2])


def aborted_acked(run: Run) -> None:
    """An ack counts after an abort that returned."""
    place = run.read(2)
    run.ask(3, "abort", "aborted")
    run.ack(4, place)


def aborted_read(run: Run) -> None:
    """An entry that was made after an abort is read."""
    run.settle(3.1, "nack", run.read(2), "stale")
    run.ask(3, "abort", "aborted")
    run.ack(5, run.read(4, attempt=2))


def cancelled_delivered(run: Run) -> None:
    """Read after a cancel that returned."""
    run.ask(2, "cancel", "cancelled")
    run.ack(4, run.read(3))


def expired_delivered(run: Run) -> None:
    """Read after its time to live."""
    run.ack(2, run.read(1.5))
    run.send(2, "m2", ttl_ms=1_000)
    run.ack(4, run.read(3.1, "m2", due=2))


def other_body(run: Run) -> None:
    """The body differs."""
    run.ack(3, run.read(2, crc=7))


def never_sent(run: Run) -> None:
    """Nobody sent it."""
    run.ack(3, run.read(2))
    run.read(4, "ghost")


def invalid_delivered(run: Run) -> None:
    """A send that was refused as bad input is delivered."""
    run.ack(3, run.read(2))
    run.send(4, "m2", "invalid")
    run.ack(6, run.read(5, "m2", due=4))


def delayed_by_another(run: Run) -> None:
    """Late, while there is nothing but another topic in trouble."""
    run.add(Fault(20, 1, "flood", "wedged"))
    run.ack(19, run.read(18))


def in_two_shards(run: Run) -> None:
    """Each group has it, but from another shard."""
    run.add(Left(98, "orders", "audit", "m1", "nack", "1.2"))
    run.ack(3, run.read(2, shard="0.1"))


def two_entries(run: Run) -> None:
    """Read from two shards, as entries of one and the same id: the second is not the first."""
    run.ack(3, run.read(2, entry=f"{EPOCH + 2_000}-0"))
    run.send(1, "m2")
    run.handle(3, run.read(2, "m2", entry=f"{EPOCH + 2_000}-0", shard="1"))


def not_found(run: Run) -> None:
    """A reschedule that found nothing of what was sent, and acked, shortly before."""
    run.ack(3, run.read(2))
    run.ask(4, "reschedule", "unknown")


def lost_though_not_found(run: Run) -> None:
    """That a cancel did not find it is no end, and no answer."""
    run.ask(2, "cancel", "unknown")


def told_by_harness(run: Run) -> None:
    """What the harness itself found counts."""
    run.ack(3, run.read(2))
    run.add(Problem(50, 9, "an id is in two places"), Problem(51, 11, "a key is left"))


def own_limit(run: Run) -> None:
    """A caller hears of the client's own limit, in the midst of a fault, and though its send was taken by then."""
    run.ack(3, run.read(2))
    run.add(Fault(5, 3, "kill the server"))
    run.tell(4, "m2", "unknown", error="OutcomeUnknown: Too many connections")
    run.ack(6, run.read(5, "m2", due=4))


def failed_for_nothing(run: Run) -> None:
    """A send fails long after the last fault; what concerns another topic is no excuse."""
    run.ack(3, run.read(2))
    run.add(Fault(4, 3, "kill the server"), Fault(18, 15, "flood", "wedged"))
    run.tell(16, "m2", "failed", error="Unreachable: nobody there")


def asked_for_nothing(run: Run) -> None:
    """A cancel has no answer, and nothing is at work."""
    run.ack(3, run.read(2))
    op = run.op()
    run.add(Asked(20, op, "cancel", "orders", "m1"), Told(21, op, "unknown", [], "OutcomeUnknown: whatever"))


def answered_late(run: Run) -> None:
    """A send that was taken after half a minute."""
    run.ack(3, run.read(2))
    run.tell(20, "m2", "sent", after=30)
    run.ack(51, run.read(50.5, "m2", due=20))


def refused_for_nothing(run: Run) -> None:
    """A message is refused for what is wrong with its neighbour's."""
    run.ack(3, run.read(2))
    run.tell(5, "m2", "invalid", error="InvalidInput: delay")
    run.tell(5, "m3", "invalid", error="InvalidInput: delay", bad=True)


def letter_after_ack(run: Run) -> None:
    """Acked, and yet in the dead letter topic."""
    run.ack(3, run.read(2))
    run.letter()


def two_letters(run: Run) -> None:
    """It died once, and is in the dead letter topic twice."""
    run.letter()
    run.letter()


def other_letter(run: Run) -> None:
    """The body of a dead letter differs."""
    run.letter(crc=7)


def letter_never_sent(run: Run) -> None:
    """Nobody sent it."""
    run.ack(3, run.read(2))
    run.letter("ghost")


PLANTED: list[tuple[set[int], Callable[[Run], None]]] = [
    ({1}, early_entry),
    ({1}, early_clock),
    ({1}, early_due),
    ({1}, early_record),
    ({2}, lost),
    ({2}, lost_after_nack),
    ({2}, acked_unhandled),
    ({2}, failed_but_done),
    ({3}, twice),
    ({3}, twice_renewed),
    ({3}, twice_same),
    ({3}, twice_same_in_time),
    ({3}, unseen_attempt),
    ({4}, after_ack),
    ({2, 5}, stale_for_nothing),
    ({6}, sent_twice),
    ({6}, two_bodies),
    ({7}, too_often),
    ({3}, twice_replayed_once),
    ({8}, aborted_acked),
    ({8}, aborted_read),
    ({8}, cancelled_delivered),
    ({8}, expired_delivered),
    ({10}, other_body),
    ({10}, never_sent),
    ({13}, invalid_delivered),
    ({12}, delayed_by_another),
    ({9}, in_two_shards),
    ({2}, two_entries),
    ({9}, not_found),
    ({2, 9}, lost_though_not_found),
    ({9, 11}, told_by_harness),
    ({14}, own_limit),
    ({14}, failed_for_nothing),
    ({14}, asked_for_nothing),
    ({14}, answered_late),
    ({13}, refused_for_nothing),
    ({9}, letter_after_ack),
    ({9}, two_letters),
    ({10}, other_letter),
    ({9}, letter_never_sent),
]


@pytest.mark.parametrize(("broken", "plant"), PLANTED, ids=lambda value: getattr(value, "__name__", ""))
def test_planted_violations_are_found(run: Run, broken: set[int], plant: Callable[[Run], None]) -> None:
    """Each is found, as a violation of the promise that it breaks."""
    plant(run)
    found = run.check().broken
    # What comes too often, or after its end, has no reason either.
    assert found == broken or found == broken | {3}


def test_dead_letters_that_were_moved(run: Run) -> None:
    """Each is the end of its message; one that was replayed may be there once more."""
    run.letter()
    run.send(2, "m2")
    run.ask(4, "replay", "replayed", "m2")
    run.letter("m2")
    run.letter("m2")
    verdict = run.check()
    assert verdict.violations == []
    assert verdict.ends == {"garbage, rejected": 2}


@pytest.mark.parametrize(
    ("lost", "explained"),
    [
        (Unrecorded(2.2, 2, "orders", GROUP), True),
        (Unrecorded(2.2, 2, "orders", GROUP, "m1"), True),
        (Unrecorded(2.2, 2, "orders", GROUP, "m2"), False),
        (Unrecorded(2.2, 2, "orders", "audit"), False),
        (Unrecorded(2.2, 2, "mail", GROUP), False),
        (Unrecorded(20, 19, "orders", GROUP), False),
    ],
)
def test_a_consumer_that_could_not_record_a_delivery_explains_the_next_attempt(
    run: Run, lost: Unrecorded, *, explained: bool
) -> None:
    """Only of its message, in its group and topic, and before the attempt."""
    unseen_attempt(run)
    run.add(lost)
    assert run.check().broken == (set() if explained else {3})


def spent_by_a_link(run: Run) -> None:
    """A second attempt, as a lease ran out while the first was on its way."""
    run.read(2)
    run.ack(10, run.read(9, attempt=2, at_ms=EPOCH + 8_500))


def dead_beside_poison(run: Run) -> None:
    """Its worker died of its neighbour, and it with it; the crash is a reason to try again, and not to give up."""
    place = run.read(2)
    run.add(Begun(2, GROUP, place), Fault(3, 2.1, CRASH, "orders"))
    run.add(Left(20, "orders", GROUP, "m1", "abandoned"))


def dead_unseen(run: Run) -> None:
    """Nobody was ever given it, and it is garbage."""
    run.add(Left(20, "orders", GROUP, "m1", "abandoned"))


@pytest.mark.parametrize("plant", [spent_by_a_link, dead_beside_poison, dead_unseen], ids=lambda each: each.__name__)
def test_what_is_spared_must_not_suffer(run: Run, plant: Callable[[Run], None]) -> None:
    """In a topic whose handlers never fail, which is found; in another, or while a server was killed, it may."""
    plant(run)
    spared = replace(TOPIC, spares=True)
    assert run.check(spared).broken == {12}
    assert run.check().violations == []
    run.add(Fault(8, 1.5, "kill the server"))
    assert run.check(spared).violations == []


@pytest.mark.parametrize(
    ("read", "options", "more", "is_broken"),
    [
        (3, {}, (), True),
        (3, {"key": "other"}, (), False),
        (3, {"key": None}, (), False),
        (3, {"ttl_ms": 9_000}, (), False),
        (4.9, {}, (), False),
        (3, {}, (Outage(2.5),), False),
        (3, {}, (Outage(1.9),), True),
    ],
    ids=["in hand", "another key", "no key", "may expire", "its lease ended", "lost", "lost before"],
)
def test_one_of_a_key_in_hand(
    run: Run, read: float, options: dict[str, object], more: tuple[Event, ...], *, is_broken: bool
) -> None:
    """A second message of a key comes once the first is settled, or its lease has ended."""
    for mark, of_it in (("a", {"key": "k"}), ("b", {"key": "k", **options})):
        run.send(1, mark, **of_it)
    run.add(*more)
    run.ack(2, run.read(1.5))
    run.ack(6, run.read(2, "a"), "late")
    run.ack(read + 0.1, run.read(read, "b"))
    per_key = replace(TOPIC, per_key=1)
    assert run.check(per_key).broken == ({15} if is_broken else set())
    assert run.check(replace(TOPIC, per_key=2)).broken == set()
    assert run.check().checked[15] == 0


def test_what_is_settled_is_not_in_hand(run: Run) -> None:
    """By any settling, also one of unknown outcome, as it may have been done."""
    run.ack(1.5, run.read(1.5))
    for at, what, mark in ((2, "ack", "a"), (4, "nack", "b"), (6, "release", "c"), (8, "ack", "d")):
        run.send(1, mark, key="k")
        place = run.read(at, mark)
        run.handle(at, place)
        run.settle(at + 1, what, place, None)
        run.add(Left(98, "orders", GROUP, mark, "nack"))
    assert run.check(replace(TOPIC, per_key=1)).violations == []


def test_what_is_renewed_is_in_hand(run: Run) -> None:
    """Until its last lease ends."""
    run.ack(1.5, run.read(1.5))
    for mark in "ab":
        run.send(1, mark, key="k")
    held = run.read(2, "a")
    run.settle(3.5, "extend", held, "kept")
    run.ack(5.1, run.read(5, "b"))
    run.ack(7, held)
    assert run.check(replace(TOPIC, per_key=1)).broken == {15}


def test_poison_is_not_spared(run: Run) -> None:
    """It gets one delivery more than its retries, as its worker died with it, and dies: a second one is too many."""
    run.ack(3, run.read(2))
    run.send(4, "m2", poison=True)
    for attempt in (1, 2, 3, 4):
        place = run.read(4 + 3 * attempt, "m2", due=4, attempt=attempt, at_ms=EPOCH + 1000 * (4 + 3 * attempt))
        run.add(Begun(4.5 + 3 * attempt, GROUP, place))
    run.add(Left(98, "orders", GROUP, "m2", "abandoned"))
    assert run.check(replace(TOPIC, spares=True)).violations == []
    run.read(30, "m2", due=4, attempt=5, at_ms=EPOCH + 29_000)
    assert run.check(replace(TOPIC, spares=True)).broken == {7}


def test_what_never_began_is_released(run: Run) -> None:
    """It comes again as the same attempt when its lease has run out, and counts for nothing."""
    for at in (2, 5, 8, 11):
        place = run.read(at)
    run.ack(12, place)
    verdict = run.check()
    assert verdict.violations == []
    assert verdict.explained == {"its lease ran out before it began": 3}


def test_what_began_too_late_is_released(run: Run) -> None:
    """The next delivery was read before its handler began."""
    first = run.read(2)
    second = run.read(9)
    run.handle(9.5, first)
    run.settle(9.6, "ack", first, "stale")
    run.ack(10, second)
    verdict = run.check()
    assert verdict.violations == []
    assert verdict.explained == {"its lease ran out before it began": 1}


def test_a_release_that_failed_has_done_nothing(run: Run) -> None:
    """The server refused it: the lease runs out, and the message comes again as the same attempt."""
    run.settle(2.1, "release", run.read(2), "failed")
    run.ack(9, run.read(8))
    verdict = run.check()
    assert verdict.violations == []
    assert verdict.explained == {"its lease ran out before it began": 1}


def test_only_a_death_gives_one_delivery_more(run: Run) -> None:
    """Not a handler that fails."""
    for attempt in (1, 2, 3, 4):
        place = run.read(3 * attempt, attempt=attempt, at_ms=EPOCH + 3_000 * attempt)
        run.handle(3 * attempt + 0.5, place, "it broke")
        if attempt < 4:
            run.settle(3 * attempt + 1, "nack", place, "retry")
    run.ack(14, place)
    assert run.check().broken == {7}


def test_a_crash_may_swallow_a_delivery(run: Run) -> None:
    """Of a read that was under way when a handler of the topic killed its process."""
    run.add(Fault(4, 2, CRASH, "orders"))
    run.ack(9, run.read(8, attempt=2, at_ms=EPOCH + 7_000))
    assert run.check().violations == []


def test_a_topic_may_have_groups_of_its_own(run: Run) -> None:
    """Nobody else owes what is sent there."""
    run.ack(3, run.read(2))
    verdict = check([*run.events, Drained(99, 1.0, {})], {"orders": replace(TOPIC, groups=(GROUP,))}, [GROUP, "audit"])
    assert verdict.violations == []


def test_a_connection_that_leads_nowhere_is_found_out_late(run: Run) -> None:
    """By whoever uses it next."""
    run.ack(3, run.read(2))
    run.add(Fault(4, 3, STRANDED))
    run.tell(60, "m2", "unknown", error="OutcomeUnknown: no answer")
    assert run.check().violations == []


def test_a_run_that_was_not_drained_is_no_good(run: Run) -> None:
    """Promise 14: everything goes on."""
    run.ack(3, run.read(2))
    assert check(run.events, {"orders": TOPIC}, [GROUP]).broken == {14}


def test_a_killed_server_explains_what_it_lost(run: Run) -> None:
    """What it acknowledged shortly before may be lost: an ack, a send."""
    run.ack(3, run.read(2))
    run.send(3.5, "m2")
    run.add(Outage(4))
    run.ack(7, run.read(6))
    verdict = run.check()
    assert verdict.violations == []
    assert verdict.explained == {"Redis lost acknowledged writes": 1}


def test_a_killed_server_explains_a_stale_ack(run: Run) -> None:
    """It has lost the send, and with it the delivery."""
    run.ack(3, run.read(2), "stale")
    run.add(Outage(2.5))
    assert run.check().violations == []


def test_a_killed_server_may_lose_a_renewal(run: Run) -> None:
    """Then the lease ends when it would have ended without it. Earlier renewals were not lost."""
    place = run.read(2)
    run.settle(3, "extend", place, "kept")
    run.settle(8, "extend", place, "kept")
    run.add(Outage(8.4))
    run.ack(10, run.read(9, attempt=2, at_ms=EPOCH + 8_500))
    assert run.check().violations == []


def test_a_killed_server_may_give_entries_anew(run: Run) -> None:
    """With the entry it lost how far it had come: what is delivered again stands before what was delivered first."""
    run.ack(3, run.read(2, entry=f"{EPOCH + 2_000}-7"))
    run.add(Outage(4))
    run.ack(7, run.read(6, entry=f"{EPOCH + 2_000}-5"))
    verdict = run.check()
    assert verdict.violations == []
    assert verdict.explained == {"Redis lost acknowledged writes": 1}


def test_a_killed_server_may_make_it_ready_for_others_under_an_early_entry(run: Run) -> None:
    """An ack of the delivery that it has lost does so: the message was due, though the clock was set back since."""
    run.ack(5, run.read(2))
    run.add(Outage(4))
    run.read(6, entry=f"{EPOCH + 900}-1", at_ms=EPOCH + 1_000, group="others")
    assert run.check().violations == []


def test_a_worker_may_fetch_after_an_abort_what_it_read_before(run: Run) -> None:
    """It is told within two seconds, and its ack is stale."""
    place = run.read(4, entry=f"{EPOCH + 2_000}-0", asked=2)
    run.ask(3, "abort", "aborted")
    run.ack(4, place, "stale")
    run.add(Left(98, "orders", GROUP, "m1", "aborted"))
    assert run.check().violations == []


@pytest.mark.parametrize(
    ("visit", "lost"),
    [
        (Visit(9, 0, "orders", "guest", []), True),
        (Visit(9, 0, "orders", "guest", ["m1"]), False),
        (Visit(9, 3, "orders", "guest", []), False),
        (Visit(4, 0, "orders", "guest", []), False),
        (Visit(9, 0, "mail", "guest", []), False),
    ],
    ids=["not there", "there", "made later", "looked at earlier", "of another topic"],
)
def test_a_group_that_comes_later_is_given_what_is_sent_since(run: Run, visit: Visit, *, lost: bool) -> None:
    """As soon as another group is given it."""
    run.ack(6, run.read(5))
    run.add(visit)
    violations = run.check().violations
    assert violations == ([(2, "orders/m1: not for group guest, made before it was sent")] if lost else [])


def test_damage_excuses_what_was_sent_before(run: Run) -> None:
    """Of a topic that an operator damaged, and of it alone."""
    run.send(6, "m2")
    run.add(Damage(5, "orders"))
    assert run.check().violations == [(2, "orders/m2: lost in group billing")]


def test_damage_excuses_a_second_send_of_an_id(run: Run) -> None:
    """With its record an operator may have deleted that the id was known."""
    run.ack(3, run.read(2))
    run.add(Damage(4, "orders"))
    run.send(5, "m2", id="m1")
    run.ack(7, run.read(6, "m2", id="m1", due=5))
    assert run.check().violations == []


def test_a_purge_excuses_a_second_send_of_an_id(run: Run) -> None:
    """What an operator has deleted may be sent anew, and go elsewhere."""
    place = run.read(2, shard="0")
    run.handle(2, place)
    run.settle(3, "nack", place, "garbage")
    run.ask(4, "purge", "purged")
    run.send(5, "m2", id="m1")
    run.ack(7, run.read(6, "m2", id="m1", due=5, shard="1.1"))
    assert run.check().violations == []


def test_an_id_is_known_in_its_window_only(run: Run) -> None:
    """By the server's clock: one that is sent again later may be another message."""
    run.ack(3, run.read(2))
    run.send(20, "m2", id="m1")
    run.ack(22, run.read(21, "m2", id="m1", due=20))
    assert run.check(replace(TOPIC, window_ms=30_000)).broken == {3, 4, 6}
    assert run.check(replace(TOPIC, window_ms=15_000)).violations == []


def test_a_send_without_an_answer_may_be_carried_out_after_the_window(run: Run) -> None:
    """A frozen server finds the request when it goes on. One that was answered was carried out by then."""
    run.ack(3, run.read(2))
    run.send(20, "m2", "unknown", id="m1")
    run.ack(42, run.read(41, "m2", id="m1", due=40))
    assert run.check(replace(TOPIC, window_ms=60_000)).broken == {3, 4, 6}
    assert run.check(replace(TOPIC, window_ms=37_000)).violations == []


def test_a_replay_gives_another_life(run: Run) -> None:
    """All attempts again, and no time to live any more."""
    run.send(2, "m2", ttl_ms=11_000)
    for start in (3, 20):
        for attempt in (1, 2, 3):
            at = start + 3 * attempt
            place = run.read(at, "m2", due=2, attempt=attempt, at_ms=EPOCH + 1_000 * at if attempt > 1 else None)
    run.ask(15, "replay", "replayed", "m2")
    run.ack(30, place)
    run.ack(30, run.read(2))
    verdict = run.check()
    assert verdict.violations == []
    assert verdict.explained == {"its lease ran out": 4, "replayed by an operator": 1}


def test_a_fault_may_swallow_a_delivery(run: Run) -> None:
    """The reply to a read is lost with a worker: its next attempt is the first that anybody has."""
    run.add(Fault(4, 2, "kill a worker"))
    run.ack(9, run.read(8, attempt=2, at_ms=EPOCH + 7_000))
    assert run.check().violations == []


def test_a_fault_may_swallow_the_reply_to_a_cancel(run: Run) -> None:
    """It is asked again, and finds nothing any more."""
    run.add(Fault(4, 1.5, "restart the server"))
    run.ask(2, "cancel", "unknown")
    assert run.check().violations == []


@pytest.mark.parametrize(
    ("cancelled_at", "left_at", "broken"),
    [(2, 1.5, set()), (3, 1.5, {8}), (3, 1.7, {8}), (5, 1.5, {8})],
    ids=["sooner than the way", "as late as the way is long", "later", "when it had arrived"],
)
def test_a_repeat_may_undo_a_cancel_that_came_sooner_than_its_way_took(
    run: Run, cancelled_at: float, left_at: float, broken: set[int]
) -> None:
    """As docs/guarantees.md#dedup says, and nothing wider. The message has all its attempts again."""
    run.read(1.3)
    run.ask(cancelled_at, "cancel", "delivered")
    run.add(Repeated(left_at + 2, left_at, 1, "orders", "m1"))
    run.ack(7, run.read(6))
    assert run.check().broken & {8} == broken
    assert run.check().explained["a repeat of its send undid a cancel"] == (not broken)


def test_unknown_outcomes_may_go_either_way(run: Run) -> None:
    """A send without an answer may leave nothing, or a message; an ack without one may have been carried out."""
    run.ack(3, run.read(2), None)
    run.send(4, "m2", "unknown")
    run.send(5, "m3", "unknown")
    run.ack(7, run.read(6, "m3", due=5))
    verdict = run.check()
    assert verdict.violations == []
    assert verdict.ends == {"acked, but the reply was lost": 1, "acked": 1}


def test_ends_are_told_apart(run: Run) -> None:
    """Garbage, cancelled, and expired where the policy drops what expires."""
    run.add(Left(98, "orders", "", "m1", "expired"))
    run.send(2, "m2")
    run.ask(3, "cancel", "cancelled", "m2")
    run.send(4, "m3", ttl_ms=10)
    verdict = run.check(Topic(2_000, 2, drops_expired=True))
    assert verdict.violations == []
    assert verdict.ends == {"garbage, expired": 1, "cancelled": 1, "expired and dropped": 1}


def test_a_history_is_read_as_it_was_written(tmp_path: Path, run: Run) -> None:
    """Every event comes back, in order; a line that was cut off is none."""
    run.ack(3, run.read(2))
    run.add(Left(98, "orders", GROUP, "m1", "nack"), Outage(5), Damage(6, "orders"), Fault(7, 6, "x"))
    run.add(Visit(8, 7, "orders", "guest", ["m1"]))
    for name in ("a", "b"):
        recorder = Recorder(tmp_path, name)
        for event in run.events[name == "a" :: 2]:
            recorder.write(event)
    torn = next(tmp_path.glob("a-*"))
    torn.write_bytes(torn.read_bytes() + b'["Outage",')
    assert sorted(map(repr, read_history(tmp_path))) == sorted(map(repr, run.events))


METERED = replace(TOPIC, interval_ms=100.0, burst=3)


def burst_of(run: Run, count: int, at: float) -> None:
    """Messages that became ready within some ms, each as the only one of its read."""
    for number in range(count):
        mark = f"b{at:g}-{number}"
        run.send(at - 0.5, mark, due=at - 0.5)
        run.ack(at + 0.3, run.read(at + 0.2, mark, due=at - 0.5, entry=f"{int(EPOCH + at * 1000) + number}-0"))


def test_a_rate_holds_in_every_stretch_of_time(run: Run) -> None:
    """A full bucket may be emptied at once, and fills again as time passes."""
    run.ack(3, run.read(2))
    burst_of(run, 4, at=10)
    burst_of(run, 2, at=10.2)
    burst_of(run, 4, at=11)
    assert run.check(METERED).violations == []
    assert run.check(METERED).checked[15] == 11
    burst_of(run, 4, at=11.2)
    assert run.check(METERED).broken == {15}
    assert run.check().violations == []


def test_a_killed_server_may_have_lost_what_its_bucket_held(run: Run) -> None:
    """It lost the messages that had become ready as well."""
    run.ack(3, run.read(2))
    burst_of(run, 4, at=10)
    burst_of(run, 4, at=11)
    run.add(Outage(11.15), Fault(11.16, 11.1, "kill the server"))
    burst_of(run, 4, at=11.3)
    assert run.check(METERED).violations == []
