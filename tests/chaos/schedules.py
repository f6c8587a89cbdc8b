"""Chaos for schedules: managers that die, freeze and have wrong clocks, while schedules are changed by authors who die.

Each message says by its body which change it belongs to, and by its headers which tick it is, for
`chaos.schedule_verdict`.
"""

import json
import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

from lisa_common.client.connection import Connection
from lisa_common.errors import LisaError, ServerError
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_common.protocol.call import Call, Flow
from lisa_common.protocol.consuming import server_time
from lisa_common.protocol.registry import Topics, read_registry
from lisa_common.protocol.schedules import get_definition
from lisa_common.protocol.scheduling import Home, find_home
from lisa_manager import Admin
from lisa_manager.admin.schedules import changes
from lisa_manager.settings import ManagerSettings
from support.processes import Process
from support.waiting import idle

__all__ = ["Changes", "Fault", "Options", "Version", "layout_of", "torment"]

Fault = Callable[[random.Random], None]
"""Does something to the server, and returns once it serves again."""

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
    share: float = 0.25
    """Of the turns that are for a fault of the server, those that make one; the others pass."""


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
    """When it was certainly in force: the call had returned, or it was seen."""


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
        began_ms = _patiently(connection, server_time())
        died = may_die and self._dice.random() < 0.33
        try:
            if died:
                _run_partly(connection, flow, self._dice.randrange(2, 8))
                self._changes.abandoned += 1
            else:
                connection.run(flow, patience_s=20)
                self._changes.acknowledged += 1
        except ServerError:
            self._changes.failed += 1
        except LisaError:
            return  # it does not exist, or exists already
        self._note(connection, name, began_ms)
        self._changes.versions[name][-1].known_ms = _patiently(connection, server_time())

    def _flow(self, name: str, kind: str, number: int) -> Flow[Any]:
        place = (Topics(self._prefix), self._topic_of(name), name)
        if kind in {"pause", "resume"}:
            return changes.set_paused(*place, paused=kind == "pause")
        if kind == "delete":
            return changes.delete_schedule(*place)
        fields: dict[str, Any] = {"body": f"{name} {number}", "catchup": "all"}
        known = self._changes.versions[name]
        if kind == "set" or not known or known[-1].number < 0:
            fields |= {"every": self._dice.choice(_PERIODS_S), "paused": False}
        return changes.set_schedule(*place, fields)

    def _note(self, connection: Connection, name: str, began_ms: int) -> None:
        """Reads what is written now, and notes it if it is new."""
        stored = self._read(connection, name)
        known = self._changes.versions[name]
        if stored is None:
            if known and known[-1].number >= 0:
                # It was deleted then or later, up to now.
                known.append(Version(-1, None, began_ms))
            return
        version, _, text = stored.split(b" ", 2)
        schedule = json.loads(text)
        number = int(schedule["body"].split()[1])
        period_ms = None if schedule.get("paused") else schedule["every_ms"]
        if not known or (known[-1].number, known[-1].period_ms) != (number, period_ms):
            known.append(Version(number, period_ms, int(version)))

    def _read(self, connection: Connection, name: str) -> bytes | None:
        """What is stored of a schedule, once it does not move."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            before = self._home_of(connection, name)
            stored = _patiently(connection, get_definition(before.keys, name))
            after = self._home_of(connection, name)
            if before.keys == after.keys and not before.is_moving and not after.is_moving:
                return cast("bytes | None", stored)
            idle(0.05)
        raise AssertionError(f"no manager has moved {name} for 60 s")

    def _home_of(self, connection: Connection, name: str) -> Home:
        return connection.run(find_home(layout_of(connection, self._prefix, self._topic_of(name))), patience_s=20)

    def _topic_of(self, name: str) -> str:
        return self._options.topics[hash_of(name) % len(self._options.topics)]


def hash_of(name: str) -> int:
    """A number that a name has in every process."""
    return sum(name.encode())


def layout_of(connection: Connection, prefix: str, topic: str) -> Layout:
    """The present layout of a topic."""
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


def torment(
    url: str,
    prefix: str,
    options: Options,
    start_manager: Callable[[int], Process],
    managers: int,
    *,
    more: Sequence[Fault] = (),
) -> Changes:
    """Runs managers, authors and faults; then leaves the managers alone for a while. Returns the changes.

    `more` are faults of the server: every fifth turn is for one of them.
    """
    changes = Changes()
    authors = [Author(url, prefix, options, number, changes) for number in range(4)]
    for author in authors:
        author.create()
    cast = _Cast(start_manager, managers)
    until = time.monotonic() + options.seconds
    with ThreadPoolExecutor(len(authors)) as pool:
        works = [pool.submit(author.run, until) for author in authors]
        _make_faults((url, prefix), options, cast, more, until)
    for work in works:
        work.result()
    idle(_SETTLED_S)
    return changes


class _Cast:
    """The managers."""

    def __init__(self, start: Callable[[int], Process], count: int) -> None:
        self._start = start
        self._running = [start(number) for number in range(count)]
        self._frozen: list[tuple[float, Process]] = []
        for process in self._running:
            process.wait_for("manager serves", 90)

    def kill(self, dice: random.Random) -> None:
        at = dice.randrange(len(self._running))
        self._running[at].kill()
        self._running[at] = self._start(at)
        self._frozen = [each for each in self._frozen if each[1].runs]

    def freeze(self, dice: random.Random) -> None:
        process = dice.choice(self._running)
        process.freeze()
        self._frozen.append((time.monotonic() + dice.uniform(0.2, 4), process))

    def thaw(self, now: float) -> None:
        for until, process in [each for each in self._frozen if each[0] < now]:
            process.thaw()
            self._frozen.remove((until, process))


def _make_faults(place: tuple[str, str], options: Options, cast: _Cast, more: Sequence[Fault], until: float) -> None:
    url, prefix = place
    dice = random.Random(options.seed)
    shards = 1
    while time.monotonic() < until:
        idle(dice.uniform(0.2, 0.8))
        cast.thaw(time.monotonic())
        fault = dice.choice(("kill", "freeze", "freeze", "reshard", "server"))
        if fault == "kill":
            cast.kill(dice)
        elif fault == "freeze":
            cast.freeze(dice)
        elif fault == "reshard" and options.reshards and dice.random() < 0.15:
            shards = shards % 4 + 1
            with suppress(LisaError), Admin(url, settings=ManagerSettings.load(redis_url=url, prefix=prefix)) as admin:
                admin.reshard(dice.choice(list(options.topics)), shards)
        elif fault == "server" and more and dice.random() < options.share:
            dice.choice(more)(dice)
    cast.thaw(math.inf)
