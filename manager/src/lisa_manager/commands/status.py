"""`lisa-manager status`."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from lisa_common.cli.options import JsonFlag
from lisa_common.cli.output import print_json, print_table, say
from lisa_common.cli.program import EXIT_WRONG
from lisa_common.escaping import shown
from lisa_manager import ManagerSettings, TopicStatus
from lisa_manager.commands.shared import OneTopic, admin_command, find_warnings, opened
from lisa_manager.commands.status_tables import DUE_IN, Rates, listings, unhealthy_first
from lisa_manager.commands.watch import watch as watch_status

__all__ = ["status"]


@admin_command
def status(
    topic: OneTopic = None,
    *,
    watch: Annotated[
        float | None, typer.Option(min=0.1, max=3_600, metavar="SECONDS", help="Repeat after so many seconds.")
    ] = None,
    json: JsonFlag = False,
    settings: ManagerSettings,
) -> None:
    """Shows how many messages wait, are ready, are being delivered, are to be retried, or are garbage.

    `late` shows how long the oldest undelivered message has been due. With several groups, all but `waiting` counts
    each group's copy of a message. Unhealthy topics come first. A topic that cannot be read is named; then the exit
    code is 1. With --watch, `in/s` counts what becomes ready and `out/s` what is delivered to all groups.
    """
    if watch is not None:
        with opened(settings) as admin:
            watch_status(admin, topic, watch, show=_print_rates if json else _print, json=json)
    with opened(settings) as admin:
        statuses = admin.status(topic)
        warnings = find_warnings(admin, topic)
    for line in warnings:
        say(shown(line), error=True)
    print_json([_document(status) for status in statuses]) if json else _print(unhealthy_first(statuses))
    _report_damage(statuses)


def _report_damage(statuses: Sequence[TopicStatus]) -> None:
    damages = [status.damage for status in statuses if status.damage]
    for damage in damages:
        say(f"cannot be read: {shown(damage)}", error=True)
    if damages:
        raise typer.Exit(EXIT_WRONG)


def _document(status: TopicStatus) -> dict[str, Any]:
    return asdict(status) | {"due_in": dict(zip(DUE_IN, status.due_in, strict=True))}


def _print_rates(statuses: Sequence[TopicStatus], rates: Rates) -> None:
    at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    print_json(
        [
            _document(s) | {"at": at, "in_per_s": rates.added.get(s.topic), "out_per_s": rates.out(s.topic)}
            for s in sorted(statuses, key=lambda status: status.topic)
        ]
    )


def _print(statuses: Sequence[TopicStatus], rates: Rates | None = None) -> None:
    tables = listings(statuses, rates)
    if not tables:
        say("no topics")
    for position, table in enumerate(tables):
        if position:
            say("")
        print_table(table.columns, table.rows)
