"""`lisa-manager list`."""

from collections.abc import Iterator
from itertools import chain, islice
from typing import Annotated, Any

import typer

from lisa_common.cli.columns import Column
from lisa_common.cli.options import JsonFlag
from lisa_common.cli.output import print_json_list, print_table, say, shown_duration, shown_moment
from lisa_manager import Admin, ListedMessage, ManagerSettings, State
from lisa_manager.commands.bodies import excerpt, record_document
from lisa_manager.commands.shared import CopiesOfGroup, TopicName, admin_command, opened

__all__ = ["list_"]

_PAGE = 1_000
_STATES = ("waiting", "ready", "delivered", "retry", "garbage")
_COLUMNS = (
    *map(Column, ("id", "group")),
    Column("at", whole=True),
    Column("attempts", number=True),
    *map(Column, ("held by", "error", "body")),
)


@admin_command
def list_(
    topic: TopicName,
    state: Annotated[
        str,
        typer.Argument(
            metavar="STATE",
            help="waiting, ready, delivered, retry or garbage.",
            autocompletion=lambda: _STATES,
        ),
    ] = "waiting",
    *,
    group: CopiesOfGroup = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, metavar="NUMBER", help="List at most so many.")] = 50,
    json: JsonFlag = False,
    settings: ManagerSettings,
) -> None:
    """Lists messages of one state with their bodies, oldest first in each shard."""
    with opened(settings) as admin:
        messages = _page_by_page(admin, topic, state, group=group, limit=min(limit, _PAGE))
        # The first page is read before anything is printed: it may raise.
        found = islice(chain([*islice(messages, 1)], messages), limit)
        if json:
            print_json_list(map(_document, found))
            return
        print_table(_COLUMNS, map(_row, found), nothing=f"no messages of {topic} are {state}")
        if next(messages, None):
            say(f"there is more; --limit is {limit}", error=True)


def _page_by_page(admin: Admin, *place: Any, **options: Any) -> Iterator[ListedMessage]:
    cursor: str | None = None
    while True:
        page = admin.messages(*place, **options, cursor=cursor)
        yield from page.messages
        cursor = page.cursor
        if cursor is None:
            return


def _row(message: ListedMessage) -> list[object]:
    holder = "-"
    if message.consumer is not None:
        holder = f"{message.consumer} for {shown_duration(message.idle_ms or 0)}"
    error = message.failure.error if message.failure else message.unreadable
    moment = shown_moment(message.at_ms)
    return [message.id, message.group or "-", moment, message.attempts, holder, error, excerpt(message.record)]


def _document(message: ListedMessage) -> dict[str, Any]:
    failure = message.failure
    document: dict[str, Any] = {
        "id": message.id,
        "state": State(message.state),
        "group": message.group or None,
        "at_ms": message.at_ms,
        "attempts": message.attempts,
        "consumer": message.consumer,
        "idle_ms": message.idle_ms,
        "reason": failure.reason if failure else None,
        "error": failure.error if failure else None,
        "unreadable": message.unreadable or None,
    }
    return document | record_document(message.record)
