"""`lisa-manager garbage list | replay | purge`."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any

import typer

from lisa_common.cli import (
    EXIT_WRONG,
    Column,
    JsonFlag,
    YesFlag,
    confirm,
    print_json,
    print_table,
    progress,
    read_duration,
    say,
    shown_moment,
)
from lisa_common.client.connection import Connection
from lisa_common.errors import InvalidInput
from lisa_common.model.keys import ShardKeys
from lisa_common.model.sharding import Layout, by_shard, home
from lisa_common.protocol.call import Flow
from lisa_common.protocol.consuming import server_time
from lisa_common.validation import check_id, check_name, duration_ms
from lisa_manager.admin import garbage
from lisa_manager.admin.garbage import REASONS, DeadLetter, Pages, Wanted
from lisa_manager.admin.queries import existing
from lisa_manager.commands.shared import TopicName, admin_command, connected
from lisa_manager.settings import ManagerSettings

__all__ = ["list_", "purge", "replay"]

MessageIds = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="These messages.", show_default=False)]
AllFlag = Annotated[bool, typer.Option("--all", help="All that the other options name.")]
Group = Annotated[
    str | None, typer.Option(metavar="GROUP", help='Only what died in this group; "" for none.', show_default=False)
]
Reason = Annotated[
    str | None,
    typer.Option(metavar="REASON", help=f"Only what died so: {', '.join(REASONS)}.", show_default=False),
]
OlderThan = Annotated[
    str | None, typer.Option(metavar="TIME", help="Only what died so long ago: 30s, 15m, 7d.", show_default=False)
]

_COLUMNS = (
    *map(Column, ("id", "group", "reason")),
    Column("attempts", number=True),
    *map(Column, ("died", "due", "error")),
)


def _wanted(connection: Connection, group: str | None, reason: str | None, older_than: str | None) -> Wanted:
    if group:
        check_name("group", group)
    if reason is not None and reason not in REASONS:
        raise InvalidInput("reason", reason, f"one of {', '.join(REASONS)} is")
    before = None
    if older_than is not None:
        age = duration_ms("older_than", read_duration("older_than", older_than))
        before = connection.call(server_time()) - age
    return Wanted(group, reason, before)


@admin_command
def list_(
    topic: TopicName,
    *,
    group: Group = None,
    reason: Reason = None,
    older_than: OlderThan = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, metavar="NUMBER", help="At most so many.")] = 50,
    json: JsonFlag = False,
    settings: ManagerSettings,
) -> None:
    """Lists dead letters, the latest first."""
    with connected(settings) as connection:
        wanted = _wanted(connection, group, reason, older_than)
        layout = connection.run(existing(settings.prefix, topic))
        found, more = list[DeadLetter](), False
        for keys in layout.served:
            pages, of_shard = Pages(keys, wanted, newest_first=True), list[DeadLetter]()
            while not pages.done and len(of_shard) < limit:
                of_shard += connection.run(pages.next_page())
            found += of_shard
            more = more or not pages.done
        found.sort(key=lambda letter: -letter.died_ms)
    if json:
        print_json([_document(letter) for letter in found[:limit]])
        return
    print_table(_COLUMNS, map(_row, found[:limit]), nothing=f"no such garbage in {topic}")
    if len(found) > limit or more:
        say(f"there is more; --limit is {limit}", error=True)


def _row(letter: DeadLetter) -> list[object]:
    failure = letter.failure
    told = (shown_moment(failure.due_ms), failure.error) if failure else ("-", "")
    attempts = failure.attempts if failure else "-"
    return [letter.id, letter.group or "-", letter.reason, attempts, shown_moment(letter.died_ms), *told]


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
    """Makes dead letters ready again, with all attempts before them; oldest first.

    Exits with 1 if any could not be: it is not there, its record is damaged ("unreadable"), its group ("no group") is
    not there any more, or other options kept a message that was named from it ("passed over").
    """
    with connected(settings) as connection:
        work = _Work(connection, _layout(connection, settings, topic, ids, all_=all_), "replaying", garbage.replay)
        wanted = _wanted(connection, group, reason, older_than)
        work.on_these(ids, wanted) if ids else work.on_all(wanted)
    _summarise(work.outcomes, "replayed", json=json)


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

    Exits with 1 if any was not there, or was named, and kept from it by other options ("passed over").
    """
    with connected(settings) as connection:
        work = _Work(connection, _layout(connection, settings, topic, ids, all_=all_), "purging", garbage.purge)
        wanted = _wanted(connection, group, reason, older_than)
        what = f"{len(ids)} messages" if ids else f"up to {work.count():,} messages"
        confirm(f"Delete the dead letters of {what} of {topic} for good?", yes=yes)
        work.on_these(ids, wanted) if ids else work.on_all(wanted)
    _summarise(work.outcomes, "purged", json=json)


def _layout(
    connection: Connection, settings: ManagerSettings, topic: str, ids: list[str] | None, *, all_: bool
) -> Layout:
    if bool(ids) == all_:
        raise InvalidInput("messages", ids or None, "either ids, or --all, is")
    for id in ids or ():
        check_id(id)
    return connection.run(existing(settings.prefix, topic))


@dataclass(slots=True)
class _Work:
    """Does something to dead letters, a batch at a time, and counts what became of them."""

    connection: Connection
    layout: Layout
    what: str
    verb: Callable[[ShardKeys, Sequence[DeadLetter]], Flow[list[str]]]
    outcomes: Counter[str] = field(default_factory=Counter)

    def count(self, before_ms: int | None = None) -> int:
        """How many dead letters there are, of any group and reason."""
        return sum(self.connection.execute([garbage.count(keys, before_ms) for keys in self.layout.served]))

    def on_these(self, ids: Sequence[str], wanted: Wanted) -> None:
        """Works on the dead letters of these messages."""
        missing = list(dict.fromkeys(ids))
        for shards in (self.layout.shards, *self.layout.former.values()):
            places, missing = by_shard(missing, partial(home, shards)), []
            for keys, some in places.items():
                letters, unknown = self.connection.run(garbage.named(keys, some))
                these = [letter for letter in letters if wanted.wants(letter)]
                self._do(keys, these)
                self.outcomes["passed over"] += len({letter.id for letter in letters} - {letter.id for letter in these})
                missing += unknown
        self.outcomes["unknown"] += len(missing)

    def on_all(self, wanted: Wanted) -> None:
        """Works on all that is wanted, oldest first; not on what dies meanwhile, so that it comes to an end."""
        now = self.connection.call(server_time()) + 1
        wanted = replace(wanted, died_before_ms=min(now, wanted.died_before_ms or now))
        with progress(self.what, self.count(wanted.died_before_ms)) as step:
            for keys in self.layout.served:
                pages = Pages(keys, wanted)
                while not pages.done:
                    before = pages.seen
                    self._do(keys, self.connection.run(pages.next_page()))
                    step(pages.seen - before)

    def _do(self, keys: ShardKeys, letters: Sequence[DeadLetter]) -> None:
        for some in garbage.batches(letters):
            outcomes = self.connection.run(self.verb(keys, some))
            self.outcomes.update(outcomes)


def _summarise(outcomes: Counter[str], done: str, *, json: bool) -> None:
    counts = {done: outcomes[done]} | {
        name: count for name, count in sorted(outcomes.items()) if name != done and count
    }
    if json:
        print_json(counts)
    else:
        say(", ".join(f"{name} {count:,}" for name, count in counts.items()))
    if len(counts) > 1:
        raise typer.Exit(EXIT_WRONG)
