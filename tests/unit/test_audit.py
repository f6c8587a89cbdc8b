"""The audit judges one message by all that is known of it: planted problems are found, what is legitimate is not."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from lisa_common.model.delivery import Entry
from lisa_common.model.failure import Failure
from lisa_common.model.record import Head
from lisa_manager.admin.audit.evidence import Copy, Evidence, GroupState
from lisa_manager.admin.audit.problem import Kind
from lisa_manager.admin.audit.rules import audit

DUE, NOW = 1_000, 5_000
NONE: dict[str, GroupState] = {}


def _entry(entry: str = "2-0", *, group: str | None = None, due_ms: int = DUE) -> Entry:
    return Entry(entry, "m", due_ms, 1, group)


def _failure(next_entry: str | None = None, due_ms: int = DUE) -> Failure:
    return Failure(1, "2-0", next_entry, due_ms, 3_000, "nack", "")


def _groups(*, pending: tuple[str, ...] = (), last: str = "2-0", names: str = "a") -> dict[str, GroupState]:
    return {name: GroupState(last, frozenset(pending)) for name in names.split()}


def _evidence(**fields: Any) -> Evidence:
    return replace(Evidence("m", head=Head(DUE)), **fields)


def _found(evidence: Evidence, groups: dict[str, GroupState] = NONE) -> list[tuple[Kind, str, bool]]:
    return [(problem.kind, problem.group, bool(problem.steps)) for problem in audit(evidence, groups, NOW)]


@pytest.mark.parametrize(
    ("evidence", "groups"),
    [
        pytest.param(_evidence(waiting=DUE), _groups(), id="waiting"),
        pytest.param(_evidence(waiting=DUE - 9 / 256), _groups(), id="waiting with priority"),
        pytest.param(_evidence(entries=[_entry()]), NONE, id="ready, no groups"),
        pytest.param(_evidence(entries=[_entry()]), _groups(last="1-0"), id="ready"),
        pytest.param(_evidence(entries=[_entry()]), _groups(pending=("2-0",)), id="delivered"),
        pytest.param(_evidence(copies={"a": Copy(retry=9.0, failed=True, failure=_failure())}), _groups(), id="retry"),
        pytest.param(_evidence(copies={"a": Copy(garbage=9.0)}), _groups(), id="garbage"),
        pytest.param(_evidence(copies={"": Copy(garbage=9.0, failed=True)}), _groups(), id="expired while waiting"),
        pytest.param(
            _evidence(
                entries=[_entry(), _entry("3-0", group="a")], copies={"a": Copy(failed=True, failure=_failure("3-0"))}
            ),
            _groups(last="2-0", names="a b"),
            id="retry promoted, in one of two groups",
        ),
        pytest.param(
            _evidence(owed=("a", "b"), entries=[_entry()], copies={"b": Copy(retry=9.0)}),
            {"a": GroupState("1-0"), "b": GroupState("2-0"), "c": GroupState("9-0")},
            id="owed by two groups of three",
        ),
        pytest.param(
            _evidence(entries=[_entry()]),
            {"a": GroupState("1-0"), "later": GroupState("2-0")},
            id="sent before a group",
        ),
        pytest.param(
            Evidence("m", head=Head(DUE, cancelled=True), entries=[_entry()]),
            _groups(pending=("2-0",)),
            id="cancelled, delivered",
        ),
        pytest.param(
            Evidence("m", head=Head(None, cancelled=True), entries=[_entry()]),
            _groups(last="1-0"),
            id="cancelled by an old release",
        ),
        pytest.param(Evidence("m", entries=[_entry()], finished=NOW + 1.0), _groups(), id="acked, not trimmed"),
        pytest.param(
            _evidence(waiting=DUE, finished=NOW - 1.0, entries=[_entry(due_ms=7)]),
            _groups(),
            id="sent again, not swept",
        ),
        pytest.param(
            _evidence(owed=("b",), entries=[_entry()], finished=NOW + 1.0),
            {"a": GroupState("2-0"), "b": GroupState("1-0")},
            id="acked by one of two groups",
        ),
        pytest.param(_evidence(head=Head(DUE, 9_000), waiting=DUE, expiring=9_000.0), _groups(), id="with a ttl"),
        pytest.param(
            _evidence(head=Head(DUE, 9_000), copies={"a": Copy(garbage=9.0)}), _groups(), id="dead with a ttl"
        ),
        pytest.param(_evidence(waiting=DUE, expiring=9.0), _groups(), id="replayed, which takes the ttl away"),
    ],
)
def test_what_is_legitimate_is_no_problem(evidence: Evidence, groups: dict[str, GroupState]) -> None:
    """Every state that scripts leave behind passes (promise 9)."""
    assert _found(evidence, groups) == []


@pytest.mark.parametrize(
    ("evidence", "groups", "problem"),
    [
        pytest.param(_evidence(), NONE, (Kind.LOST, "", True), id="no place"),
        pytest.param(_evidence(entries=[_entry()]), _groups(), (Kind.LOST, "a", True), id="acked by hand"),
        pytest.param(
            _evidence(head=Head(NOW + 1), owed=("a", "b")), _groups(names="a b"), (Kind.LOST, "", True), id="due later"
        ),
        pytest.param(
            _evidence(owed=("a", "b"), entries=[_entry()]),
            {"a": GroupState("1-0"), "b": GroupState("2-0")},
            (Kind.LOST, "b", True),
            id="lost in one of two groups",
        ),
        pytest.param(
            Evidence("m", head=Head(DUE, cancelled=True)),
            _groups(),
            (Kind.LOST, "", True),
            id="cancelled for nothing",
        ),
        pytest.param(
            Evidence("m", head=Head(DUE, cancelled=True), entries=[_entry(due_ms=7)]),
            _groups(last="1-0"),
            (Kind.LOST, "", True),
            id="cancelled, and an entry of an earlier message",
        ),
        pytest.param(Evidence("m", waiting=DUE), _groups(), (Kind.STRAY, "", True), id="waits without a record"),
        pytest.param(
            Evidence("m", copies={"a": Copy(retry=9.0, failed=True)}),
            _groups(),
            (Kind.STRAY, "a", True),
            id="retry of none",
        ),
        pytest.param(
            Evidence("m", copies={"": Copy(garbage=9.0)}), _groups(), (Kind.STRAY, "", True), id="garbage of none"
        ),
        pytest.param(
            Evidence("m", entries=[_entry()]),
            _groups(pending=("2-0",)),
            (Kind.STRAY, "", True),
            id="delivered, no record",
        ),
        pytest.param(Evidence("m", entries=[_entry()]), NONE, (Kind.STRAY, "", True), id="ready, no record, no groups"),
        pytest.param(
            _evidence(owed=("a",), entries=[_entry()], copies={"b": Copy(retry=9.0)}),
            {"a": GroupState("1-0"), "b": GroupState("2-0")},
            (Kind.STRAY, "b", True),
            id="retry in a group that does not owe it",
        ),
        pytest.param(
            _evidence(waiting=DUE, entries=[_entry()]),
            _groups(last="1-0"),
            (Kind.TWICE, "", False),
            id="waits and ready",
        ),
        pytest.param(
            _evidence(copies={"a": Copy(retry=9.0, garbage=9.0)}),
            _groups(),
            (Kind.TWICE, "a", False),
            id="retry, garbage",
        ),
        pytest.param(
            _evidence(entries=[_entry(), _entry("3-0", group="a")]),
            _groups(last="1-0"),
            (Kind.TWICE, "a", False),
            id="ready twice",
        ),
        pytest.param(
            _evidence(entries=[_entry()], copies={"": Copy(garbage=9.0)}),
            _groups(last="1-0"),
            (Kind.TWICE, "", False),
            id="dead for all, and ready",
        ),
        pytest.param(
            _evidence(waiting=DUE, owed=("a", "b")), _groups(), (Kind.OWED, "", True), id="owed while it waits"
        ),
        pytest.param(Evidence("m", owed=("a",)), _groups(), (Kind.OWED, "", True), id="owed without a record"),
        pytest.param(
            _evidence(entries=[_entry()]), _groups(last="1-0", names="a b"), (Kind.OWED, "", True), id="owed by nobody"
        ),
        pytest.param(
            _evidence(owed=("a", "gone"), entries=[_entry()]),
            _groups(last="1-0"),
            (Kind.DEAD_GROUP, "gone", True),
            id="owed by a dropped group",
        ),
        pytest.param(
            _evidence(owed=("gone",)), _groups(), (Kind.DEAD_GROUP, "gone", False), id="owed only by one that is gone"
        ),
        pytest.param(
            _evidence(copies={"gone": Copy(garbage=9.0)}),
            _groups(),
            (Kind.DEAD_GROUP, "gone", False),
            id="dead in a dead",
        ),
        pytest.param(
            Evidence("m", copies={"a": Copy(failed=True)}), _groups(), (Kind.DANGLING, "a", True), id="failure of none"
        ),
        pytest.param(
            _evidence(waiting=DUE, copies={"a": Copy(failed=True, failure=_failure())}),
            _groups(),
            (Kind.DANGLING, "a", True),
            id="failure of what waits",
        ),
        pytest.param(
            _evidence(entries=[_entry()], copies={"a": Copy(failed=True, failure=_failure(due_ms=7))}),
            _groups(last="1-0"),
            (Kind.DANGLING, "a", True),
            id="failure of an earlier message",
        ),
        pytest.param(Evidence("m", expiring=9.0), _groups(), (Kind.DANGLING, "", True), id="expiry of none"),
        pytest.param(
            _evidence(waiting=DUE, finished=NOW + 1.0),
            _groups(),
            (Kind.DANGLING, "", True),
            id="tombstone of the living",
        ),
        pytest.param(
            Evidence("m~", finished=NOW + 1.0), _groups(), (Kind.DANGLING, "", True), id="tombstone of a generated id"
        ),
        pytest.param(
            _evidence(head=Head(DUE, 9_000), waiting=DUE), _groups(), (Kind.UNWATCHED, "", True), id="will not expire"
        ),
        pytest.param(_evidence(waiting=DUE + 1), _groups(), (Kind.WRONG_TIME, "", True), id="would be late"),
        pytest.param(_evidence(waiting=DUE - 1), _groups(), (Kind.WRONG_TIME, "", True), id="would be early"),
        pytest.param(_evidence(waiting=inf), _groups(), (Kind.WRONG_TIME, "", True), id="would never be ready"),
        pytest.param(
            _evidence(copies={"a": Copy(retry=inf)}),
            _groups(),
            (Kind.WRONG_TIME, "a", True),
            id="would never be retried",
        ),
        pytest.param(
            _evidence(copies={"a": Copy(garbage=1e300)}), _groups(), (Kind.WRONG_TIME, "a", True), id="would never age"
        ),
        pytest.param(
            _evidence(head=Head(DUE, 9_000), waiting=DUE, expiring=inf),
            _groups(),
            (Kind.UNWATCHED, "", True),
            id="would never expire",
        ),
        pytest.param(Evidence("m", finished=inf), _groups(), (Kind.DANGLING, "", True), id="would never be forgotten"),
        pytest.param(Evidence("", waiting=1.0), _groups(), (Kind.FOREIGN, "", True), id="without an id"),
        pytest.param(Evidence("\udcff", waiting=1.0), _groups(), (Kind.FOREIGN, "", True), id="no UTF-8"),
        pytest.param(
            _evidence(head=Head(None, readable=False), waiting=inf),
            _groups(),
            (Kind.UNREADABLE, "", True),
            id="unreadable, would never be read",
        ),
        pytest.param(
            _evidence(head=Head(None, readable=False), entries=[_entry()]),
            _groups(last="1-0"),
            (Kind.UNREADABLE, "", False),
            id="unreadable, and about to be read",
        ),
        pytest.param(
            _evidence(head=Head(None, readable=False)), _groups(), (Kind.UNREADABLE, "", True), id="unreadable"
        ),
    ],
)
def test_what_is_wrong_is_found(
    evidence: Evidence, groups: dict[str, GroupState], problem: tuple[Kind, str, bool]
) -> None:
    """Each planted problem is found once, with its group and whether it can be mended; nothing else is."""
    assert _found(evidence, groups) == [problem]


def test_several_problems_are_all_found() -> None:
    """One does not hide another."""
    evidence = _evidence(head=Head(DUE, 9_000), waiting=DUE + 1, owed=("a",), finished=NOW + 1.0)
    assert {kind for kind, _, _ in _found(evidence, _groups())} == {
        Kind.WRONG_TIME, Kind.OWED, Kind.UNWATCHED, Kind.DANGLING,
    }  # fmt: skip


def test_what_is_lost_before_its_time_waits_again() -> None:
    """Unless it was delivered already, before the clock was set back: then its attempts are known."""
    lost = _evidence(head=Head(NOW + 1))
    (waits,) = audit(lost, _groups(), NOW)
    assert [verb for verb, *_ in waits.steps] == ["HDEL", "wait"]
    (due,) = audit(lost, _groups(), NOW + 1)
    assert [verb for verb, *_ in due.steps] == ["ready"]
    delivered = replace(lost, copies={"a": Copy(failed=True, failure=_failure(due_ms=NOW + 1))})
    (again,) = audit(delivered, _groups(), NOW)
    assert [verb for verb, *_ in again.steps] == ["ready"]


def test_entries_are_compared_as_numbers() -> None:
    """9-0 comes before 10-0, and 2-9 before 2-10."""
    assert _found(_evidence(entries=[_entry("10-0")]), _groups(last="9-0")) == []
    assert _found(_evidence(entries=[_entry("2-10")]), _groups(last="2-9")) == []
