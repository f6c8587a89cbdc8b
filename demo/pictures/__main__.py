"""Takes the pictures of the docs: `make pictures`.

A shop on a server of its own, with a manager, workers and a gateway; then Chromium and commands at terminals show it.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from demo.pictures.browser import chromium, draw_terminal, take_pages
from demo.pictures.shop import add_reminders, add_traffic, create_topics, wait_for_traffic
from demo.pictures.terminal import run_at_terminal, svg_of
from demo.processes import DemoFailed, Processes
from lisa_common.client.connection import Connection
from lisa_common.client.embedded.server import embedded_server, free_port
from lisa_common.protocol.call import command
from lisa_producer import ProducerSettings

_ROOT = Path(__file__).parents[2]
_BIN = Path(sys.executable).parent
_START_S = 300.0
_WORKERS = ("web-1", "web-2")
_WIDTHS = (80, 160)
_COMMANDS = {"status": "status", "garbage-summary": "garbage summary orders", "doctor": "doctor"}
"""Commands by the names of their pictures."""


def _start(processes: Processes) -> str:
    """Starts a manager, workers and a gateway, and returns the gateway's URL."""
    listen = f"127.0.0.1:{free_port()}"
    processes.start("manager", [str(_BIN / "lisa-manager"), "run"])
    for name in _WORKERS:
        worker = [str(_BIN / "lisa-consumer"), "run", "demo.pictures.billing:worker"]
        processes.start(name, worker, {"SHOP_WORKER": name, "LISA_RELEASE": "1.4.2"})
    # Pages are whole on a busy machine, too.
    gateway = [str(_BIN / "lisa-gateway"), "run", "--dashboard", "--dashboard-wait-s", "10", "--listen", listen]
    processes.start("gateway", gateway)
    deadline = time.monotonic() + _START_S
    for name, text in (("manager", "manager serves"), ("gateway", "gateway listens")):
        while not processes.said(name, text):
            processes.check(name)
            if time.monotonic() > deadline:
                raise DemoFailed(f"{name} is not ready in time")
            time.sleep(0.1)
    return f"http://{listen}"


def _take(directory: Path, logs: Path, redis_url: str) -> None:
    settings = ProducerSettings.load(redis_url=redis_url)
    environment = {"LISA_REDIS_URL": redis_url, "PYTHONPATH": str(_ROOT)}
    create_topics(settings)
    add_traffic(settings)
    with Processes(logs, environment) as processes:
        try:
            url = _start(processes)
            wait_for_traffic(settings)
        except DemoFailed as failure:
            raise DemoFailed(f"{failure}\n{processes.tails()}") from None
        manage = str(_BIN / "lisa-manager")
        run_at_terminal([manage, "worker", "pause", _WORKERS[1]], 80, environment)
        with chromium() as browser:
            add_reminders(settings)
            take_pages(browser, url, directory / "dashboard")
            _endanger(settings)
            for name, words in _COMMANDS.items():
                for width in _WIDTHS:
                    printed = run_at_terminal([manage, *words.split()], width, environment)
                    svg = svg_of(f"lisa-manager {words}", printed, width)
                    draw_terminal(browser, svg, directory / "terminal" / f"{name}-{width}.png")


def _endanger(settings: ProducerSettings) -> None:
    """Sets the server as no server of Lisa may be, so that `doctor` has something to say."""
    with Connection.of(settings, name="pictures") as connection:
        connection.call(command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru", "appendonly", "no"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Takes all pictures, and says by its exit code whether it could."""
    parser = argparse.ArgumentParser(prog="demo.pictures", description=__doc__)
    parser.add_argument("directory", type=Path, nargs="?", default=_ROOT / "docs", help="default: docs")
    directory: Path = parser.parse_args(arguments).directory
    for room in ("dashboard", "terminal"):
        (directory / room).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="lisa-pictures-") as logs, embedded_server() as redis_url:
        try:
            _take(directory, Path(logs), redis_url)
        except DemoFailed as failure:
            print(failure, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
