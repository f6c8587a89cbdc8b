"""`lisa-manager show`, `abort`, `cancel` and `reschedule`."""

import json as json_module
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Annotated, Any

import typer

from lisa_common.cli.columns import Column
from lisa_common.cli.options import JsonFlag, YesFlag, argument, option
from lisa_common.cli.output import print_json, print_table, say, shown_moment
from lisa_common.cli.parse import read_duration, read_headers, read_moment
from lisa_common.cli.program import EXIT_WRONG, confirm
from lisa_common.errors import InvalidInput, Needs, Verbatim
from lisa_common.escaping import shown
from lisa_common.model.death import DEATHS
from lisa_common.validation import check_id
from lisa_manager import (
    AbortOutcome,
    Admin,
    CancelOutcome,
    CopyState,
    Death,
    Found,
    Hop,
    ManagerSettings,
    Record,
    RescheduleOutcome,
    WaitingFilter,
)
from lisa_manager.commands.bodies import read_body, record_document
from lisa_manager.commands.shared import TopicName, admin_command, exit_by, opened, print_trace, progress_of, stoppable

__all__ = ["abort", "cancel", "reschedule", "show"]

_DONE = {CancelOutcome.CANCELLED, CancelOutcome.DELIVERED}

MessageId = Annotated[str, argument("The message.", "ID")]
SomeIds = Annotated[list[str] | None, argument("These messages.", "[ID]...")]
MessageIds = Annotated[list[str], argument("The messages.", "ID...")]


@admin_command
def show(topic: TopicName, id: MessageId, *, json: JsonFlag = False, settings: ManagerSettings) -> None:
    """Shows everything known about a message; exits with 1 if nothing is known."""
    with opened(settings) as admin:
        found = admin.find(topic, id)
        hops = admin.trace(topic, id)
    if json:
        document = _document(found) if found else {"id": id, "state": None} if hops else None
        more = {"dead_letters": [_hop_document(hop) for hop in hops]} if hops else {}
        print_json(document and document | more)
    elif found:
        _print(found)
    elif not hops:
        say(f"topic {topic} knows no message {shown(id)}", error=True)
    if hops and not json:
        say("" if found else f"topic {topic} knows no message {shown(id)} any more")
        print_table(_HOPS, [_hop_row(hop) for hop in hops])
    if found is None and not hops:
        raise typer.Exit(EXIT_WRONG)


_HOPS = (*map(Column, ("topic", "id", "state")), Column("at", whole=True))


def _hop_row(hop: Hop) -> list[object]:
    return [hop.topic, hop.found.id, hop.found.state, shown_moment(hop.found.due_ms)]


def _hop_document(hop: Hop) -> dict[str, Any]:
    return {"topic": hop.topic, "id": hop.found.id, "state": hop.found.state, "due_ms": hop.found.due_ms}


def _print(found: Found) -> None:
    record = found.record
    facts: list[tuple[str, object]] = [("id", found.id), ("state", found.state), ("due", shown_moment(found.due_ms))]
    if record:
        facts += [
            ("sent", shown_moment(record.sent_ms)),
            ("expires", shown_moment(record.expires_ms)),
            ("attempts", found.attempts),
            ("max retries", "the topic's" if record.max_retries is None else record.max_retries),
            ("priority", record.priority),
            *((f"header {name}", value) for name, value in record.headers.items() if name != DEATHS),
        ]
    facts += [("held by", f"{copy.consumer} of group {copy.group}") for copy in found.copies if copy.consumer]
    for name, value in facts:
        say(f"{shown(name):12} {shown(str(value))}")
    if found.copies:
        say("")
        columns = (
            *map(Column, ("group", "state")),
            Column("at", whole=True),
            Column("attempts", number=True),
            *map(Column, ("reason", "release", "error")),
        )
        print_table(columns, map(_copy_row, found.copies))
        for copy in found.copies:
            print_trace(copy.group or "-", copy.failure.trace if copy.failure else ())
    if found.deaths:
        say("")
        print_table(_DEATHS, map(_death_row, found.deaths))
    if record:
        say("")
        _print_body(record)


_DEATHS = (
    *map(Column, ("topic", "reason")),
    Column("count", number=True),
    *(Column(title, whole=True) for title in ("first", "last")),
    *map(Column, ("group", "id", "error")),
)


def _death_row(death: Death) -> list[object]:
    moments = (shown_moment(death.first_ms), shown_moment(death.last_ms))
    return [death.queue, death.reason, death.count, *moments, death.group or "-", death.id, death.error]


def _copy_row(copy: CopyState) -> list[object]:
    failure = copy.failure
    cause = (failure.reason, failure.release or "-", failure.error) if failure else ("-", "-", "")
    return [copy.group or "-", copy.state, shown_moment(copy.at_ms), copy.attempts, *cause]


def _print_body(record: Record) -> None:
    body = read_body(record.body)
    size = f"{len(record.body):,} bytes"
    if "json" in body:
        say(f"body ({size} of JSON):\n{json_module.dumps(body['json'], indent=2)}")
    elif "text" in body:
        # Escaped line by line, so that the terminal runs no control codes in it.
        say(f"body ({size} of text):\n" + "\n".join(map(shown, body["text"].splitlines())))
    else:
        say(f"body ({size}, binary; --json has them in base64)")


def _document(found: Found) -> dict[str, Any]:
    record = found.record
    document: dict[str, Any] = {
        "id": found.id,
        "state": found.state,
        "due_ms": found.due_ms,
        "attempts": found.attempts,
        "copies": [_copy_document(copy) for copy in found.copies],
    }
    if found.deaths:
        document["deaths"] = [asdict(death) for death in found.deaths]
    if record:
        document |= record_document(record)
    return document


def _copy_document(copy: CopyState) -> dict[str, Any]:
    failure = copy.failure
    trace = {"trace": failure.trace} if failure and failure.trace else {}
    return {
        "group": copy.group or None,
        "state": copy.state,
        "at_ms": copy.at_ms,
        "attempts": copy.attempts,
        "reason": failure.reason if failure else None,
        "error": failure.error if failure else None,
        "release": failure.release or None if failure else None,
        "failed_ms": failure.at_ms if failure else None,
        **({"consumer": copy.consumer} if copy.consumer else {}),
    } | trace


@admin_command
def abort(topic: TopicName, ids: MessageIds, *, json: JsonFlag = False, settings: ManagerSettings) -> None:
    """Ends deliveries of messages: they become garbage, and workers cancel their handlers.

    Exits with 1 if no consumer has one of them.
    """
    for id in ids:
        check_id(id)
    with opened(settings) as admin:
        # Each once: what was aborted is garbage for a second abort.
        outcomes = {id: admin.abort(topic, id) for id in dict.fromkeys(ids)}
    _print_outcomes(outcomes, json=json)
    if {AbortOutcome.ABORTED} != {*outcomes.values()}:
        raise typer.Exit(EXIT_WRONG)


@admin_command
def cancel(
    topic: TopicName,
    ids: SomeIds = None,
    *,
    all_: Annotated[bool, typer.Option("--all", help="All waiting messages that the other options select.")] = False,
    id_prefix: Annotated[str | None, option("Only ids that begin so.", "TEXT")] = None,
    header: Annotated[
        list[str] | None, option("Only messages with this header; repeat the option for more.", "KEY=VALUE")
    ] = None,
    due_before: Annotated[str | None, option("Only messages due before: ISO 8601 with its zone.", "MOMENT")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only count the messages that --all would cancel.")
    ] = False,
    yes: YesFlag = False,
    json: JsonFlag = False,
    settings: ManagerSettings,
) -> None:
    """Cancels messages by their ids, or with --all the waiting ones.

    Exits with 1 if it is too late for any: it was acked, is garbage, or is unknown.
    """
    filters = {"--id-prefix": id_prefix, "--header": header, "--due-before": due_before, "--dry-run": dry_run}
    if bool(ids) == all_:
        raise InvalidInput("messages", Verbatim("both" if ids else "neither"), "named by ids or selected by --all")
    if ids and (given := [name for name, value in filters.items() if value]):
        raise Needs(given[0], filters[given[0]], "--all")
    with opened(settings) as admin:
        if not ids:
            moment = None if due_before is None else read_moment("due_before", due_before)
            where = WaitingFilter(id_prefix, read_headers(header or ()), moment)
            _cancel_all(admin, topic, where, dry_run=dry_run, yes=yes, json=json)
            return
        outcomes = admin.cancel(topic, ids)
    _print_outcomes(outcomes, json=json)
    if not _DONE.issuperset(outcomes.values()):
        raise typer.Exit(EXIT_WRONG)


def _cancel_all(admin: Admin, topic: str, where: WaitingFilter, *, dry_run: bool, yes: bool, json: bool) -> None:
    if dry_run or not yes:
        if not dry_run:
            # What is sent while the question is open was not counted, and stays.
            where = replace(where, as_of=admin.server_time())
        with progress_of("counting") as show:
            count = admin.cancel_many(topic, where, dry_run=True, on_progress=show).done
        if dry_run:
            print_json({"selected": count}) if json else say(f"{count:,} messages would be cancelled")
            return
        confirm(f"Cancel {count:,} waiting messages of {topic}?", yes=yes)
    with stoppable("cancelling") as show:
        result = admin.cancel_many(topic, where, on_progress=show)
    counts = {"cancelled": result.done, **result.failed}
    print_json(counts) if json else say(", ".join(f"{name} {count:,}" for name, count in counts.items()))
    exit_by(result, is_fine=_DONE.issuperset(counts))


@admin_command
def reschedule(
    topic: TopicName,
    ids: MessageIds,
    *,
    delay: Annotated[str | None, option("Due after this time: 250ms, 30s, 15m, 1h30m, 7d; 0 for now.", "TIME")] = None,
    at: Annotated[str | None, option("Due at this time: ISO 8601 with its zone.", "MOMENT")] = None,
    json: JsonFlag = False,
    settings: ManagerSettings,
) -> None:
    """Gives messages that wait, or are to be retried, another due time; exits with 1 if any is in another state."""
    if (delay is None) == (at is None):
        raise InvalidInput("due time", Verbatim("neither" if at is None else "both"), "given by --delay or by --at")
    delay_s = None if delay is None else read_duration("delay", delay)
    moment = None if at is None else read_moment("at", at)
    with opened(settings) as admin:
        outcomes = admin.reschedule(topic, ids, delay=delay_s, at=moment)
    _print_outcomes(outcomes, json=json)
    if {RescheduleOutcome.RESCHEDULED} != {*outcomes.values()}:
        raise typer.Exit(EXIT_WRONG)


def _print_outcomes(outcomes: Mapping[str, str], *, json: bool) -> None:
    if json:
        print_json([{"id": id, "outcome": outcome} for id, outcome in outcomes.items()])
    else:
        print_table((Column("id"), Column("outcome")), outcomes.items())
