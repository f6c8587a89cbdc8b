"""`lisa-manager check`."""

from typing import Annotated, Any

import typer

from lisa_common.cli.columns import Column
from lisa_common.cli.options import JsonFlag
from lisa_common.cli.output import print_json, print_table, say
from lisa_common.cli.program import EXIT_WRONG
from lisa_manager import CheckReport, Finding, ManagerSettings
from lisa_manager.commands.shared import OneTopic, admin_command, opened, progress_of, warn_of_missing_manager

__all__ = ["check_"]

_COLUMNS = tuple(map(Column, ("topic", "problem", "id", "group", "detail", "")))


@admin_command
def check_(
    topic: OneTopic = None,
    *,
    repair: Annotated[bool, typer.Option("--repair", help="Repair what is safe to repair.")] = False,
    json: JsonFlag = False,
    settings: ManagerSettings,
) -> None:
    """Audits topics: every message must be in exactly one place per group, and every place must have its message.

    Exits with 1 if any problem was not repaired. Works on topics in use: it looks at each suspect again, in
    one script, and repairs it only if nothing has changed since.
    """
    with opened(settings) as admin, progress_of("checking shards") as show:
        report = admin.check(topic, repair=repair, on_progress=show)
        has_manager = not warn_of_missing_manager(admin)
    _print(report, json=json, well="all is well" if has_manager else "each is in its place")
    if not report.is_clean:
        raise typer.Exit(EXIT_WRONG)


def _print(report: CheckReport, *, json: bool, well: str) -> None:
    if json:
        counts = {"topics": report.topics, "messages": report.messages, "undecided": report.undecided}
        print_json(counts | {"problems": [_document(finding) for finding in report.findings]})
        return
    if report.findings:
        print_table(_COLUMNS, map(_row, report.findings))
        say("")
    say(f"{report.messages:,} messages in {report.topics:,} topics: {_verdict(report) or well}")


def _verdict(report: CheckReport) -> str:
    mended = sum(finding.mended for finding in report.findings)
    counts = (
        (len(report.findings), "problems"),
        (mended, "mended"),
        (report.undecided, "undecided, as they changed meanwhile"),
    )
    return ", ".join(f"{count:,} {what}" for count, what in counts if count)


def _row(finding: Finding) -> list[object]:
    problem = finding.problem
    remedy = "mended" if finding.mended else "--repair mends it" if problem.steps else ""
    return [finding.topic, problem.kind, problem.id or "-", problem.group or "-", problem.detail, remedy]


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
