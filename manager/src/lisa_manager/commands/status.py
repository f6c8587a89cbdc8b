"""`lisa-manager status`."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from lisa_common.cli import EXIT_WRONG, Column, JsonFlag, print_json, print_table, say, shown, shown_duration
from lisa_common.cli.output import new_table
from lisa_common.client.connection import Connection
from lisa_manager.admin.status import BUCKETS, TopicStatus, read_status
from lisa_manager.commands.shared import admin_command, connected
from lisa_manager.settings import ManagerSettings

__all__ = ["status"]

_NUMBERS = ("waiting", "ready", "delivered", "retry", "garbage")
_COLUMNS = (Column("topic"), *(Column(name, number=True) for name in (*_NUMBERS, "late")))
_DUE_IN = (*(name for name, _ in BUCKETS), "beyond")
_HISTOGRAM = (Column("waiting"), *(Column(name, number=True) for name in _DUE_IN))
_GROUPS = (
    Column("topic"),
    Column("group"),
    *(Column(name, number=True) for name in ("ready", "delivered", "consumers")),
)


@admin_command
def status(
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="Only this topic.", show_default=False)] = None,
    *,
    watch: Annotated[
        float | None, typer.Option(min=0.1, max=3_600, metavar="SECONDS", help="Show it again and again.")
    ] = None,
    json: JsonFlag = False,
    settings: ManagerSettings,
) -> None:
    """Shows how much waits, is ready, is being delivered, is to be retried, or is garbage.

    `late` is for how long the oldest undelivered message has been due. With several groups, all but `waiting` counts
    each group's copy of a message. A topic that cannot be read is named; the exit code is 1 then.
    """
    with connected(settings) as connection:
        if watch is None:
            found = connection.run(read_status(settings.prefix, topic))
            print_json([_document(one) for one in found]) if json else _print(found)
            _tell_damage(found)
        else:
            _watch(connection, settings.prefix, topic, watch, json=json)


def _tell_damage(found: Sequence[TopicStatus]) -> None:
    damaged = [one.damage for one in found if one.damage]
    for damage in damaged:
        say(f"cannot be read: {shown(damage)}", error=True)
    if damaged:
        raise typer.Exit(EXIT_WRONG)


def _document(one: TopicStatus) -> dict[str, Any]:
    return asdict(one) | {"due_in": dict(zip(_DUE_IN, one.due_in, strict=True))}


def _tables(found: Sequence[TopicStatus]) -> list[tuple[Sequence[Column], list[list[str]]]]:
    topics = [[one.topic, *(f"{getattr(one, n):,}" for n in _NUMBERS), shown_duration(one.late_ms)] for one in found]
    waiting = [[one.topic, *(f"{count:,}" if count else "." for count in one.due_in)] for one in found if one.waiting]
    of_groups = [
        [one.topic, group.group, f"{group.ready:,}", f"{group.delivered:,}", f"{group.consumers:,}"]
        for one in found
        for group in one.groups
    ]
    tables = [(_COLUMNS, topics), (_HISTOGRAM, waiting), (_GROUPS, of_groups)]
    return [(columns, rows) for columns, rows in tables if rows]


def _print(found: Sequence[TopicStatus]) -> None:
    tables = _tables(found)
    if not tables:
        say("no topics")
    for position, (columns, rows) in enumerate(tables):
        if position:
            say("")
        print_table(columns, rows)


def _watch(connection: Connection, prefix: str, topic: str | None, seconds: float, *, json: bool) -> None:
    """Until interrupted. With --json, or without a terminal, one status after another."""
    console = Console()
    live = console.is_terminal and not json

    def look() -> list[TopicStatus]:
        return connection.run(read_status(prefix, topic), patience_s=60)

    if not live:
        while True:
            found = look()
            print_json([_document(one) for one in found]) if json else _print(found)
            time.sleep(seconds)
    with Live(console=console, auto_refresh=False, screen=True) as screen:
        while True:
            tables: list[Table] = [new_table(columns, rows) for columns, rows in _tables(look())]
            screen.update(Group(*tables), refresh=True)
            time.sleep(seconds)
