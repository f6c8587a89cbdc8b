"""The commands of `lisa-consumer`."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import import_module
from typing import Annotated

import typer
from pydantic import SecretStr

from lisa_common.cli.options import with_settings
from lisa_common.cli.waiting import WaitOption, wait_s
from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.async_start import wait_for_server
from lisa_common.collector import spare_collector
from lisa_common.errors import InvalidSettings
from lisa_common.observing.health import Health
from lisa_common.observing.siblings import SharedDirectory, join_siblings
from lisa_common.protocol.call import PING
from lisa_common.signals import run_signalled
from lisa_consumer import metrics
from lisa_consumer.settings import ConsumerSettings
from lisa_consumer.worker.load_worker import load_worker, split_target
from lisa_consumer.worker.processes import drain_with_supervisor, supervise, worker_command
from lisa_consumer.worker.reload import run_reloading
from lisa_consumer.worker.worker import Worker

__all__ = ["run"]


@with_settings(ConsumerSettings, unused=("patience_s",))
def run(
    *,
    worker: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:WORKER", help="The worker to run, or a function that makes it, as in app.tasks:worker."
        ),
    ],
    processes: Annotated[
        int, typer.Option(min=1, max=1_000, help="How many processes to run, each with the whole worker.")
    ] = 1,
    with_manager: Annotated[
        bool, typer.Option("--with-manager", help="Run a manager inside, for development.")
    ] = False,
    reload: Annotated[
        bool, typer.Option("--reload", help="Restart the worker when its code changes, for development.")
    ] = False,
    check: Annotated[bool, typer.Option("--check/--no-check", hidden=True)] = True,
    supervised: Annotated[bool, typer.Option("--supervised", hidden=True)] = False,
    sibling: Annotated[bool, typer.Option("--sibling", hidden=True)] = False,
    override: Annotated[list[str] | None, typer.Option("--override", hidden=True)] = None,
    wait: WaitOption = None,
    settings: ConsumerSettings,
    given: frozenset[str],
) -> None:
    """Runs a worker until SIGTERM or SIGINT, then drains; a second SIGINT (Ctrl-C) ends the drain.

    With several processes, one that dies is replaced. These options override settings in the worker's code, which
    override the environment and lisa.toml.
    """
    patience_s = wait_s(wait)
    if reload:
        split_target(worker)
        sys.exit(run_reloading())
    if supervised:
        drain_with_supervisor()
    _export(settings)
    # Before the module is imported, whose own metrics are to be shared as well.
    shares_metrics = join_siblings()
    loaded = load_worker(worker)
    overridden = sorted(given.union(override or ()))
    loaded.override(settings, overridden)
    spare_collector()
    if sibling:
        if shares_metrics:
            metrics.register()
        loaded.run()
        return
    is_served = partial(_is_served, loaded, patience_s if check else None)
    with _managed(loaded, patience_s) if with_manager else nullcontext():
        if processes > 1:
            command = worker_command(worker, overridden)
            sys.exit(_run_processes(command, loaded, processes, settings.metrics, is_served))
        with _serving(settings.metrics, loaded.health):
            if is_served(loaded.health):
                loaded.run()


def _managed(worker: Worker, patience_s: float) -> AbstractContextManager[None]:
    """Runs a manager of the worker's server while its block runs. Raises InvalidSettings if it is not installed."""
    try:
        # By name, as a worker runs without this package.
        settings = import_module("lisa_manager").ManagerSettings
        running = import_module("lisa_manager.threaded").running_manager
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "lisa_manager":
            raise
        raise InvalidSettings("--with-manager needs another package: pip install lisa-manager") from None
    chosen = settings.load(redis_url=worker.url, prefix=worker.settings.prefix)
    manager: AbstractContextManager[None] = running(chosen.model_copy(update={"metrics": None}), patience_s=patience_s)
    return manager


def _run_processes(
    command: Sequence[str], loaded: Worker, count: int, address: str | None, is_served: Callable[[Health], bool]
) -> int:
    health = Health()
    with (
        SharedDirectory(count, with_metrics=address is not None) as siblings,
        _serving(address, health, siblings),
    ):
        return supervise(command, siblings, health, drain_s=loaded.settings.drain_s) if is_served(health) else 0


def _serving(
    address: str | None, health: Health, siblings: SharedDirectory | None = None
) -> AbstractContextManager[object]:
    """Serves metrics, the user's included, and health if an address is given: of all siblings, or of this process."""
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
        text = json.dumps(value) if isinstance(value, dict) else str(value)
        text = value.get_secret_value() if isinstance(value, SecretStr) else text
        os.environ[f"LISA_{name.upper()}"] = text


def _is_served(worker: Worker, patience_s: float | None, health: Health) -> bool:
    """Waits for the server, unless `patience_s` is None. Returns False if the program was stopped before."""
    return patience_s is None or run_signalled(_wait_for_server(worker, health, patience_s))


async def _wait_for_server(worker: Worker, health: Health, patience_s: float) -> bool:
    """Waits for the server, not ready meanwhile. Returns False if the program was stopped before. Raises LisaError."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    async with (
        AsyncConnection.of(worker.settings, name="lisa-worker", url=worker.url) as connection,
        health.waiting("server") as explain,
    ):
        return await wait_for_server(
            lambda: connection.call(PING), patience_s=patience_s, stopping=stopping, explain=explain
        )
