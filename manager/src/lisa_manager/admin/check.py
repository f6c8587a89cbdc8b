"""Checks a topic, shard by shard: a snapshot gives suspects, a look at each decides, a repair mends what is safe to."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lisa_common.errors import OF_THE_SERVER, LisaError
from lisa_common.model.keys import KEY_TYPES, NO_GROUP, TOPIC_KEYS, ShardKeys, text_of
from lisa_common.model.sharding import Layout
from lisa_common.protocol.call import Call, Flow, command, script
from lisa_common.protocol.consuming import server_time
from lisa_manager.admin.audit import audit
from lisa_manager.admin.missing import complete_groups, missing_groups
from lisa_manager.admin.problem import Kind, Problem, Step
from lisa_manager.admin.queries import chunks, fields_of
from lisa_manager.admin.snapshot import Look, forget_stranger, look, read_entries, read_snapshot, repair

__all__ = ["Finding", "Report", "check", "check_groups"]

_AT_ONCE = 50
_LAST = "18446744073709551615-18446744073709551615"
_RESET: tuple[Step, ...] = (("reset", "", "", ""),)
"""Says that it can be mended, though not by a repair of a message."""
_MADE: tuple[Step, ...] = (("join", "ready", "", ""),)
"""Stands for the step that makes a group: it is no step of one message."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, and whether it was mended."""

    topic: str
    """Of a topic of several shards, with the shard."""
    problem: Problem
    mended: bool = False


@dataclass(slots=True)
class Report:
    """What a check of one topic found."""

    messages: int = 0
    findings: list[Finding] = field(default_factory=list)
    undecided: int = 0
    """Suspects that moved on so fast that they could not be judged: look again when there is less traffic."""


def check(keys: ShardKeys, *, mend: bool, progress: Callable[[int], object] = lambda _: None) -> Flow[Report]:
    """Audits a topic, and mends if told to. `progress` is called with the number of messages judged.

    What the server does not tell of the topic is a finding, and so no hindrance for others.
    """
    report = Report()
    try:
        if (yield from _check_keys(keys, report, mend=mend)):
            yield from _check_messages(keys, report, progress, mend=mend)
    except OF_THE_SERVER:
        raise
    except LisaError as error:
        report.findings.append(Finding(keys.tag, Problem(Kind.DAMAGED, "", NO_GROUP, str(error))))
    return report


def _check_keys(keys: ShardKeys, report: Report, *, mend: bool) -> Flow[bool]:
    """Looks whether each key is what it should be; says whether the topic can be read."""
    kinds: list[bytes] = yield [command("TYPE", key) for key in keys.all()]
    broken = [
        Problem(Kind.DAMAGED, "", NO_GROUP, f"{name} is a {text_of(kind)}, and must be a {KEY_TYPES[name]}", _RESET)
        for name, kind in zip(KEY_TYPES, kinds, strict=True)
        if kind not in {b"none", KEY_TYPES[name].encode()}
    ]
    if kinds[TOPIC_KEYS.index("ready")] == b"stream" and (yield _last_entry(keys)) == _LAST:
        broken.append(Problem(Kind.DAMAGED, "", NO_GROUP, "its stream has had the last of all entries", _RESET))
    mended = bool(broken) and mend and (yield script("reset", keys, decode=bool))
    report.findings += [Finding(keys.tag, problem, mended) for problem in broken]
    return mended or not broken


def _last_entry(keys: ShardKeys) -> Call[str]:
    def decode(reply: list[Any]) -> str:
        return text_of(fields_of(reply)["last-generated-id"])

    return command("XINFO", "STREAM", keys.of("ready"), decode=decode)


def _check_messages(keys: ShardKeys, report: Report, progress: Callable[[int], object], *, mend: bool) -> Flow[None]:
    snapshot = yield from read_snapshot(keys)
    now: int = yield server_time()
    report.messages = sum(evidence.head is not None for evidence in snapshot.evidence.values())
    for name, member in snapshot.strangers:
        gone = mend and (yield forget_stranger(keys, name, member))
        problem = Problem(Kind.FOREIGN, text_of(member), NO_GROUP, f"in {name}, and names no copy", _RESET)
        report.findings.append(Finding(keys.tag, problem, gone))
    suspects = [p for p in snapshot.evidence.values() if audit(p, snapshot.groups, now)]
    progress(len(snapshot.evidence) - len(suspects))
    for some in chunks(suspects, _AT_ONCE):
        # Each look goes through all entries that came since: on a busy topic they would soon be thousands.
        yield from read_entries(keys, snapshot)
        looks: list[Look] = yield [look(keys, suspect, snapshot.last) for suspect in some]
        for looked in looks:
            yield from _judge(keys, looked, now, report, mend=mend)
        progress(len(some))


def _judge(keys: ShardKeys, looked: Look, now: int, report: Report, *, mend: bool) -> Flow[None]:
    problems = audit(looked.evidence, looked.groups, now)
    if problems and not looked.whole:
        report.undecided += 1
        return
    steps = [step for problem in problems for step in problem.steps]
    mended = False
    if mend and steps:
        mended = yield repair(keys, looked, list(dict.fromkeys(steps)))
    report.findings += [Finding(keys.tag, problem, mended and bool(problem.steps)) for problem in problems]


def check_groups(layout: Layout, *, mend: bool) -> Flow[list[Finding]]:
    """Looks for groups that some shards of a topic lack, and makes them there if told to.

    A group that is just being made or dropped is in some shards and not in others: only what is still missing at a
    second look is reported.
    """
    try:
        suspects = yield from missing_groups(layout)
        missing = (yield from missing_groups(layout)) if suspects else {}
    except OF_THE_SERVER:
        raise
    except LisaError:
        # A shard that is damaged, which a check of the shard reports.
        return []
    found = [(keys, name) for name, shards in missing.items() for keys in shards if keys in suspects.get(name, ())]
    if mend and found:
        yield from complete_groups(layout)
    return [
        Finding(keys.tag, Problem(Kind.MISSING_GROUP, "", name, "other shards of the topic have it", _MADE), mend)
        for keys, name in found
    ]
