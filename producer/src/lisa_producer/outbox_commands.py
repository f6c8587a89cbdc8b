"""`lisa-producer outbox run | ddl | status | check`. The outbox is an extra, imported when a command needs it."""

import asyncio
import logging
import signal
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from lisa_common.cli.options import JsonFlag, with_settings
from lisa_common.cli.output import print_json, say
from lisa_common.cli.program import EXIT_WRONG
from lisa_common.client.async_tasks import beside
from lisa_common.escaping import shown
from lisa_common.logs import event
from lisa_common.observing.health import Health
from lisa_common.signals import run_signalled
from lisa_producer.settings import ProducerSettings

if TYPE_CHECKING:
    from lisa_producer.outbox.relay import Relay

__all__ = ["check", "ddl_", "run", "status"]

logger = logging.getLogger(__name__)

Database = Annotated[
    str,
    typer.Option(metavar="URL", envvar="DATABASE_URL", help="SQLAlchemy's URL of the database.", show_default=False),
]


@with_settings(ProducerSettings)
def run(
    *,
    database: Database,
    rows: Annotated[int, typer.Option(help="Most rows to send at once.")] = 1_000,
    poll_s: Annotated[float, typer.Option(help="Longest pause between polls, in seconds.")] = 1.0,
    lease_s: Annotated[float, typer.Option(help="Time until another relay takes over from a dead one.")] = 15.0,
    listen: Annotated[bool, typer.Option("--listen", help="Wait for NOTIFY too, in PostgreSQL by psycopg 3.")] = False,
    settings: ProducerSettings,
) -> None:
    """Relays rows to Redis until SIGTERM. Any number of relays may run at once; there is no leader."""
    from lisa_producer.outbox import Relay  # noqa: PLC0415
    from lisa_producer.outbox.engine import opened  # noqa: PLC0415
    from lisa_producer.outbox.metrics import observed  # noqa: PLC0415

    health = Health()
    with (
        opened(database) as engine,
        Relay(engine, settings=settings, rows=rows, poll=poll_s, lease=lease_s, listen=listen) as relay,
        observed(settings.metrics, engine, health),
    ):
        run_signalled(_run(relay, health))


async def _run(relay: "Relay", health: Health) -> None:
    health.notifies = True
    health.check("outbox", lambda: relay.problem)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, relay.stop)
    logger.info("relay serves the outbox", extra=event("outbox_served"))
    async with beside(health.run()):
        await asyncio.to_thread(relay.run)


def ddl_(*, dialect: Annotated[str, typer.Option(help="postgresql, mysql, mariadb or sqlite.")] = "postgresql") -> None:
    """Prints the statements that create the tables of the outbox."""
    from lisa_producer.outbox import ddl  # noqa: PLC0415

    for statement in ddl(dialect):
        print(f"{statement};\n")  # noqa: T201


def status(*, database: Database, json: JsonFlag = False) -> None:
    """Counts the rows that wait, and those that were set aside; exits with 1 if any was set aside."""
    from lisa_producer.outbox.engine import opened  # noqa: PLC0415
    from lisa_producer.outbox.inspection import read_backlog  # noqa: PLC0415

    with opened(database) as engine:
        backlog = read_backlog(engine)
    if json:
        print_json(asdict(backlog))
    else:
        say(f"waiting {backlog.waiting}, the oldest for {backlog.oldest_s:.3f} s; set aside {backlog.set_aside}")
    if backlog.set_aside:
        raise typer.Exit(EXIT_WRONG)


def check(*, database: Database, json: JsonFlag = False) -> None:
    """Looks for missing tables, columns and indexes, rows that were set aside, and rows that no relay works on.

    Exits with 1 if it finds any.
    """
    from lisa_producer.outbox.engine import opened  # noqa: PLC0415
    from lisa_producer.outbox.inspection import find_problems  # noqa: PLC0415

    with opened(database) as engine:
        problems = find_problems(engine)
    if json:
        print_json({"problems": problems})
    else:
        for problem in problems or ("the outbox is well",):
            say(shown(problem))
    if problems:
        raise typer.Exit(EXIT_WRONG)
