"""Chaos for schedules: managers that die, freeze and have wrong clocks, while schedules are changed by authors who die.

Each message says by its body which change it belongs to, and by its headers which tick it is. So after the run a
checker that shares no code with the product counts the ticks that each change should have had: whole multiples of its
period.
"""

import json
import math
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from lisa_common.client.connection import Connection
from lisa_common.errors import LisaError, ServerError
from lisa_common.model.keys import schedules_key
from lisa_common.model.policy import Policy
from lisa_common.model.record import unpack_record
from lisa_common.model.sharding import Layout
from lisa_common.protocol.call import Call, Flow, command
from lisa_common.protocol.consuming import server_time
from lisa_common.protocol.registry import Topics, read_registry
from lisa_manager import Admin
from lisa_manager.admin import schedule_changes
from lisa_manager.settings import ManagerSettings
from support.processes import Process
from support.waiting import idle

__all__ = ["Changes", "Options", "Verdict", "judge", "read_messages", "torment"]

_PERIODS_S = (1, 2, 3)
_SETTLED_S = 5.0
"""How long the managers are left alone before the run is judged; the last ticks are not counted."""


@dataclass(frozen=True, slots=True)
class Options:
    """A run."""

    seed: str
    seconds: float
    schedules: int
    topics: Sequence[str] = ("orders",)
    reshards: bool = True


@dataclass(slots=True)
class Version:
    """A change that was written: from `since_ms` on, by the server's clock, this holds."""

    number: int
    """What its messages have as their body; -1 for a deletion."""
    period_ms: int | None
    """None while it is paused or deleted."""
    since_ms: int
    """No tick up to here is of this version, if the rhythm has changed; else when the change was written."""
    known_ms: int = 0
    """When it was certainly in force: the call had returned, or its mark was seen."""


@dataclass(slots=True)
class Changes:
    """All changes that were written, by schedule."""

    versions: dict[str, list[Version]] = field(default_factory=lambda: defaultdict(list))
    acknowledged: int = 0
    abandoned: int = 0
    """Authors who died on the way."""
    failed: int = 0
    """Calls that ended with an error of the server."""


class Author:
    """Changes some schedules, one after another."""

    def __init__(self, url: str, prefix: str, options: Options, number: int, changes: Changes) -> None:
        self._settings = ManagerSettings.load(redis_url=url, prefix=prefix)
        self._prefix = prefix
        self._options = options
        self._dice = random.Random(f"{options.seed} {number}")
        self._names = [f"s{at}" for at in range(options.schedules) if at % 4 == number]
        self._changes = changes
        self._count = 0

    def create(self) -> None:
        """Makes all schedules."""
        with Connection.of(self._settings, name="lisa-operator") as connection:
            for name in self._names:
                self._change(connection, name, may_die=False, kind="set")

    def run(self, until: float) -> None:
        """Changes schedules at random, sometimes dying half-way."""
        with Connection.of(self._settings, name="lisa-operator") as connection:
            while time.monotonic() < until:
                kind = self._dice.choice(("set", "set", "body", "pause", "resume", "delete"))
                self._change(connection, self._dice.choice(self._names), may_die=True, kind=kind)
                idle(self._dice.uniform(0.05, 0.6))

    def _change(self, connection: Connection, name: str, *, may_die: bool, kind: str) -> None:
        self._count += 1
        number = self._count
        flow = self._flow(name, kind, number)
        died = may_die and self._dice.random() < 0.33
        try:
            if died:
                _run_partly(connection, flow, self._dice.randrange(2, 12))
                self._changes.abandoned += 1
            else:
                connection.run(flow, patience_s=20)
                self._changes.acknowledged += 1
        except ServerError:
            self._changes.failed += 1
            died = True
        except LisaError:
            return  # it does not exist, or exists already
        self._note(connection, name)
        if died:
            self._wait_until_in_force(connection, name)
        self._changes.versions[name][-1].known_ms = _patiently(connection, server_time())

    def _flow(self, name: str, kind: str, number: int) -> Flow[Any]:
        place = (self._prefix, Topics(self._prefix), name)
        if kind in {"pause", "resume"}:
            return schedule_changes.set_paused(*place, paused=kind == "pause")
        if kind == "delete":
            return schedule_changes.delete_schedule(*place)
        fields: dict[str, Any] = {"body": f"{name} {number}", "catchup": "all"}
        known = self._changes.versions[name]
        if kind == "set" or not known or known[-1].number < 0:
            topic = self._options.topics[hash_of(name) % len(self._options.topics)]
            fields |= {"topic": topic, "every": self._dice.choice(_PERIODS_S), "paused": False}
        return schedule_changes.set_schedule(*place, fields)

    def _note(self, connection: Connection, name: str) -> None:
        """Reads what is written now, and notes it if it is new."""
        stored = _patiently(connection, command("HGET", schedules_key(self._prefix), name))
        fields = json.loads(stored) if stored else {}
        schedule = fields.get("schedule")
        known = self._changes.versions[name]
        if schedule is None:
            if known and known[-1].number >= 0:
                known.append(Version(-1, None, int(fields.get("version", known[-1].since_ms))))
            return
        number = int(schedule["body"].split()[1])
        period_ms = None if schedule.get("paused") else schedule["every_ms"]
        if not known or (known[-1].number, known[-1].period_ms) != (number, period_ms):
            known.append(Version(number, period_ms, fields["version"]))

    def _wait_until_in_force(self, connection: Connection, name: str) -> None:
        """Waits until some manager has made the second write."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            stored = _patiently(connection, command("HGET", schedules_key(self._prefix), name))
            if stored is None:
                return
            fields = json.loads(stored)
            topics = [*fields.get("left", {}), *([fields["schedule"]["topic"]] if "schedule" in fields else [])]
            if all(self._mark_version(connection, topic, name) >= fields["version"] for topic in topics):
                return
            idle(0.05)
        raise AssertionError(f"no manager has put {name} in force for 60 s: {stored!r}")

    def _mark_version(self, connection: Connection, topic: str, name: str) -> int:
        layout = _layout(connection, self._prefix, topic)
        marks = [_patiently(connection, command("HGET", keys.of("ticks"), name)) for keys in layout.ever]
        return max((int(mark.split()[0]) for mark in marks if mark), default=0)


def hash_of(name: str) -> int:
    """A number that a name has in every process."""
    return sum(name.encode())


def _layout(connection: Connection, prefix: str, topic: str) -> Layout:
    registry = connection.run(read_registry(prefix), patience_s=20)
    return Layout(prefix, topic, registry[topic].policy if topic in registry else Policy())


def _patiently(connection: Connection, call: Call[Any]) -> Any:
    return connection.call(call, patience_s=20)


def _run_partly(connection: Connection, flow: Flow[Any], steps: int) -> None:
    """Runs the first steps of a flow, as a process does that dies then."""
    with suppress(StopIteration):
        step = next(flow)
        for _ in range(steps):
            results = connection.execute([step] if isinstance(step, Call) else list(step))
            step = flow.send(results[0] if isinstance(step, Call) else results)
    flow.close()


def torment(  # noqa: C901 - one branch for each fault
    url: str,
    prefix: str,
    options: Options,
    start_manager: Callable[[int], Process],
    managers: int,
    *,
    kill_server: Callable[[], None] | None = None,
) -> Changes:
    """Runs managers, authors and faults; then leaves the managers alone for a while. Result: the changes."""
    dice = random.Random(options.seed)
    changes = Changes()
    authors = [Author(url, prefix, options, number, changes) for number in range(4)]
    for author in authors:
        author.create()
    running = [start_manager(number) for number in range(managers)]
    for process in running:
        process.wait_for("manager serves", 90)
    until = time.monotonic() + options.seconds
    failures: list[BaseException] = []

    def work(author: Author) -> None:
        try:
            author.run(until)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(author,)) for author in authors]
    for thread in threads:
        thread.start()
    frozen: list[tuple[float, Process]] = []
    shards = 1
    while time.monotonic() < until:
        idle(dice.uniform(0.2, 0.8))
        for since, process in [each for each in frozen if each[0] < time.monotonic()]:
            process.thaw()
            frozen.remove((since, process))
        fault = dice.choice(("kill", "freeze", "freeze", "reshard", "server"))
        at = dice.randrange(managers)
        if fault == "kill":
            running[at].kill()
            running[at] = start_manager(at)
            frozen = [each for each in frozen if each[1].runs]
        elif fault == "freeze":
            running[at].freeze()
            frozen.append((time.monotonic() + dice.uniform(0.2, 4), running[at]))
        elif fault == "reshard" and options.reshards and dice.random() < 0.15:
            shards = shards % 4 + 1
            with suppress(LisaError), Admin(url, settings=ManagerSettings.load(redis_url=url, prefix=prefix)) as admin:
                admin.reshard(dice.choice(list(options.topics)), shards)
        elif fault == "server" and kill_server is not None and dice.random() < 0.1:
            kill_server()
    for _, process in frozen:
        process.thaw()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    idle(_SETTLED_S)
    return changes


@dataclass(frozen=True, slots=True)
class Sent:
    """A message of a tick."""

    tick_ms: int
    number: int
    ready_ms: int


def read_messages(url: str, prefix: str, topics: Sequence[str]) -> dict[str, list[Sent]]:
    """All messages of ticks that ever became ready, by schedule. Nobody has consumed any."""
    sent: dict[str, list[Sent]] = defaultdict(list)
    with Connection(url) as connection:
        for topic in topics:
            for keys in _layout(connection, prefix, topic).ever:
                entries: list[Any] = connection.call(command("XRANGE", keys.of("ready"), "-", "+"))
                for entry, values in entries:
                    id = values[1].decode()
                    record = unpack_record(connection.call(command("HGET", keys.of("messages"), id)))
                    tick_ms = round(datetime.fromisoformat(record.headers["lisa-tick"]).timestamp() * 1000)
                    number = int(record.body.split()[1])
                    ready_ms = int(entry.split(b"-")[0])
                    sent[record.headers["lisa-schedule"]].append(Sent(tick_ms, number, ready_ms))
    return sent


@dataclass(slots=True)
class Verdict:
    """What was found."""

    expected: int = 0
    sent: int = 0
    violations: list[str] = field(default_factory=list)


def judge(changes: Changes, sent: dict[str, list[Sent]], end_ms: int) -> Verdict:
    """Compares the ticks that were to be sent until the end of the run with those that were."""
    verdict = Verdict(sent=sum(map(len, sent.values())))
    for name, versions in changes.versions.items():
        _judge_one(name, versions, sent.get(name, []), end_ms, verdict)
    return verdict


def _judge_one(  # noqa: C901, PLR0912 - one branch for each promise
    name: str, versions: list[Version], sent: list[Sent], end_ms: int, verdict: Verdict
) -> None:
    def report(text: str) -> None:
        verdict.violations.append(f"{name}: {text}")

    ticks = Counter(message.tick_ms for message in sent)
    for tick_ms, count in ticks.items():
        if count > 1:
            report(f"tick {tick_ms} was sent {count} times")
    for message in sent:
        if message.ready_ms < message.tick_ms:
            report(f"tick {message.tick_ms} was ready {message.tick_ms - message.ready_ms} ms early")
    for at, version in enumerate(versions):
        following = versions[at + 1] if at + 1 < len(versions) else None
        until_ms = following.since_ms if following else end_ms
        known_until_ms = following.known_ms if following else math.inf
        same = {message.tick_ms for message in sent if message.number == version.number}
        numbers = {each.number for each in versions[: at + 1]}
        # Other versions with the same number differ only in being paused.
        alike = [each for each in versions if each.number == version.number]
        for tick_ms in same if version is alike[0] else ():
            if tick_ms <= version.since_ms and at and versions[at - 1].period_ms != version.period_ms:
                report(f"tick {tick_ms} is of change {version.number}, which was written only at {version.since_ms}")
            last = alike[-1]
            after = versions[versions.index(last) + 1] if versions.index(last) + 1 < len(versions) else None
            if after is not None and tick_ms > after.known_ms:
                report(f"tick {tick_ms} is of change {version.number}, which was replaced by {after.known_ms}")
        if version.period_ms is None:
            quiet = [t for t in ticks if version.known_ms < t <= until_ms]
            for tick_ms in quiet:
                report(f"tick {tick_ms} came while it was paused or deleted, {version.known_ms} to {until_ms}")
            continue
        first = (version.known_ms // version.period_ms + 1) * version.period_ms
        for tick_ms in range(first, until_ms + 1, version.period_ms):
            verdict.expected += 1
            if tick_ms not in ticks:
                report(f"tick {tick_ms} of change {version.number} is missing ({version.since_ms} to {until_ms})")
        for tick_ms in (t for t in ticks if version.known_ms < t <= min(until_ms, known_until_ms)):
            if tick_ms % version.period_ms:
                report(f"tick {tick_ms} is none of change {version.number}, with a period of {version.period_ms}")
        for message in sent:
            if version.known_ms < message.tick_ms <= until_ms and message.number not in numbers:
                report(f"tick {message.tick_ms} has the body of change {message.number}, not of {version.number}")
