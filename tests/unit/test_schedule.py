"""Schedules: their fields, their ticks, and which of them a manager sends."""

import time
from datetime import UTC, datetime
from itertools import islice, takewhile
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from lisa_common.errors import InvalidInput
from lisa_common.model.keys import ShardKeys
from lisa_common.model.rhythm import CronRhythm, check_cron, explain_cron, recent_start
from lisa_common.model.schedule import Definition, Schedule, tick_id
from lisa_common.model.schedule_input import FIELDS, stored_fields
from lisa_common.model.sharding import home
from lisa_common.model.ticks import plan

NOW = 1_795_000_000_000
MINUTE = 60_000
DAY = 86_400_000
NOON = NOW // DAY * DAY + DAY // 2


def of(**fields: Any) -> Schedule:
    """A schedule."""
    return Schedule.of({"name": "s", "topic": "orders", "every_ms": MINUTE} | fields)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"every": 0.001}, "every must be seconds or a timedelta from 1 s to 10 years; got 0.001"),
        ({"every": 1e12}, "every must be seconds or a timedelta"),
        (
            {"every": 60, "catchup_window": 32 * 86_400},
            "catchup_window must be seconds or a timedelta from 1 s to 2678400 s",
        ),
        ({"every": None}, "schedule must be one with either every or cron; got neither"),
        ({"cron": "* * * * *"}, "schedule must be one with either every or cron; got both"),
        ({"every": None, "cron": "0 0 30 2 *"}, "cron must be"),
        ({"every": None, "cron": "0 0 */30 2 MON#5"}, "cron must be an expression that comes true within 50 years"),
        ({"every": None, "cron": "61 * * * *"}, "(bad minute)"),
        ({"every": None, "cron": ""}, "cron must be five fields"),
        ({"every": None, "cron": "1," * 500}, "cron must be five fields"),
        ({"every": None, "cron": "0 0 * * 5#3/2"}, "cron must be five fields"),
        ({"every": None, "cron": "9" * 150 + " * * * *"}, "cron must be five fields"),
        ({"every": None, "cron": "* * * * *", "tz": "Mars/Base"}, "tz must be an IANA time zone"),
        ({"every": None, "cron": "* * * * *", "tz": "../../etc/passwd"}, "tz must be an IANA time zone"),
        ({"every": None, "cron": "* * * * *", "tz": "Europe"}, "tz must be an IANA time zone"),
        ({"every": None, "cron": "* * * * *", "tz": "localtime"}, "tz must be an IANA time zone"),
        ({"tz": "Europe/Berlin"}, "tz must be omitted with every"),
        ({"body": b"x" * 65_537}, "body must be at most 65536 bytes; got 65537 bytes"),
        ({"headers": {"lisa-tick": "x"}}, "headers must be other names than lisa-schedule"),
        ({"headers": {"a": "x" * 20_000}}, "headers must be at most 16384 bytes"),
        ({"catchup": "some"}, "catchup must be 'latest', 'all' or 'none'; got 'some'"),
        ({"overlap": "no"}, "overlap must be 'allow' or 'skip'; got 'no'"),
        ({"jitter": 61}, "jitter must be at most 60 s, the distance of ticks; got 61"),
        ({"catchup_within": 0}, "catchup_within must be seconds or a timedelta from 1 s to 2678400 s"),
        ({"catchup_within": 300, "catchup": "none"}, "catchup_within cannot be combined with catchup=none"),
        ({"catchup_within": 300, "catchup_window": 60}, "catchup_within cannot be combined with catchup_window"),
        ({"catchup_window": 60}, "catchup_window needs catchup=all"),
        ({"catchup_window": 60, "catchup": "none"}, "catchup_window needs catchup=all"),
        ({"priority": 256}, "priority must be"),
        ({"max_retries": True}, "max_retries must be"),
        ({"topic": "mail"}, "field of a schedule must be one of every"),
        ({"when": 1}, "field of a schedule must be one of every"),
    ],
)
def test_bad_fields_are_refused_in_one_line(fields: dict[str, Any], told: str) -> None:
    """Each by its name, what it must be, and what it is; within a fifth of a second."""
    began = time.process_time()
    with pytest.raises(InvalidInput) as refused:
        Schedule.of(stored_fields({"every": 60} | fields) | {"topic": "orders", "name": "s"}).checked(NOW)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)
    assert time.process_time() - began < 0.2


def test_a_far_start_is_refused() -> None:
    """A schedule for 2099 would wait for ever."""
    with pytest.raises(InvalidInput, match="from must be within the next 10 years; got 2099"):
        of(from_ms=4_070_908_800_000).checked(NOW)


def test_ticks_of_a_period_are_multiples_since_1970() -> None:
    """So all managers agree, whenever they started."""
    assert list(islice(of(every_ms=7_000).ticks_after(NOW), 3)) == [(NOW // 7_000 + n) * 7_000 for n in (1, 2, 3)]


def test_ticks_stay_within_their_limits() -> None:
    """Both limits may be ticks themselves."""
    limited = of(from_ms=10 * MINUTE, until_ms=12 * MINUTE)
    assert list(limited.ticks_after(0)) == [10 * MINUTE, 11 * MINUTE, 12 * MINUTE]
    assert list(limited.ticks_after(12 * MINUTE)) == []


@settings(max_examples=60)
@given(
    st.sampled_from(
        ["* * * * *", "*/7 * * * *", "30 2 * * *", "0 0 1 * *", "0 0 29 2 *", "*/20 * 3 * * *", "0 9-17 * * MON-FRI"]
    ),
    st.sampled_from(["UTC", "Europe/Berlin", "America/Santiago", "Australia/Lord_Howe"]),
    st.integers(1_577_836_800_000, 2_082_758_400_000),
    st.integers(0, 40 * DAY),
)
def test_ticks_do_not_depend_on_where_one_begins(cron: str, tz: str, at: int, later: int) -> None:
    """Whoever looks from a later time on sees the same ticks; a jump to the latest ones leaves none of them out."""
    rhythm = CronRhythm(cron, tz)
    until = at + later
    few = list(islice(rhythm.after(at), 200))
    assert few == sorted(set(few))
    assert list(islice(rhythm.after(few[10]), 50)) == few[11:61]
    start = recent_start(rhythm.after, at, until)
    assert at <= start <= until
    recent = list(takewhile(lambda tick: tick <= until, rhythm.after(start)))
    assert len(recent) <= 4_000
    assert start == at or len(recent) >= 2


@given(
    st.integers(1, 200),
    st.integers(0, 50_000),
    st.sampled_from(["latest", "all", "none"]),
    st.integers(0, 900),
    st.data(),
)
def test_a_plan_never_goes_back_and_never_repeats(
    period_s: int, away_s: int, catchup: str, jitter_ms: int, data: st.DataObject
) -> None:
    """Managers that come at any time, with clocks that differ, send each tick at most once, in order."""
    schedule = of(every_ms=period_s * 1_000, catchup=catchup, jitter_ms=jitter_ms)
    last, handled = NOW, []
    now = NOW
    for _ in range(8):
        now += data.draw(st.integers(0, away_s * 1_000))
        ticks = plan(schedule, last, now)
        assert sum(1 for each in ticks if each.due_ms > now) <= 1, "one ahead"
        assert [each.tick_ms for each in ticks] == sorted({each.tick_ms for each in ticks})
        assert all(each.tick_ms > last for each in ticks)
        if catchup != "all":
            covered = sum(each.skipped for each in ticks) + len(ticks)
            if ticks and covered < 1_000:
                assert (
                    covered == (ticks[-1].tick_ms - last // schedule.every_ms * schedule.every_ms) // schedule.every_ms
                )
        handled += [each.tick_ms for each in ticks]
        last = ticks[-1].tick_ms if ticks else last
    assert len(handled) == len(set(handled))


def test_a_paused_schedule_sends_nothing() -> None:
    """And one without overlap sends nothing ahead."""
    assert plan(of(paused=True), NOW - DAY, NOW) == []
    assert [each.tick_ms <= NOW for each in plan(of(overlap="skip"), NOW - DAY, NOW)] == [True]


@pytest.mark.parametrize(
    ("fields", "sent", "skipped"),
    [
        ({"catchup_within": 300}, [5, 4, 3, 2, 1, 0], 14),
        ({"catchup_within": 299}, [4, 3, 2, 1, 0], 15),
        ({"catchup_within": 300, "catchup": "all"}, [5, 4, 3, 2, 1, 0], 14),
        ({"catchup_within": 300, "catchup": "latest"}, [0], 19),
        ({"catchup_within": 300, "every": 600}, [5], 1),
        ({"catchup_within": 299, "every": 600}, [], 2),
        ({"catchup_within": 299, "every": 600, "catchup": "latest"}, [], 2),
        ({"catchup_within": 299, "every": 600, "overlap": "skip"}, [], 2),
        ({"catchup_within": 300, "every": 600, "until": datetime.fromtimestamp(NOON / 1000, UTC)}, [5], 1),
        ({"catchup": "all", "catchup_window": 299, "every": 600}, [], 2),
    ],
)
def test_ticks_up_to_so_late_are_sent(fields: dict[str, Any], sent: list[int], skipped: int) -> None:
    """Older ones are skipped, and counted, whether a tick of every minute is missed or one in ten minutes."""
    schedule = Schedule.of(stored_fields({"every": 60} | fields) | {"topic": "orders", "name": "s"})
    now = NOON if schedule.every_ms == MINUTE else NOON + 5 * MINUTE
    ticks = plan(schedule, NOON - (20 if schedule.every_ms == MINUTE else 15) * MINUTE, now)
    due = [each for each in ticks if each.due_ms <= now]
    assert [(now - each.tick_ms) // MINUTE for each in due if each.send] == sent
    assert sum(each.skipped + (not each.send) for each in due) == skipped


def test_lateness_counts_from_the_delayed_tick() -> None:
    """Jitter delays a tick by up to a minute; the tick before last is not too old by that."""
    schedule = of(every_ms=10 * MINUTE, jitter_ms=10 * MINUTE, catchup_within_ms=MINUTE)
    tick = next(tick for tick in schedule.ticks_after(NOON) if schedule.due_ms(tick) > tick + 5 * MINUTE)
    for late_ms, send in ((MINUTE, True), (MINUTE + 1, False)):
        [due, *_] = plan(schedule, tick - 1, schedule.due_ms(tick) + late_ms)
        assert (due.tick_ms, due.send) == (tick, send)


def test_a_year_away_costs_little() -> None:
    """The latest tick of a schedule of each second is found without a walk through the year."""
    began = time.process_time()
    assert len(plan(of(every_ms=None, cron="* * * * * *"), NOW - 365 * DAY, NOW)) == 2
    assert time.process_time() - began < 1


@given(st.binary(max_size=50), st.sampled_from(["latest", "all"]), st.integers(0, 2**44))
def test_definitions_survive_storage(body: bytes, catchup: str, version: int) -> None:
    """Any body."""
    own = of(body=body, catchup=catchup, headers={"a": "ü"}, from_ms=5)
    stored = b"%d 7 %b" % (version, own.stored_form())
    assert Definition.load("orders", "s", stored) == Definition(own, version, 7)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"1 2", b"1 2 []", b"1 2 {}", b'-1 2 {"every_ms":1000}', b'1 {"every_ms":1000}', b"9" * 300_000]
)
def test_damaged_definitions_are_refused(text: bytes) -> None:
    """Other programs may write any value."""
    with pytest.raises(InvalidInput):
        Definition.load("orders", "s", text)


def test_all_ticks_of_a_topic_are_in_one_shard() -> None:
    """The first; ids that callers choose are spread as before."""
    shards = tuple(ShardKeys("lisa", "orders", str(number)) for number in range(7))
    assert {home(shards, tick_id("nightly", NOW + n * MINUTE)) for n in range(50)} == {shards[0]}
    assert len({home(shards, f"user@{n}") for n in range(50)}) == 7


def test_words() -> None:
    """Expressions are explained; all fields can be set."""
    assert explain_cron("30 2 * * MON-FRI") == "At 02:30 on Monday through Friday"
    assert check_cron("@daily", "UTC", now_ms=NOW) == "0 0 * * *"
    assert set(FIELDS) == {
        *("every", "cron", "tz", "body", "headers", "ttl", "max_retries", "priority", "start", "until"),
        *("catchup", "catchup_window", "catchup_within", "overlap", "jitter", "paused"),
    }
