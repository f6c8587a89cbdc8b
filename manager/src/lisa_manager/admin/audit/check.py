"""Checks topics, shard by shard: a snapshot finds suspects, a look decides on each, and a safe repair is optional."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from itertools import chain, count
from typing import Any, ParamSpec

from lisa_common.errors import OF_THE_SERVER, InvalidInput, LisaError
from lisa_common.model.keys import KEY_TYPES, NO_GROUP, TOPIC_KEYS, ShardKeys, text_of
from lisa_common.model.sharding import Layout
from lisa_common.protocol import groups, managing
from lisa_common.protocol.call import Flow, command, script
from lisa_common.protocol.consuming import server_time
from lisa_common.protocol.side_by_side import run_each
from lisa_common.validation import check_bool, check_callable
from lisa_manager.admin.audit.problem import Kind, Problem, Step
from lisa_manager.admin.audit.rules import audit
from lisa_manager.admin.audit.snapshot import Look, forget_stranger, look, read_entries, read_snapshot, repair
from lisa_manager.queries import (
    GroupInfo,
    chunks,
    first_error,
    groups as groups_of,
    list_layouts,
    require_topic,
    stream_fields,
)
from lisa_manager.resharding import closed_shards, complete_reshard
from lisa_manager.topic_limits import apply_limits, wrong_shards

__all__ = ["CheckReport", "Finding", "Report", "check", "check_groups", "check_limits", "check_topics"]

P = ParamSpec("P")

_AT_ONCE = 50
_SIDE_BY_SIDE = 25
"""Topics that are checked at once: what is known of all messages of a shard of each is kept meanwhile."""
_LAST = b"18446744073709551615-18446744073709551615"
_OTHERWISE: tuple[Step, ...] = (("otherwise", "", "", ""),)
"""Marks a problem as repairable, though not by steps on a message."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, and whether it was repaired."""

    topic: str
    """The topic; where it has several shards, topic/shard."""
    problem: Problem
    mended: bool = False


@dataclass(slots=True)
class Report:
    """The result of a check of one shard, as it grows."""

    messages: int = 0
    findings: list[Finding] = field(default_factory=list)
    undecided: int = 0
    """Suspects that changed too fast to be judged. Check again when there is less traffic."""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of a check."""

    topics: int
    messages: int
    findings: tuple[Finding, ...]
    undecided: int
    """Suspects that changed too fast to be judged. Check again when there is less traffic."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong any more, and every message was judged."""
        return not self.undecided and all(finding.mended for finding in self.findings)


def check_topics(
    prefix: str, topic: str | None, *, mend: bool, on_progress: Callable[[int, int], object] | None = None
) -> Flow[CheckReport]:
    """Audits one topic or all; `mend` also repairs. `on_progress` gets the shards done, and all shards.

    A topic that cannot be read is a finding, and does not keep the others from being checked.
    """
    check_bool("repair", mend)
    check_callable("on_progress", on_progress)
    layouts = (yield from list_layouts(prefix)) if topic is None else [(yield from require_topic(prefix, topic))]
    done, total = count(1), sum(len(layout.served) for layout in layouts)

    def checked(layout: Layout) -> Flow[list[Report]]:
        of_topic = Report()
        for check_shards in (check_groups, check_limits, _check_open):
            of_topic.findings += yield from check_shards(layout, mend=mend)
        reports = [of_topic]
        for keys in layout.served:
            reports.append((yield from check(keys, mend=mend)))
            if on_progress is not None:
                on_progress(next(done), total)
        return reports

    reports: list[Report] = []
    # The first part that meets a server that is away is the last one.
    for part in chunks(layouts, _SIDE_BY_SIDE):
        results: list[Any] = yield from run_each([checked(layout) for layout in part])
        if error := first_error(results):
            raise error
        reports += chain.from_iterable(results)
    findings = tuple(finding for report in reports for finding in report.findings)
    messages, undecided = sum(report.messages for report in reports), sum(report.undecided for report in reports)
    return CheckReport(len(layouts), messages, findings, undecided)


def check(keys: ShardKeys, *, mend: bool) -> Flow[Report]:
    """Audits a shard; `mend` also repairs it. A shard that cannot be read is a finding."""
    report = Report()
    try:
        if (yield from _check_keys(keys, report, mend=mend)):
            yield from _check_messages(keys, report, mend=mend)
            report.findings += yield from _check_slots(keys, mend=mend)
    except OF_THE_SERVER:
        raise
    except LisaError as error:
        report.findings.append(Finding(keys.tag, Problem(Kind.DAMAGED, "", NO_GROUP, str(error))))
    return report


def _check_slots(keys: ShardKeys, *, mend: bool) -> Flow[list[Finding]]:
    cursor, total = b"", 0
    while True:
        page: tuple[bytes, int] = yield managing.tidy_slots(keys, cursor, mend=mend)
        cursor, total = page[0], total + page[1]
        if not cursor:
            break
    detail = f"{total} slots of keys are held, or free, while they should not be"
    return [Finding(keys.tag, Problem(Kind.SLOTS, "", NO_GROUP, detail, _OTHERWISE), mend)] if total else []


def _check_keys(keys: ShardKeys, report: Report, *, mend: bool) -> Flow[bool]:
    """Checks the type of each key. Returns whether the shard can be read."""
    broken = left = yield from _broken_keys(keys)
    if broken and mend:
        yield script("reset", keys)
        # The reply does not tell: the first one may have been lost, and some keys are not removed.
        left = yield from _broken_keys(keys)
    report.findings += [Finding(keys.tag, problem, problem not in left) for problem in broken]
    return not left


def _broken_keys(keys: ShardKeys) -> Flow[list[Problem]]:
    kinds: list[bytes] = yield [command("TYPE", key) for key in keys.all()]
    broken = [
        Problem(Kind.DAMAGED, "", NO_GROUP, f"{name} must be a {KEY_TYPES[name]}; got a {text_of(kind)}", _OTHERWISE)
        for name, kind in zip(KEY_TYPES, kinds, strict=True)
        if kind not in {b"none", KEY_TYPES[name].encode()}
    ]
    if kinds[TOPIC_KEYS.index("ready")] == b"stream" and (yield stream_fields(keys)).get("last-generated-id") == _LAST:
        broken.append(Problem(Kind.DAMAGED, "", NO_GROUP, "its stream has used up its entry ids", _OTHERWISE))
    return broken


def _check_messages(keys: ShardKeys, report: Report, *, mend: bool) -> Flow[None]:
    snapshot = yield from read_snapshot(keys)
    now: int = yield server_time()
    report.messages = sum(evidence.head is not None for evidence in snapshot.evidence.values())
    for name, member in snapshot.strangers:
        gone = mend and (yield forget_stranger(keys, name, member))
        problem = Problem(Kind.FOREIGN, text_of(member), NO_GROUP, f"in {name}, but names no copy", _OTHERWISE)
        report.findings.append(Finding(keys.tag, problem, gone))
    suspects = [p for p in snapshot.evidence.values() if audit(p, snapshot.groups, now)]
    for batch in chunks(suspects, _AT_ONCE):
        # Each look reads all entries since the snapshot: on a busy topic they would soon be thousands.
        yield from read_entries(keys, snapshot)
        looks: list[Look] = yield [look(keys, suspect, snapshot.last) for suspect in batch]
        for looked in looks:
            yield from _judge(keys, looked, now, report, mend=mend)


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


def _unless_damaged(check_shards: Callable[P, Flow[list[Finding]]]) -> Callable[P, Flow[list[Finding]]]:
    """Finds nothing where a shard is damaged, as the check of the shard says so, or the topic was dropped meanwhile."""

    @wraps(check_shards)
    def run(*args: P.args, **options: P.kwargs) -> Flow[list[Finding]]:
        try:
            return (yield from check_shards(*args, **options))
        except OF_THE_SERVER:
            raise
        except LisaError:
            return []

    return run


@_unless_damaged
def check_limits(layout: Layout, *, mend: bool) -> Flow[list[Finding]]:
    """Finds shards whose limits differ from the policy, and sets them if told to.

    A change of the policy is not everywhere at once. So this reports limits only if they differ at a second look.
    """
    suspects = yield from wrong_shards(layout)
    if suspects:
        layout = yield from require_topic(layout.prefix, layout.topic)
        suspects = [keys for keys in (yield from wrong_shards(layout)) if keys in suspects]
    if mend and suspects:
        yield from apply_limits(layout.prefix, layout.topic)
    detail = "what may become ready is not limited as the policy says"
    return [Finding(keys.tag, Problem(Kind.LIMITS, "", NO_GROUP, detail, _OTHERWISE), mend) for keys in suspects]


@_unless_damaged
def _check_open(layout: Layout, *, mend: bool) -> Flow[list[Finding]]:
    """Finds current shards that are closed to new messages, and completes the reshard if told to.

    A reshard closes shards once the registry names others. So these shards are current after they were seen closed.
    """
    suspects = yield from closed_shards(layout)
    if not suspects:
        return []
    layout = yield from require_topic(layout.prefix, layout.topic)
    suspects = [keys for keys in suspects if keys in layout.shards]
    try:
        mended = mend and bool(suspects) and (yield from complete_reshard(layout))
    except InvalidInput:
        # The limits of the topic allow no such layout.
        mended = False
    detail = "takes no new messages, and the registry names no shards that do"
    steps = _OTHERWISE if mended or not mend else ()
    return [Finding(keys.tag, Problem(Kind.CLOSED, "", NO_GROUP, detail, steps), mended) for keys in suspects]


@_unless_damaged
def check_groups(layout: Layout, *, mend: bool) -> Flow[list[Finding]]:
    """Finds groups that some shards of a topic lack; `mend` makes them there.

    While a group is being made or dropped, it exists in some shards only. So this reports a group only if it is still
    missing at a second look.
    """
    suspects = {*(yield from _missing_groups(layout))}
    missing = [each for each in (yield from _missing_groups(layout)) if each in suspects] if suspects else []
    try:
        for name in dict.fromkeys(name for name, _ in missing if mend):
            # There it reads what becomes ready from now on, as what is ready may belong to other groups only. A shard
            # without groups gives its first one that, too.
            yield from groups.join([layout], name)
    except OF_THE_SERVER:
        raise
    except LisaError:
        # There are too many, or a shard of a reshard that was broken off is damaged.
        mend = False
    detail = "other shards of the topic have it"
    return [
        Finding(keys.tag, Problem(Kind.MISSING_GROUP, "", name, detail, _OTHERWISE), mend) for name, keys in missing
    ]


def _missing_groups(layout: Layout) -> Flow[list[tuple[str, ShardKeys]]]:
    """Groups by name, each with the shards that lack it while others have it."""
    known: list[list[GroupInfo]] = yield [groups_of(keys) for keys in layout.served]
    having = {keys: {group.name for group in of_shard} for keys, of_shard in zip(layout.served, known, strict=True)}
    names = sorted(set().union(*having.values()))
    return [(name, keys) for name in names for keys in having if name not in having[keys]]
