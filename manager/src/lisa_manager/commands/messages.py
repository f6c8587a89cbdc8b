"""`lisa-manager show` and `lisa-manager cancel`."""

import base64
import json as json_module
import math
from dataclasses import asdict
from typing import Annotated, Any

import typer

from lisa_common.cli import (
    EXIT_WRONG,
    Column,
    JsonFlag,
    print_json,
    print_table,
    say,
    shown,
    shown_moment,
)
from lisa_common.model.death import DEATHS
from lisa_manager import CancelOutcome, CopyState, Death, Found, Hop, ManagerSettings, Record
from lisa_manager.commands.shared import TopicName, admin_command, opened

__all__ = ["cancel", "show"]

_DONE = {CancelOutcome.CANCELLED, CancelOutcome.DELIVERED}

MessageId = Annotated[str, typer.Argument(metavar="ID", help="The message.", show_default=False)]
MessageIds = Annotated[list[str], typer.Argument(metavar="ID...", help="The messages.", show_default=False)]


@admin_command
def show(topic: TopicName, id: MessageId, *, json: JsonFlag = False, settings: ManagerSettings) -> None:
    """Shows everything that is known of a message; exits with 1 where nothing is."""
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


_HOPS = (*map(Column, ("topic", "id", "state", "at")),)


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
    for name, value in facts:
        say(f"{shown(name):12} {shown(str(value))}")
    if found.copies:
        say("")
        columns = (
            *map(Column, ("group", "state", "at")),
            Column("attempts", number=True),
            Column("reason"),
            Column("error"),
        )
        print_table(columns, map(_copy_row, found.copies))
    if found.deaths:
        say("")
        print_table(_DEATHS, map(_death_row, found.deaths))
    if record:
        say("")
        _print_body(record)


_DEATHS = (
    *map(Column, ("topic", "reason")),
    Column("count", number=True),
    *map(Column, ("first", "last", "group", "id", "error")),
)


def _death_row(death: Death) -> list[object]:
    moments = (shown_moment(death.first_ms), shown_moment(death.last_ms))
    return [death.queue, death.reason, death.count, *moments, death.group or "-", death.id, death.error]


def _copy_row(copy: CopyState) -> list[object]:
    failure = copy.failure
    cause = (failure.reason, failure.error) if failure else ("-", "")
    return [copy.group or "-", copy.state, shown_moment(copy.at_ms), copy.attempts, *cause]


def _print_body(record: Record) -> None:
    body = _body(record.body)
    size = f"{len(record.body):,} bytes"
    if "json" in body:
        say(f"body ({size} of JSON):\n{json_module.dumps(body['json'], indent=2)}")
    elif "text" in body:
        # Escaped line by line, so that the terminal obeys nothing in it.
        say(f"body ({size} of text):\n" + "\n".join(map(shown, body["text"].splitlines())))
    else:
        say(f"body ({size}, binary; --json has them in base64)")


def _body(body: bytes) -> dict[str, Any]:
    """The body as JSON, text or base64, whichever fits first."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}
    try:
        return {"json": json_module.loads(text, parse_constant=lambda _: None, parse_float=_finite)}
    except (ValueError, RecursionError):
        return {"text": text}


def _finite(text: str) -> float | None:
    """A number that JSON allows: Python would also read and write infinities."""
    number = float(text)
    return number if math.isfinite(number) else None


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
        document |= {
            "sent_ms": record.sent_ms,
            "expires_ms": record.expires_ms,
            "max_retries": record.max_retries,
            "priority": record.priority,
            "headers": dict(record.headers),
            "body_bytes": len(record.body),
            "body": _body(record.body),
        }
    return document


def _copy_document(copy: CopyState) -> dict[str, Any]:
    failure = copy.failure
    return {
        "group": copy.group or None,
        "state": copy.state,
        "at_ms": copy.at_ms,
        "attempts": copy.attempts,
        "reason": failure.reason if failure else None,
        "error": failure.error if failure else None,
        "failed_ms": failure.at_ms if failure else None,
    }


@admin_command
def cancel(topic: TopicName, ids: MessageIds, *, json: JsonFlag = False, settings: ManagerSettings) -> None:
    """Cancels messages; exits with 1 if it is too late for any: it was acked, is garbage, or is unknown."""
    with opened(settings) as admin:
        outcomes = admin.cancel(topic, ids)
    if json:
        print_json([{"id": id, "outcome": outcome} for id, outcome in outcomes.items()])
    else:
        print_table((Column("id"), Column("outcome")), outcomes.items())
    if not _DONE.issuperset(outcomes.values()):
        raise typer.Exit(EXIT_WRONG)
