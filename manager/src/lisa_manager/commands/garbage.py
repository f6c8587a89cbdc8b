"""`lisa-manager garbage list | summary | replay | purge`."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any

import typer

from lisa_common.cli.columns import Column
from lisa_common.cli.options import JsonFlag, YesFlag, argument, option, with_options
from lisa_common.cli.output import print_json, print_json_list, print_table, say, shown_moment
from lisa_common.cli.parse import read_duration
from lisa_common.cli.program import confirm
from lisa_common.errors import InvalidInput, Verbatim
from lisa_common.escaping import shown
from lisa_common.validation import check_id
from lisa_manager import REASONS, Admin, BulkResult, DeadLetter, GarbageCause, GarbageFilter, ManagerSettings
from lisa_manager.commands.bodies import record_document
from lisa_manager.commands.shared import (
    CopiesOfGroup,
    TopicName,
    admin_command,
    exit_by,
    opened,
    print_trace,
    require_group,
    stoppable,
)

__all__ = ["list_", "purge", "replay", "summary"]

MessageIds = Annotated[list[str] | None, argument("These messages.", "[ID]...")]
AllFlag = Annotated[bool, typer.Option("--all", help="All dead letters that the other options select.")]
TraceFlag = Annotated[bool, typer.Option("--trace", help="Show the stored tracebacks, too.")]

_BODIES = 20
"""Most bodies in memory at once."""

_COLUMNS = (
    *map(Column, ("id", "group", "reason")),
    Column("attempts", number=True),
    *(Column(title, whole=True) for title in ("died", "due")),
    *map(Column, ("release", "error")),
)


_CAUSES = (
    Column("count", number=True),
    *map(Column, ("reason", "group", "release")),
    Column("error", least=24),
    *(Column(title, whole=True) for title in ("first", "last")),
    Column("last id"),
)


_FILTER = {
    "group": CopiesOfGroup,
    "reason": Annotated[str | None, option(f"Only copies that died for: {', '.join(REASONS)}.", "REASON")],
    "error": Annotated[str | None, option("Only copies whose error holds this text.", "TEXT")],
    "release": Annotated[
        str | None, option('Only copies that handlers of this release failed; "" for an unknown one.', "RELEASE")
    ],
    "since": Annotated[str | None, option("Only copies that died within this time: 15m, 2h.", "TIME")],
    "older_than": Annotated[str | None, option("Only copies that died longer ago: 30s, 15m, 7d.", "TIME")],
}


def _read_filter(chosen: dict[str, Any]) -> GarbageFilter:
    times = {name: read_duration(name, chosen[name]) for name in ("since", "older_than") if chosen[name] is not None}
    return GarbageFilter(**(chosen | times))


_with_filter = with_options("where", _FILTER, _read_filter)
"""Gives a command the options that select dead letters, and passes it `where`."""


@admin_command
@_with_filter
def list_(
    topic: TopicName,
    *,
    where: GarbageFilter,
    newest: Annotated[bool, typer.Option("--newest/--oldest", help="Which come first.")] = True,
    trace: TraceFlag = False,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, metavar="NUMBER", help="List at most so many.")] = 50,
    json: JsonFlag = False,
    settings: ManagerSettings,
) -> None:
    """Lists dead letters, the latest first unless --oldest is given; --json with their bodies and tracebacks."""
    with opened(settings) as admin:
        garbage = admin.garbage(topic, where, limit=limit, oldest_first=not newest)
        if json:
            print_json_list(_documents(admin, topic, garbage.letters))
            return
    print_table(_COLUMNS, map(_row, garbage.letters), nothing=f"no such garbage in {topic}")
    for letter in garbage.letters if trace else ():
        print_trace(f"{letter.group or '-'}/{letter.id}", letter.failure.trace if letter.failure else ())
    if garbage.more:
        say(f"there is more; --limit is {limit}", error=True)


def _row(letter: DeadLetter) -> list[object]:
    failure = letter.failure
    due = shown_moment(failure.due_ms) if failure else "-"
    attempts = failure.attempts if failure else "-"
    return [
        letter.id,
        letter.group or "-",
        letter.reason,
        attempts,
        shown_moment(letter.died_ms),
        due,
        letter.release or "-",
        letter.error,
    ]


def _documents(admin: Admin, topic: str, letters: Sequence[DeadLetter]) -> Iterator[dict[str, Any]]:
    """With their bodies, of which only a few are in memory at once."""
    for at in range(0, len(letters), _BODIES):
        part = letters[at : at + _BODIES]
        records = admin.records(topic, [letter.id for letter in part])
        for letter in part:
            yield _document(letter) | record_document(records.get(letter.id))


def _document(letter: DeadLetter) -> dict[str, Any]:
    failure = letter.failure
    return {
        "id": letter.id,
        "group": letter.group or None,
        "reason": letter.reason,
        "error": failure.error if failure else None,
        "release": letter.release or None,
        "trace": failure.trace if failure else None,
        "attempts": failure.attempts if failure else None,
        "died_ms": letter.died_ms,
        "due_ms": failure.due_ms if failure else None,
    }


@admin_command
@_with_filter
def summary(
    topic: TopicName,
    *,
    where: GarbageFilter,
    trace: TraceFlag = False,
    limit: Annotated[
        int,
        typer.Option(min=1, max=10_000_000, metavar="NUMBER", help="Look at the latest dead letters, up to so many."),
    ] = 100_000,
    json: JsonFlag = False,
    settings: ManagerSettings,
) -> None:
    """Counts dead letters by reason, first line of the error, group and release of the handler.

    The most frequent come first. It says so where --limit left out earlier dead letters.
    """
    with opened(settings) as admin:
        found = admin.summarize_garbage(topic, where, limit=limit)
    if json:
        print_json(asdict(found))
        return
    print_table(_CAUSES, map(_cause_row, found.causes), nothing=f"no such garbage in {topic}")
    for cause in found.causes if trace else ():
        print_trace(f"{cause.group or '-'}/{cause.last_id}", cause.trace)
    if found.others:
        say(f"{found.others:,} more died of other causes; --error, --since and others narrow them", error=True)
    if found.more:
        text = f"looked at the latest {found.looked:,} of {found.total:,} dead letters; --limit is {limit:,}"
        say(text, error=True)


def _cause_row(cause: GarbageCause) -> list[object]:
    names = (cause.reason, cause.group or "-", cause.release or "-", cause.error)
    return [f"{cause.count:,}", *names, shown_moment(cause.first_ms), shown_moment(cause.last_ms), cause.last_id]


@admin_command
@_with_filter
def replay(
    topic: TopicName,
    ids: MessageIds = None,
    *,
    all_: AllFlag = False,
    where: GarbageFilter,
    json: JsonFlag = False,
    settings: ManagerSettings,
) -> None:
    """Makes dead letters ready again, oldest first, with all their attempts.

    Exits with 1 if any could not be replayed: it is not in the garbage, its record is damaged ("unreadable"), its group
    was dropped ("no group"), or other options exclude a message that was named ("passed over").
    """
    _check_ids(ids, all_=all_)
    with opened(settings) as admin, stoppable("replaying") as show:
        if ids:
            result = admin.replay(topic, ids, where, on_progress=show)
        else:
            result = admin.replay_all(topic, where, on_progress=show)
        if not ids and not result.done:
            require_group(admin, topic, where.group)
    _print_result(result, "replayed", json=json)


@admin_command
@_with_filter
def purge(
    topic: TopicName,
    ids: MessageIds = None,
    *,
    all_: AllFlag = False,
    where: GarbageFilter,
    yes: YesFlag = False,
    json: JsonFlag = False,
    settings: ManagerSettings,
) -> None:
    """Deletes dead letters for good.

    Exits with 1 if any is not in the garbage, or other options exclude a message that was named ("passed over").
    """
    _check_ids(ids, all_=all_)
    with opened(settings) as admin:
        if ids:
            confirm(f"Delete the dead letters of {len(ids)} messages of {topic} for good?", yes=yes)
        elif not yes:
            # What dies while the question is open was not counted, and stays.
            where = replace(where, as_of=admin.server_time())
            count = admin.count_garbage(topic, where)
            confirm(f"Delete {count:,} dead letters of {topic} for good?", yes=False)
        with stoppable("purging") as show:
            if ids:
                result = admin.purge(topic, ids, where, on_progress=show)
            else:
                result = admin.purge_all(topic, where, on_progress=show)
        if not ids and not result.done:
            require_group(admin, topic, where.group)
    _print_result(result, "purged", json=json)


def _check_ids(ids: Sequence[str] | None, *, all_: bool) -> None:
    if bool(ids) == all_:
        raise InvalidInput("messages", Verbatim("both" if ids else "neither"), "named by ids or selected by --all")
    for id in ids or ():
        check_id(id)


def _print_result(result: BulkResult, done: str, *, json: bool) -> None:
    counts = {done: result.done, **result.failed}
    if json:
        print_json(counts)
    else:
        say(", ".join(f"{name} {count:,}" for name, count in counts.items()))
    for id in result.unknown:
        say(f"not in the garbage: {shown(id)}", error=True)
    exit_by(result, is_fine=not result.failed)
