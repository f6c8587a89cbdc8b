"""One run: load, faults, heal, drain, verdict."""

import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import redis

from chaos.answers import OWN_LIMIT
from chaos.arena import Arena, Player
from chaos.checker import check
from chaos.draining import keys_left, unfinished, write_left, write_letters
from chaos.faults.server import HOUR_S
from chaos.figures import Figures, take
from chaos.history import Drained, Fault, Problem, now, read_history
from chaos.nemesis import KINDS, Nemesis
from chaos.observer import Observer
from chaos.topics import FOREIGN, GROUPS, LOADED, POLICIES, PREFIX, RESHARDED, policies_with, topics_of
from chaos.verdict import Verdict
from lisa_common.client.connection import Connection
from lisa_manager.admin.audit.check import check_groups
from support.waiting import wait_until

__all__ = ["Options", "Result", "run"]

_WARM_S = 5.0
_DRAIN_S = 240.0
_STOP_S = 60.0
_STRUCK_S = 90.0


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run. The same seed makes the same faults in the same order, and the same messages."""

    seed: str
    seconds: float
    rate: float = 220
    """Messages a second."""
    kinds: tuple[str, ...] = tuple(KINDS)
    flood: int = 0
    """Messages of a topic that is not read, all due at one millisecond; 0: none."""
    calm: float = 1.0
    """How many times longer the pauses between faults are."""
    window_ms: int = 86_400_000
    """The dedup window; longer than any jump of the clock."""
    deadly: bool = True
    """Whether handlers kill their processes."""
    keep: Path | None = None
    """The directory that keeps history and logs when a promise was broken."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run."""

    verdict: Verdict
    faults: Counter[str]
    before: Figures
    after: Figures
    drained_s: float
    lines_logged: Counter[str]

    def lines(self) -> Iterator[str]:
        """The summary for people. The verdict comes last, at the end of a long log."""
        yield from self.before.lines_beside(self.after)
        yield "lines logged, by all programs of a kind"
        for name, count in sorted(self.lines_logged.items()):
            yield f"  {name:50} {count:>12,}"
        yield f"faults, {sum(self.faults.values()):,} in all"
        for name, count in sorted(self.faults.items()):
            yield f"  {name:50} {count:>12,}"
        yield f"drained {self.drained_s:.1f} s after the last fault"
        yield from self.verdict.lines()


def run(options: Options, say: Callable[[str], object] = lambda _: None) -> Result:
    """Makes a run; the verdict is part of the result."""
    directory = Path(tempfile.mkdtemp(prefix="lisa-chaos-"))
    arena = Arena(
        *(directory,),
        seed=options.seed,
        rate=options.rate,
        window_ms=options.window_ms,
        deadly=options.deadly,
    )
    try:
        result = _run(arena, options, say)
        if options.keep and result.verdict.violations:
            shutil.rmtree(options.keep, ignore_errors=True)
            shutil.copytree(directory, options.keep, ignore=shutil.ignore_patterns("appendonlydir"))
            say(f"history and logs: {options.keep}")
        return result
    finally:
        arena.close()
        shutil.rmtree(directory)


def _run(arena: Arena, options: Options, say: Callable[[str], object]) -> Result:
    arena.start()
    observer = Observer(arena).start()
    nemesis = Nemesis(arena, options.seed, list(options.kinds), flood=options.flood, calm=options.calm)
    try:
        _warm_up(arena)
        before = take(arena)
        say("load and faults")
        nemesis.attack(options.seconds)
        say("heal and drain")
        nemesis.heal()
        healed = now()
        sending = take(arena)
        _stop(arena, "producer")
        # Messages sent while the clock was ahead wait for that hour.
        arena.set_clock(HOUR_S + 60)
        _drain(arena, nemesis)
        drained_s = now() - healed
        arena.recorder.write(Fault(now(), healed, "the clock is set forward, to drain"))
        after = sending.then(take(arena))
        _audit(arena, observer)
        for topic in POLICIES:
            write_left(arena, topic)
        write_letters(arena)
        _strike_out(arena)
        _look_for_keys(arena)
        _stop(arena, "worker", "consumer")
        _stop(arena, "gateway", "manager")
        _read_logs(arena)
    finally:
        observer.close()
    arena.recorder.write(Drained(now(), drained_s, {"9": observer.audited, "11": 1, "15": observer.counted}))
    say("judge")
    verdict = check(read_history(arena.history), topics_of(policies_with(options.window_ms)), GROUPS)
    return Result(verdict, nemesis.counts, before, after, drained_s, _lines_logged(arena))


def _warm_up(arena: Arena) -> None:
    """Waits until every program has begun its work, and all groups have had what was sent."""
    for player in arena.players:
        wait_until(partial(_is_ready, player), 150, what=player.name)
    for topic in LOADED:
        for keys in arena.layout(topic).shards:
            wait_until(partial(_read_by_all, arena, keys.of("ready")), 150)
    end = now() + _WARM_S
    wait_until(lambda: now() >= end, _WARM_S + 10)


def _read_by_all(arena: Arena, ready: str) -> bool:
    return all(group["last-delivered-id"] != b"0-0" for group in arena.admin.xinfo_groups(ready))


def _is_ready(player: Player) -> bool:
    return player.ready


def _has_ended(player: Player) -> bool:
    return not player.process.runs


def _stop(arena: Arena, *roles: str) -> None:
    """Ends programs by SIGTERM."""
    players = arena.of_role(*roles)
    for player in players:
        player.doomed = True
        player.process.send(signal.SIGTERM)
    for player in players:
        try:
            wait_until(partial(_has_ended, player), _STOP_S)
        except AssertionError:
            # The end of its log shows where each of its threads is.
            player.process.send(signal.SIGABRT)
            wait_until(partial(_has_ended, player), _STOP_S, what=f"the end of {player.name}")
        if not player.ended_well():
            arena.recorder.write(Problem(now(), 14, player.ending()))


def _drain(arena: Arena, nemesis: Nemesis) -> None:
    """Waits until only the remains that the docs allow are left. Handlers may still kill their processes."""

    def drained() -> bool:
        nemesis.revive()
        return not _left(arena)

    try:
        wait_until(drained, _DRAIN_S)
    except AssertionError:
        arena.recorder.write(Problem(now(), 14, f"not drained after {_DRAIN_S:g} s: {_left(arena)}"))


def _left(arena: Arena) -> dict[str, object]:
    """The remains that keep the run from being drained."""
    left: dict[str, object] = {}
    try:
        for topic in POLICIES:
            for keys in arena.layout(topic).served:
                left |= {f"{keys.tag} {name}": size for name, size in unfinished(arena.admin, keys) if size}
    except redis.RedisError as error:
        left["server"] = str(error)
    return left


def _audit(arena: Arena, observer: Observer) -> None:
    """Promise 9, in the end: no message is in two places, and no place lacks its message."""
    with Connection(arena.server.url, name="audit", timeout_s=5) as connection:
        for topic in POLICIES:
            observer.audit(connection, topic)
            for finding in connection.run(check_groups(arena.layout(topic), mend=False)):
                arena.recorder.write(Problem(now(), 2, f"{finding.topic} lacks a group: {finding.problem.group}"))


def _strike_out(arena: Arena) -> None:
    """Waits until former shards are removed: their garbage is purged, and dedup windows have passed."""
    arena.operate("garbage", "purge", RESHARDED, "--all", "--yes").wait(_STOP_S)
    before = arena.admin.time()[0]
    arena.set_clock(2 * HOUR_S)
    wait_until(lambda: arena.admin.time()[0] >= before + HOUR_S / 2, _STOP_S, what="the server's clock")
    try:
        wait_until(lambda: not arena.layout(RESHARDED).former, _STRUCK_S)
    except AssertionError:
        kept = sorted(key.decode() for key in arena.admin.scan_iter(f"{PREFIX}:{{{RESHARDED}*"))
        text = f"drained shards of {RESHARDED} are not removed: {arena.layout(RESHARDED).policy.dump()}, {kept}"
        arena.recorder.write(Problem(now(), 11, text))


def _look_for_keys(arena: Arena) -> None:
    """Promise 11: no key is left over. Only the harness deletes the data of the neighbour."""
    found = {key for key in keys_left(arena, POLICIES) if not key.startswith(f"{PREFIX}:{{{FOREIGN}}}")}
    if found:
        arena.recorder.write(Problem(now(), 11, f"keys are left: {sorted(found)}"))


def _read_logs(arena: Arena) -> None:
    """Promise 14: no program meets an unexpected error. Only handlers fail, by their plans."""
    for path in sorted(arena.directory.glob("*.log")):
        text = path.read_text("utf-8", "replace")
        for what in (OWN_LIMIT, *(["Traceback"] if path.name.startswith(("manager", "gateway")) else [])):
            if what in text:
                at = text.index(what)
                arena.recorder.write(Problem(now(), 14, f"{path.stem} logs {text[max(0, at - 100) : at + 700]!r}"))


def _lines_logged(arena: Arena) -> Counter[str]:
    lines: Counter[str] = Counter()
    for path in arena.directory.glob("*.log"):
        lines[path.stem.rpartition("-")[0].partition("-")[0]] += path.read_bytes().count(b"\n")
    return lines
