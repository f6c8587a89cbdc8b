"""The commands of `lisa-consumer`."""

import asyncio
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated

import typer
from pydantic import SecretStr

from lisa_common.cli import new_program, with_settings
from lisa_common.client.async_connection import AsyncConnection
from lisa_common.observing.health import Health
from lisa_common.observing.siblings import SharedDirectory, join_siblings
from lisa_common.protocol.call import command
from lisa_consumer import metrics
from lisa_consumer.load_worker import load_worker
from lisa_consumer.processes import drain_with_supervisor, supervise, worker_command
from lisa_consumer.settings import ConsumerSettings
from lisa_consumer.worker import Worker

__all__ = ["program"]

program = new_program("lisa-consumer", "Runs workers of Lisa, a delay queue on Redis Streams.")


@program.command()
@with_settings(ConsumerSettings)
def run(
    *,
    worker: Annotated[str, typer.Argument(metavar="MODULE:WORKER", help="The worker to run, as in app.tasks:worker.")],
    processes: Annotated[
        int, typer.Option(min=1, max=1_000, help="How many processes to run, each with the whole worker.")
    ] = 1,
    check: Annotated[bool, typer.Option("--check/--no-check", hidden=True)] = True,
    supervised: Annotated[bool, typer.Option("--supervised", hidden=True)] = False,
    settings: ConsumerSettings,
) -> None:
    """Runs a worker until SIGTERM or SIGINT, then drains.

    With several processes, one that dies is replaced. Settings in the worker's code override these options.
    """
    if supervised:
        drain_with_supervisor()
    _export(settings)
    # Before the module is imported, whose own metrics are to be shared as well.
    shares_metrics = join_siblings()
    loaded = load_worker(worker)
    if check:
        asyncio.run(_check(loaded))
    if processes > 1:
        sys.exit(_run_processes(worker, loaded, processes, settings.metrics))
    if supervised:
        if shares_metrics:
            metrics.register()
        loaded.run()
        return
    with _serving(settings.metrics, loaded.health):
        loaded.run()


def _run_processes(target: str, loaded: Worker, count: int, address: str | None) -> int:
    health = Health()
    with (
        SharedDirectory(count, with_metrics=address is not None) as siblings,
        _serving(address, health, siblings),
    ):
        return supervise(worker_command(target), siblings, health, drain_s=loaded.settings.drain_s)


def _serving(
    address: str | None, health: Health, siblings: SharedDirectory | None = None
) -> AbstractContextManager[object]:
    """Serves metrics and health where an address is given: of all siblings, or of this process, with the user's own."""
    if address is None:
        return nullcontext()
    metrics.register()
    # Imported here, as only this needs the extra.
    from lisa_common.observing import prometheus  # noqa: PLC0415
    from lisa_common.observing.server import serving  # noqa: PLC0415

    return serving(address, prometheus.collected_from(siblings.path) if siblings else prometheus.default(), health)


def _export(settings: ConsumerSettings) -> None:
    """Exports the settings to the environment, where the worker's module and its processes load them."""
    for name in settings.model_fields_set:
        value = getattr(settings, name)
        text = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
        os.environ[f"LISA_{name.upper()}"] = text


async def _check(worker: Worker) -> None:
    """Raises LisaError if there is no server: at the start that is a mistake, later a worker survives it."""
    async with AsyncConnection.of(worker.settings, name="lisa-worker", url=worker.url) as connection:
        await connection.call(command("PING"))
