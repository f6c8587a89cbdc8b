"""`lisa-manager worker list | show | pause | resume | drain`."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from lisa_common.cli.columns import Column
from lisa_common.cli.options import JsonFlag, argument, option
from lisa_common.cli.output import print_json, print_table, say, shown_duration, shown_moment
from lisa_common.cli.program import EXIT_WRONG
from lisa_common.errors import UnknownWorker
from lisa_common.escaping import shown
from lisa_manager import Admin, ManagerSettings, WorkerState, WorkerStatus
from lisa_manager.commands.shared import (
    admin_command,
    complete_worker,
    opened,
    require_group,
    require_group_of_workers,
    require_topic,
)

__all__ = ["drain", "list_", "pause", "resume", "show"]

WorkerName = Annotated[str, argument("The name of the worker.", "WORKER", complete_worker)]
WorkerNames = Annotated[list[str], argument("The names of workers.", "WORKER...", complete_worker)]
Group = Annotated[str | None, option("Its group, where workers of several groups have the name.", "GROUP")]

_COLUMNS = (
    *map(Column, ("worker", "group", "status", "for")),
    *(Column(title, number=True) for title in ("running", "held")),
    *map(Column, ("oldest", "topics", "release", "began")),
)
_HANDLERS = tuple(map(Column, ("topic", "id", "runs for")))
_MOST_TOPICS = 3


@admin_command
def list_(
    *,
    topic: Annotated[str | None, option("Only workers that read this topic.", "TOPIC")] = None,
    group: Annotated[str | None, option("Only workers of this group.", "GROUP")] = None,
    json: JsonFlag = False,
    settings: ManagerSettings,
) -> None:
    """Lists workers: what each does, and since when; "silent" ones have not been heard of for 15 s."""
    with opened(settings) as admin:
        found = admin.workers(topic=topic, group=group)
        if not found:
            if topic:
                require_topic(admin, topic)
                require_group(admin, topic, group)
            elif group:
                require_group_of_workers(admin, group)
    if json:
        print_json([_document(state) for state in found])
    else:
        print_table(_COLUMNS, map(_row, found), nothing="no workers")


def _row(state: WorkerState) -> list[object]:
    oldest = state.handlers[0] if state.handlers else None
    shown_oldest = f"{oldest.topic}/{oldest.id} {_age(state, oldest.since_ms)}" if oldest else "-"
    topics = ", ".join(state.topics[:_MOST_TOPICS])
    more = len(state.topics) - _MOST_TOPICS
    return [
        *(state.name, state.group, _status(state), _age(state, state.status_since_ms), state.running, state.held),
        *(shown_oldest, f"{topics} and {more} more" if more > 0 else topics or "-", state.release or "-"),
        shown_moment(state.began_ms),
    ]


def _status(state: WorkerState) -> str:
    if state.wish is None or state.status in {WorkerStatus.DRAINING, WorkerStatus.PAUSED}:
        return state.status
    return f"{state.status}, {state.wish} asked"


def _age(state: WorkerState, since_ms: int) -> str:
    return shown_duration(max(0, state.read_ms - since_ms))


def _document(state: WorkerState) -> dict[str, Any]:
    return state.model_dump(mode="json")


@admin_command
def show(worker: WorkerName, *, group: Group = None, json: JsonFlag = False, settings: ManagerSettings) -> None:
    """Shows a worker and the handlers that have run for over a second; `lisa-manager abort TOPIC ID` ends one."""
    with opened(settings) as admin:
        state = admin.worker(worker, group=group)
    if json:
        print_json(_document(state))
        return
    facts = {
        "worker": state.name,
        "group": state.group,
        "status": f"{_status(state)} for {_age(state, state.status_since_ms)}",
        "problem": state.problem,
        "host": state.host,
        "process": state.pid,
        "release": state.release or "-",
        "lisa": state.version,
        "began": f"{shown_moment(state.began_ms)}, {_age(state, state.began_ms)} ago",
        "seen": f"{_age(state, state.seen_ms)} ago",
        "topics": ", ".join(state.topics),
        "handlers": f"{state.running} of {state.concurrency} run; {state.held} deliveries are held",
    }
    for name, value in facts.items():
        if value != "":
            say(f"{name:10} {shown(str(value))}")
    if state.handlers:
        say("")
        rows = ([each.topic, each.id, _age(state, each.since_ms)] for each in state.handlers)
        print_table(_HANDLERS, rows)


def _ask(
    settings: ManagerSettings,
    names: list[str],
    group: str | None,
    ask: Callable[..., WorkerState],
    will: str,
    *,
    json: bool,
) -> None:
    with opened(settings) as admin:
        for name in names:
            # Before any is asked: a name that is unknown is refused with nothing done.
            admin.worker(name, group=group)
        states = [ask(admin, name, group=group) for name in names]
    if json:
        print_json(list(map(_document, states)))
        return
    for state in states:
        if state.status is WorkerStatus.SILENT:
            say(f"{state.name} is silent: it may have ended; if it lives, it {will}")
        else:
            say(f"{state.name} {will} within a second or two")


@admin_command
def pause(workers: WorkerNames, *, group: Group = None, json: JsonFlag = False, settings: ManagerSettings) -> None:
    """Pauses workers: they begin nothing more until `resume`. Handlers that run go on."""
    _ask(settings, workers, group, Admin.pause_worker, "pauses", json=json)


@admin_command
def drain(workers: WorkerNames, *, group: Group = None, json: JsonFlag = False, settings: ManagerSettings) -> None:
    """Makes workers drain and end, as SIGTERM does. What supervises a worker may start another."""
    _ask(settings, workers, group, Admin.drain_worker, "drains", json=json)


@admin_command
def resume(workers: WorkerNames, *, group: Group = None, json: JsonFlag = False, settings: ManagerSettings) -> None:
    """Ends pauses of workers, also of those that do not run now.

    Exits with 1 if some of several are unknown.
    """
    resumed: dict[str, bool] = {}
    with opened(settings) as admin:
        for name in workers:
            try:
                resumed[name] = admin.resume_worker(name, group=group)
            except UnknownWorker as error:
                if len(workers) == 1:
                    raise
                say(f"lisa-manager: {error}", error=True)
    if json:
        print_json([{"worker": name, "resumed": was_asked} for name, was_asked in resumed.items()])
    else:
        for name, was_asked in resumed.items():
            say(f"{name} resumes within a second or two" if was_asked else f"{name} was not paused by an operator")
    if len(resumed) < len(set(workers)):
        raise typer.Exit(EXIT_WRONG)
