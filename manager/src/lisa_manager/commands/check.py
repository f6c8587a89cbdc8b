"""`lisa-manager check`."""

from typing import Annotated, Any

import typer

from lisa_common.cli import EXIT_WRONG, Column, JsonFlag, print_json, print_table, progress, say
from lisa_manager.admin.check import Finding, Report, check, check_groups
from lisa_manager.admin.queries import existing, list_layouts
from lisa_manager.commands.shared import admin_command, connected
from lisa_manager.settings import ManagerSettings

__all__ = ["check_"]

_COLUMNS = tuple(map(Column, ("topic", "problem", "id", "group", "detail", "")))


@admin_command
def check_(
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="Only this topic.", show_default=False)] = None,
    *,
    repair: Annotated[bool, typer.Option("--repair", help="Mend what is safe to mend.")] = False,
    json: JsonFlag = False,
    settings: ManagerSettings,
) -> None:
    """Audits topics: every message is in exactly one place per group, and every place has its message.

    Exits with 1 if anything is wrong, and was not mended. Works on topics in use: what looks wrong is looked at
    again, in one script, and mended only if nothing has changed since.
    """
    report = Report()
    with connected(settings) as connection:
        if topic is not None:
            layouts = [connection.run(existing(settings.prefix, topic))]
        else:
            layouts = connection.run(list_layouts(settings.prefix))
        shards = [keys for layout in layouts for keys in layout.served]
        with progress("checking topics", len(shards)) as step:
            for layout in layouts:
                report.findings += connection.run(check_groups(layout, mend=repair))
            for keys in shards:
                found = connection.run(check(keys, mend=repair))
                report.messages += found.messages
                report.findings += found.findings
                report.undecided += found.undecided
                step(1)
    _tell(report, len(layouts), json=json)
    if report.undecided or not all(finding.mended for finding in report.findings):
        raise typer.Exit(EXIT_WRONG)


def _tell(report: Report, topics: int, *, json: bool) -> None:
    if json:
        found = [_document(finding) for finding in report.findings]
        print_json({"topics": topics, "messages": report.messages, "undecided": report.undecided, "problems": found})
        return
    if report.findings:
        print_table(_COLUMNS, map(_row, report.findings))
        say("")
    say(f"{report.messages:,} messages in {topics:,} topics: {_verdict(report)}")


def _verdict(report: Report) -> str:
    mended = sum(finding.mended for finding in report.findings)
    counts = ((len(report.findings), "problems"), (mended, "mended"), (report.undecided, "undecided, as they moved on"))
    return ", ".join(f"{count:,} {what}" for count, what in counts if count) or "all is well"


def _row(finding: Finding) -> list[object]:
    problem = finding.problem
    told = "mended" if finding.mended else "--repair mends it" if problem.steps else ""
    return [finding.topic, problem.kind, problem.id or "-", problem.group or "-", problem.detail, told]


def _document(finding: Finding) -> dict[str, Any]:
    problem = finding.problem
    return {
        "topic": finding.topic,
        "problem": problem.kind,
        "id": problem.id,
        "group": problem.group or None,
        "detail": problem.detail,
        "mendable": bool(problem.steps),
        "mended": finding.mended,
    }
