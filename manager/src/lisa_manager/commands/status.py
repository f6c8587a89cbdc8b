"""`lisa-manager status`."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from lisa_common.cli import EXIT_WRONG, Column, JsonFlag, print_json, print_table, say, shown, shown_duration
from lisa_common.cli.output import new_table
from lisa_manager import BUCKETS, Admin, ManagerSettings, TopicStatus
from lisa_manager.commands.shared import admin_command, opened

__all__ = ["status"]

_NUMBERS = ("waiting", "ready", "delivered", "retry", "garbage")
_COLUMNS = (Column("topic"), *(Column(name, number=True) for name in (*_NUMBERS, "late")))
_DUE_IN = (*(name for name, _ in BUCKETS), "beyond")
_HISTOGRAM = (Column("waiting"), *(Column(name, number=True) for name in _DUE_IN))
_LIMITS = (Column("topic"), Column("limits"))
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
        float | None, typer.Option(min=0.1, max=3_600, metavar="SECONDS", help="Repeat after so many seconds.")
    ] = None,
    json: JsonFlag = False,
    settings: ManagerSettings,
) -> None:
    """Shows how many messages wait, are ready, are being delivered, are to be retried, or are garbage.

    `late` shows how long the oldest undelivered message has been due. With several groups, all but `waiting` counts
    each group's copy of a message. A topic that cannot be read is named; then the exit code is 1.
    """
    if watch is not None:
        with opened(settings, patience_s=60) as admin:
            _watch(admin, topic, watch, json=json)
    with opened(settings) as admin:
        statuses = admin.status(topic)
    print_json([_document(status) for status in statuses]) if json else _print(statuses)
    _report_damage(statuses)


def _report_damage(statuses: Sequence[TopicStatus]) -> None:
    damages = [status.damage for status in statuses if status.damage]
    for damage in damages:
        say(f"cannot be read: {shown(damage)}", error=True)
    if damages:
        raise typer.Exit(EXIT_WRONG)


def _document(status: TopicStatus) -> dict[str, Any]:
    return asdict(status) | {"due_in": dict(zip(_DUE_IN, status.due_in, strict=True))}


def _tables(statuses: Sequence[TopicStatus]) -> list[tuple[Sequence[Column], list[list[str]]]]:
    topics = [[s.topic, *(f"{getattr(s, n):,}" for n in _NUMBERS), shown_duration(s.late_ms)] for s in statuses]
    waiting = [[s.topic, *(f"{count:,}" if count else "." for count in s.due_in)] for s in statuses if s.waiting]
    groups = [
        [s.topic, group.group, f"{group.ready:,}", f"{group.delivered:,}", f"{group.consumers:,}"]
        for s in statuses
        for group in s.groups
    ]
    limits = [[s.topic, _limits(s)] for s in statuses if _limits(s)]
    tables: list[tuple[Sequence[Column], list[list[str]]]] = [
        (_COLUMNS, topics),
        (_HISTOGRAM, waiting),
        (_GROUPS, groups),
        (_LIMITS, limits),
    ]
    return [(columns, rows) for columns, rows in tables if rows]


def _limits(status: TopicStatus) -> str:
    shut = f"shut by a handler for {shown_duration(status.shut_ms)}" if status.shut_ms else ""
    return ", ".join(filter(None, (status.limits, shut)))


def _print(statuses: Sequence[TopicStatus]) -> None:
    tables = _tables(statuses)
    if not tables:
        say("no topics")
    for position, (columns, rows) in enumerate(tables):
        if position:
            say("")
        print_table(columns, rows)


def _watch(admin: Admin, topic: str | None, seconds: float, *, json: bool) -> NoReturn:
    """Shows the status until interrupted. With --json, or without a terminal, prints one after another."""
    console = Console()
    if json or not console.is_terminal:
        while True:
            statuses = admin.status(topic)
            print_json([_document(status) for status in statuses]) if json else _print(statuses)
            time.sleep(seconds)
    with Live(console=console, auto_refresh=False, screen=True) as screen:
        while True:
            tables: list[Table] = [new_table(columns, rows) for columns, rows in _tables(admin.status(topic))]
            screen.update(Group(*tables), refresh=True)
            time.sleep(seconds)
