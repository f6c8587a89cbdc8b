"""`lisa-manager garbage list | replay | purge`."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from lisa_common.cli import (
    EXIT_WRONG,
    Column,
    JsonFlag,
    YesFlag,
    confirm,
    print_json,
    print_json_list,
    print_table,
    read_duration,
    say,
    shown_moment,
)
from lisa_common.errors import Described, InvalidInput
from lisa_common.validation import check_id
from lisa_manager import REASONS, Admin, BulkResult, DeadLetter, GarbageFilter, ManagerSettings
from lisa_manager.commands.bodies import record_document
from lisa_manager.commands.shared import TopicName, admin_command, opened, progress_of

__all__ = ["list_", "purge", "replay"]

MessageIds = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="These messages.", show_default=False)]
AllFlag = Annotated[bool, typer.Option("--all", help="All dead letters that the other options select.")]
Group = Annotated[
    str | None, typer.Option(metavar="GROUP", help='Only copies of this group; "" for no group.', show_default=False)
]
Reason = Annotated[
    str | None,
    typer.Option(metavar="REASON", help=f"Only copies that died for: {', '.join(REASONS)}.", show_default=False),
]
OlderThan = Annotated[
    str | None, typer.Option(metavar="TIME", help="Only copies that died longer ago: 30s, 15m, 7d.", show_default=False)
]

_BODIES = 20
"""Most bodies in memory at once."""

_COLUMNS = (
    *map(Column, ("id", "group", "reason")),
    Column("attempts", number=True),
    *(Column(title, whole=True) for title in ("died", "due")),
    Column("error"),
)


def _filter(group: str | None, reason: str | None, older_than: str | None) -> GarbageFilter:
    return GarbageFilter(group, reason, None if older_than is None else read_duration("older_than", older_than))


@admin_command
def list_(
    topic: TopicName,
    *,
    group: Group = None,
    reason: Reason = None,
    older_than: OlderThan = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, metavar="NUMBER", help="List at most so many.")] = 50,
    json: JsonFlag = False,
    settings: ManagerSettings,
) -> None:
    """Lists dead letters, the latest first; --json with their bodies."""
    where = _filter(group, reason, older_than)
    with opened(settings) as admin:
        garbage = admin.garbage(topic, where, limit=limit)
        if json:
            print_json_list(_documents(admin, topic, garbage.letters))
            return
    print_table(_COLUMNS, map(_row, garbage.letters), nothing=f"no such garbage in {topic}")
    if garbage.more:
        say(f"there is more; --limit is {limit}", error=True)


def _row(letter: DeadLetter) -> list[object]:
    failure = letter.failure
    details = (shown_moment(failure.due_ms), failure.error) if failure else ("-", "")
    attempts = failure.attempts if failure else "-"
    return [letter.id, letter.group or "-", letter.reason, attempts, shown_moment(letter.died_ms), *details]


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
        "attempts": failure.attempts if failure else None,
        "died_ms": letter.died_ms,
        "due_ms": failure.due_ms if failure else None,
    }


@admin_command
def replay(
    topic: TopicName,
    ids: MessageIds = None,
    *,
    all_: AllFlag = False,
    group: Group = None,
    reason: Reason = None,
    older_than: OlderThan = None,
    json: JsonFlag = False,
    settings: ManagerSettings,
) -> None:
    """Makes dead letters ready again, oldest first, with all their attempts.

    Exits with 1 if any could not be replayed: it is not in the garbage, its record is damaged ("unreadable"), its group
    was dropped ("no group"), or other options exclude a message that was named ("passed over").
    """
    _check_ids(ids, all_=all_)
    where = _filter(group, reason, older_than)
    with opened(settings) as admin, progress_of("replaying") as show:
        if ids:
            result = admin.replay(topic, ids, where, on_progress=show)
        else:
            result = admin.replay_all(topic, where, on_progress=show)
    _print_result(result, "replayed", json=json)


@admin_command
def purge(
    topic: TopicName,
    ids: MessageIds = None,
    *,
    all_: AllFlag = False,
    group: Group = None,
    reason: Reason = None,
    older_than: OlderThan = None,
    yes: YesFlag = False,
    json: JsonFlag = False,
    settings: ManagerSettings,
) -> None:
    """Deletes dead letters for good.

    Exits with 1 if any is not in the garbage, or other options exclude a message that was named ("passed over").
    """
    _check_ids(ids, all_=all_)
    where = _filter(group, reason, older_than)
    with opened(settings) as admin:
        messages = f"{len(ids)} messages" if ids else f"up to {admin.count_garbage(topic):,} messages"
        confirm(f"Delete the dead letters of {messages} of {topic} for good?", yes=yes)
        with progress_of("purging") as show:
            if ids:
                result = admin.purge(topic, ids, where, on_progress=show)
            else:
                result = admin.purge_all(topic, where, on_progress=show)
    _print_result(result, "purged", json=json)


def _check_ids(ids: Sequence[str] | None, *, all_: bool) -> None:
    if bool(ids) == all_:
        raise InvalidInput("messages", Described("both" if ids else "neither"), "named by ids or selected by --all")
    for id in ids or ():
        check_id(id)


def _print_result(result: BulkResult, done: str, *, json: bool) -> None:
    counts = {done: result.done, **result.failed}
    if json:
        print_json(counts)
    else:
        say(", ".join(f"{name} {count:,}" for name, count in counts.items()))
    if result.failed:
        raise typer.Exit(EXIT_WRONG)
