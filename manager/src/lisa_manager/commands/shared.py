"""What the operator's commands share."""

import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from difflib import get_close_matches
from typing import Annotated

import typer

from lisa_common.cli.completion import completed_by
from lisa_common.cli.options import argument, option, with_settings
from lisa_common.cli.output import say
from lisa_common.cli.program import EXIT_INTERRUPTED, EXIT_WRONG, interrupts_restored
from lisa_common.cli.progress_bar import progress
from lisa_common.errors import LisaError, UnknownGroup, UnknownSchedule, UnknownTopic, UnknownWorker
from lisa_common.escaping import shown
from lisa_common.validation import check_name
from lisa_manager import Admin, BulkResult, ManagerSettings, OnProgress, StopBulk, WorkerStatus

__all__ = [
    "CopiesOfGroup",
    "OneTopic",
    "TopicName",
    "admin_command",
    "complete_schedule",
    "complete_topic",
    "complete_worker",
    "exit_by",
    "find_warnings",
    "opened",
    "print_trace",
    "progress_of",
    "require_group",
    "require_group_of_workers",
    "require_topic",
    "stoppable",
    "warn_of_missing_manager",
]

admin_command = with_settings(ManagerSettings, shared_only=True)
"""Makes a function an operator's command, with options for the server and without those of the daemon."""


def _known(names_of: Callable[[Admin, str], Iterable[str]]) -> Callable[[typer.Context], list[str]]:
    """Returns what completes a value by names that the server knows, of a topic or all."""

    def find(settings: ManagerSettings, ctx: typer.Context) -> list[str]:
        with Admin(settings=settings, patience_s=0.0) as admin:
            # An option whose value is completed leaves arguments unread.
            return list(names_of(admin, ctx.params.get("topic") or next(iter(ctx.args), "")))

    return completed_by(ManagerSettings, find)


def _topics(admin: Admin, _: str = "") -> list[str]:
    return [topic.name for topic in admin.topics()]


def _groups(admin: Admin, topic: str) -> list[str]:
    return [group.group for group in admin.groups(topic)]


def _schedules(admin: Admin, topic: str) -> list[str]:
    return [schedule.name for schedule in admin.list_schedules(topic)]


def _workers(admin: Admin, _: str = "") -> list[str]:
    return [worker.name for worker in admin.workers()]


complete_topic, complete_group = _known(_topics), _known(_groups)
complete_schedule, complete_worker = _known(_schedules), _known(_workers)

TopicName = Annotated[str, argument("The topic.", "TOPIC", complete_topic)]
OneTopic = Annotated[str | None, argument("Only this topic.", "TOPIC", complete_topic)]
CopiesOfGroup = Annotated[str | None, option('Only copies of this group; "" for no group.', "GROUP", complete_group)]


@contextmanager
def opened(settings: ManagerSettings) -> Iterator[Admin]:
    """Yields a client of these settings. Without patience, a command reports at once that the server is away.

    An unknown topic, group, schedule or worker is reported with names that are near.
    """
    with Admin(settings=settings) as admin:
        try:
            yield admin
        except _UNKNOWN as error:
            raise LisaError(f"{error}{_suggestion(admin, error)}") from None


_UNKNOWN = (UnknownTopic, UnknownGroup, UnknownSchedule, UnknownWorker)


def _suggestion(admin: Admin, error: UnknownTopic | UnknownGroup | UnknownSchedule | UnknownWorker) -> str:
    """Returns the end of a sentence; "" where no known name is near."""
    known: Iterable[str] = ()
    # The user may not be allowed to list them.
    with suppress(LisaError):
        if isinstance(error, UnknownGroup):
            wanted, known = error.group, _groups(admin, error.topic)
        elif isinstance(error, UnknownWorker):
            wanted, known = error.worker, set(_workers(admin))
        elif isinstance(error, UnknownSchedule) and error.topic in _topics(admin):
            wanted, known = error.schedule, _schedules(admin, error.topic)
        else:
            wanted, known = error.topic, _topics(admin)
    return _near(wanted, known)


def _near(wanted: str, known: Iterable[str]) -> str:
    names = " or ".join(map(repr, get_close_matches(wanted, known)))
    return f"; did you mean {names}?" if names else ""


def require_topic(admin: Admin, topic: str) -> None:
    """Raises UnknownTopic for a topic that was never declared."""
    if check_name("topic", topic) not in _topics(admin):
        raise UnknownTopic(topic)


def require_group(admin: Admin, topic: str, group: str | None) -> None:
    """Raises UnknownGroup for a group that a topic never had; call it where nothing was found, as it reads much."""
    if group and check_name("group", group) not in _groups(admin, topic):
        raise UnknownGroup(topic, group)


def require_group_of_workers(admin: Admin, group: str) -> None:
    """Raises LisaError for a group without workers, if a group that has workers has a near name."""
    if near := _near(group, {worker.group for worker in admin.workers()}):
        raise LisaError(f"group {group!r} has no workers{near}")


def warn_of_missing_manager(admin: Admin) -> bool:
    """Says on stderr if no manager runs. Returns whether one was missing."""
    if absence := _missing_manager(admin):
        say(shown(absence), error=True)
    return bool(absence)


def find_warnings(admin: Admin, topic: str | None) -> list[str]:
    """Returns one line if no manager runs, and one if workers, of a topic or of all, are stuck."""
    return list(filter(None, (_missing_manager(admin), _stuck_workers(admin, topic))))


def _missing_manager(admin: Admin) -> str:
    # Of a Cluster, only the node of this key may be away.
    with suppress(LisaError):
        return admin.missing_manager()
    return ""


def _stuck_workers(admin: Admin, topic: str | None) -> str:
    # As for managers; and a user may not be allowed to see workers.
    with suppress(LisaError):
        stuck = [worker for worker in admin.workers(topic=topic) if worker.status is WorkerStatus.STUCK]
        if stuck:
            more = f", and {len(stuck) - 1} more" if len(stuck) > 1 else ""
            return f"worker {stuck[0].name} is stuck{more}: {stuck[0].problem}; see lisa-manager worker list"
    return ""


def print_trace(name: str, trace: Sequence[str]) -> None:
    """Prints the stored frames of a traceback, if there are any."""
    if trace:
        say(f"\ntraceback of {shown(name)}:")
    for frame in trace:
        say(f"  {shown(frame)}")


@contextmanager
def progress_of(what: str) -> Iterator[Callable[[int, int], None]]:
    """Shows a progress bar from the first call of its function, which takes the amount done and the total."""
    with ExitStack() as stack:
        steps: list[Callable[[int], None]] = []
        last = 0

        def show(done: int, total: int) -> None:
            nonlocal last
            if not steps:
                steps.append(stack.enter_context(progress(what, total)))
            steps[0](done - last)
            last = done

        yield show


@contextmanager
def stoppable(what: str) -> Iterator[OnProgress]:
    """As `progress_of`, for a call that takes steps: at Ctrl-C it ends after its step, and returns what it has done.

    A second Ctrl-C ends it at once.
    """
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True
        signal.signal(signal.SIGINT, before)

    def report(done: int, total: int) -> None:
        show(done, total)
        if stopping:
            raise StopBulk

    with interrupts_restored() as before:
        with suppress(ValueError):  # only the main thread handles signals
            signal.signal(signal.SIGINT, stop)
        with progress_of(what) as show:
            yield report


def exit_by(result: BulkResult, *, is_fine: bool) -> None:
    """Ends a command with the code of its result, and says so if Ctrl-C ended it early."""
    if result.stopped:
        say("lisa-manager: interrupted; what was counted is done, and no more", error=True)
        raise typer.Exit(EXIT_INTERRUPTED)
    if not is_fine:
        raise typer.Exit(EXIT_WRONG)
