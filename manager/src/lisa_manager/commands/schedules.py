"""`lisa-manager schedule list | show | set | pause | resume | run-now | skip | backfill | delete | import`."""

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import typer

from lisa_common.cli.columns import Column
from lisa_common.cli.options import JsonFlag, YesFlag, argument, option
from lisa_common.cli.output import print_json, print_table, say, shown_duration, shown_exactly, shown_moment
from lisa_common.cli.parse import read_headers, read_moment
from lisa_common.cli.program import confirm
from lisa_common.errors import InvalidInput, Verbatim
from lisa_manager import DEFAULT, ManagerSettings, Schedule, ScheduleState
from lisa_manager.commands.bodies import read_body
from lisa_manager.commands.schedule_fields import read_schedule_file, value_of
from lisa_manager.commands.shared import admin_command, complete_schedule, complete_topic, opened, require_topic

__all__ = ["backfill", "delete", "import_", "list_", "pause", "resume", "run_now", "set_", "show", "skip"]

_SHOWN_TICKS = 10

Topic = Annotated[str, argument("Where its messages go.", "TOPIC", complete_topic)]
Name = Annotated[str, argument("The schedule.", "NAME", complete_schedule)]


Text = str | None


@admin_command
def list_(
    *,
    topic: Annotated[Text, option("Only those of this topic.", "TOPIC")] = None,
    json: JsonFlag = False,
    settings: ManagerSettings,
) -> None:
    """Lists schedules: when each runs, its next tick, and how many ticks were sent and left out."""
    with opened(settings) as admin:
        states = admin.list_schedules(topic)
        if topic and not states:
            require_topic(admin, topic)
    if json:
        print_json([_document(state) for state in states])
        return
    counts = (Column(title, number=True) for title in ("sent", "skipped"))
    columns = (*map(Column, ("topic", "schedule", "runs")), Column("next", whole=True), *counts)
    print_table(columns, map(_row, states), nothing="no schedules")


def _row(state: ScheduleState) -> list[object]:
    if state.schedule is None:
        return [state.topic, state.name or "-", "damaged", state.damage, "-", "-"]
    return [state.topic, state.name, state.in_words, _next(state), state.sent, state.skipped]


def _next(state: ScheduleState) -> str:
    if state.schedule is not None and state.schedule.paused:
        return "paused"
    if state.next_ms is None:
        return "no more"
    late_ms = state.now_ms - state.next_ms
    return f"{shown_moment(state.next_ms)}, {'late' if late_ms > 0 else 'in'} {shown_duration(abs(late_ms))}"


@admin_command
def show(topic: Topic, name: Name, *, json: JsonFlag = False, settings: ManagerSettings) -> None:
    """Shows a schedule and its next ten runs."""
    with opened(settings) as admin:
        state = admin.schedule(topic, name)
    if json:
        print_json(_document(state) | {"next_ticks_ms": state.next_ticks(_SHOWN_TICKS)})
        return
    if state.schedule is None:
        raise InvalidInput("stored schedule", Verbatim(state.damage), "one that Lisa has written; set it anew")
    facts: list[tuple[str, object]] = [
        ("topic", state.topic),
        ("schedule", state.name),
        ("runs", state.in_words),
        ("next", _next(state)),
        ("sent", f"{state.sent}, with the message of the next run" if state.is_sent_ahead else state.sent),
        ("skipped", state.skipped),
        *(_shown_field(*field) for field in state.schedule.dump().items() if field[0] != "body_base64"),
    ]
    for fact, value in facts:
        say(f"{fact}: {value}")
    for tick_ms in state.next_ticks(_SHOWN_TICKS):
        say(f"  {_in_words(tick_ms, state.schedule)}, in {shown_duration(max(0, tick_ms - state.now_ms))}")


def _shown_field(field: str, value: Any) -> tuple[str, object]:
    """A field by the name and the form that its option has."""
    if not field.endswith("_ms"):
        return field, value
    return field.removesuffix("_ms"), (shown_moment if field in ("from_ms", "until_ms") else shown_exactly)(value)


def _in_words(tick_ms: int, schedule: Schedule) -> str:
    """A tick as people say it, in the zone of the schedule: "Monday, 23 November 2026, 02:30:00 CET"."""
    zone = UTC if schedule.tz == "UTC" else ZoneInfo(schedule.tz)
    moment = datetime.fromtimestamp(tick_ms / 1000, UTC).astimezone(zone)
    return f"{moment:%A, {moment.day} %B %Y, %H:%M:%S %Z}"


def _document(state: ScheduleState) -> dict[str, Any]:
    names = ("topic", "name", "version", "last_ms", "next_ms", "is_sent_ahead", "sent", "skipped", "in_words", "damage")
    schedule = state.schedule
    if schedule is None:
        return {name: getattr(state, name) for name in names}
    fields = schedule.model_dump(exclude={"topic", "name", "body"}) | {"body": read_body(schedule.body)}
    return {name: getattr(state, name) for name in names} | {"schedule": fields}


@admin_command
def set_(
    topic: Topic,
    name: Name,
    *,
    every: Annotated[Text, option("Runs at the multiples of this time: 30s, 15m, 1h30m, 7d.", "TIME")] = None,
    cron: Annotated[Text, option("Runs by this expression: '30 2 * * MON-FRI'.", "EXPRESSION")] = None,
    tz: Annotated[Text, option("The time zone of the expression; UTC.", "ZONE")] = None,
    body: Annotated[Text, option("Text, sent unchanged.", "BODY")] = None,
    header: Annotated[list[str] | None, option("Header of its messages; may be repeated.", "KEY=VALUE")] = None,
    ttl: Annotated[Text, option("Deliver at most this long after the tick.", "TIME")] = None,
    max_retries: Annotated[Text, option("Most retries after the first delivery.", "NUMBER")] = None,
    priority: Annotated[Text, option("Highest first among messages due in the same ms.", "NUMBER")] = None,
    start: Annotated[Text, typer.Option("--from", help="No tick before.", metavar="MOMENT", show_default=False)] = None,
    until: Annotated[Text, option("No tick after.", "MOMENT")] = None,
    catchup: Annotated[Text, option("Ticks to send late: latest, all or none.", "WHICH")] = None,
    catchup_window: Annotated[Text, option("How late, with all; 1d.", "TIME")] = None,
    catchup_within: Annotated[Text, option("Send ticks up to so late, and skip older ones.", "TIME")] = None,
    overlap: Annotated[Text, option("While a message is not done: allow another, or skip it.", "HOW")] = None,
    jitter: Annotated[Text, option("Delay each tick by less than this.", "TIME")] = None,
    json: JsonFlag = False,
    settings: ManagerSettings,
) -> None:
    """Makes a schedule, or changes the given fields of one. The value `default` sets a field back."""
    texts = {"every": every, "cron": cron, "tz": tz, "body": body, "ttl": ttl}
    texts |= {"max_retries": max_retries, "priority": priority, "start": start, "until": until, "catchup": catchup}
    texts |= {"catchup_window": catchup_window, "catchup_within": catchup_within, "overlap": overlap, "jitter": jitter}
    changes = {field: value_of(field, text, DEFAULT) for field, text in texts.items() if text is not None}
    if header:
        changes["headers"] = DEFAULT if header == ["default"] else read_headers(header)
    if not changes:
        raise InvalidInput("schedule", Verbatim("nothing"), "given at least one field to set, as in --every 15m")
    with opened(settings) as admin:
        changed = admin.set_schedule(topic, name, **changes)
        state = admin.schedule(topic, name)
    told = f"{name}: {'' if changed else 'unchanged; '}{state.in_words}; next {_next(state)}"
    _print_change(state, told, changed=changed, json=json)


def _print_change(state: ScheduleState, told: str, *, changed: bool, json: bool) -> None:
    print_json({"changed": changed} | _document(state)) if json else say(told)


@admin_command
def pause(topic: Topic, name: Name, *, json: JsonFlag = False, settings: ManagerSettings) -> None:
    """Pauses a schedule: it sends nothing until it is resumed."""
    with opened(settings) as admin:
        changed = admin.pause_schedule(topic, name)
        state = admin.schedule(topic, name)
    _print_change(state, f"{name} is paused" if changed else f"{name} is paused already", changed=changed, json=json)


@admin_command
def resume(topic: Topic, name: Name, *, json: JsonFlag = False, settings: ManagerSettings) -> None:
    """Resumes a paused schedule with its next tick. Ticks of the pause are not sent."""
    with opened(settings) as admin:
        changed = admin.resume_schedule(topic, name)
        state = admin.schedule(topic, name)
    told = f"{name} {'runs again' if changed else 'is not paused'}; next {_next(state)}"
    _print_change(state, told, changed=changed, json=json)


@admin_command
def run_now(topic: Topic, name: Name, *, json: JsonFlag = False, settings: ManagerSettings) -> None:
    """Sends the message of a schedule now, beside its ticks."""
    with opened(settings) as admin:
        id = admin.run_now(topic, name)
    if json:
        print_json({"topic": topic, "schedule": name, "id": id})
    else:
        say(f"sent {id}")


@admin_command
def skip(topic: Topic, name: Name, *, json: JsonFlag = False, settings: ManagerSettings) -> None:
    """Leaves out the next tick of a schedule."""
    with opened(settings) as admin:
        tick_ms = admin.skip_tick(topic, name)
        state = admin.schedule(topic, name)
    if json:
        print_json({"topic": topic, "schedule": name, "skipped_ms": tick_ms, "next_ms": state.next_ms})
    elif tick_ms is None:
        say(f"{name} has no more ticks")
    else:
        say(f"{name} leaves out {shown_moment(tick_ms)}; next {_next(state)}")


@admin_command
def backfill(
    topic: Topic,
    name: Name,
    *,
    start: Annotated[str, typer.Option("--from", help="The first moment.", metavar="MOMENT", show_default=False)],
    end: Annotated[str, typer.Option("--to", help="The last moment.", metavar="MOMENT", show_default=False)],
    json: JsonFlag = False,
    settings: ManagerSettings,
) -> None:
    """Sends the ticks of a past range, whether or not they were sent before."""
    with opened(settings) as admin:
        result = admin.backfill(topic, name, read_moment("from", start), read_moment("to", end))
    if json:
        print_json({"topic": topic, "schedule": name} | asdict(result))
    else:
        known = result.ticks - result.sent
        say(f"sent {result.sent:,} ticks of {name}" + (f"; {known:,} had been sent just before" if known else ""))


@admin_command
def delete(
    topic: Topic, name: Name, *, yes: YesFlag = False, json: JsonFlag = False, settings: ManagerSettings
) -> None:
    """Deletes a schedule. Messages that are due stay."""
    with opened(settings) as admin:
        state = admin.schedule(topic, name)
        confirm(f"Delete schedule {name} of topic {topic} ({state.in_words or 'damaged'})?", yes=yes)
        admin.delete_schedule(topic, name)
    _print_change(state, f"deleted {name}", changed=True, json=json)


@admin_command
def import_(
    file: Annotated[Path, argument("TOML; - for standard input.", "FILE")],
    *,
    prune: Annotated[list[str] | None, option("Delete its other schedules; * for all topics.", "TOPIC")] = None,
    json: JsonFlag = False,
    settings: ManagerSettings,
) -> None:
    """Makes schedules as the tables [schedules.TOPIC.NAME] of a TOML file say; other fields have their defaults."""
    schedules = read_schedule_file(file)
    with opened(settings) as admin:
        result = admin.import_schedules(schedules, prune=prune or ())
    if json:
        print_json(asdict(result))
    else:
        counts = ((len(names), what) for what, names in asdict(result).items())
        say(", ".join(f"{count} {what}" for count, what in counts))
