"""Plays the shop: `make demo-outbox`. Exit code 0 only if the ledger balances at the end."""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from sqlalchemy import Engine, create_engine, func, select

from demo.outbox.ledger import Ledger
from demo.outbox.shop import DUE_S, METADATA, ORDERS, CardDeclined, SoldOut, pay, place
from demo.processes import DemoFailed, Processes
from demo.running import Place, run
from demo.server import Server
from lisa_producer.outbox.table import ROWS
from support.databases import Database, NotInstalled, postgresql

_ROOT = Path(__file__).parents[2]
_BIN = Path(sys.executable).parent
_RELAYS = ("relay-1", "relay-2")
_START_S, _SPARE_S = 20.0, 20.0
_PAUSE_S = 0.02
_KILLS = 0.06
"""The chance in each turn that a relay is killed."""
_PAYS_AFTER = 25
"""Orders between an order and its payment: half a second."""


class _Shop:
    """The shop and its programs. A relay is killed as soon as it has worked for a random while."""

    def __init__(self, server: Server, engine: Engine, processes: Processes, journal: Path) -> None:
        self._server = server
        self._engine = engine
        self._processes = processes
        self._journal = journal
        self._sold_out, self._declined = set[int](), set[int]()
        self._kills = 0

    def play(self, console: Console, seconds: float) -> bool:
        """Trades, waits until all messages have ended, and prints the ledger. Returns True if it balances."""
        self._start()
        console.print(f"{seconds:g} s of orders, each due after {DUE_S} s; transactions roll back, relays are killed")
        began, order = time.monotonic(), 0
        while time.monotonic() < began + seconds:
            order += 1
            self._trade(order)
            self._kill_at_random()
            time.sleep(_PAUSE_S)
        console.print(f"{order} orders, {self._kills} kills; waiting for the last order to be due")
        # In this order: a row leaves the outbox once it is a message.
        self._wait(lambda: self._rows() == 0 == self._server.alive(), DUE_S + _SPARE_S)
        self._processes.stop()
        ledger = self._ledger()
        console.print(f"\nThe ledger of the shop, after {time.monotonic() - began:.0f} s")
        for line in ledger.lines():
            console.print(line, markup=False)
        return not any(ledger.problems())

    def _start(self) -> None:
        METADATA.create_all(self._engine)
        self._journal.touch()
        self._processes.start("manager", [str(_BIN / "lisa-manager"), "run"])
        self._processes.start("worker", [str(_BIN / "lisa-consumer"), "run", "demo.outbox.billing:worker"])
        for name in _RELAYS:
            self._start_relay(name)
        self._wait(lambda: all(map(self._serves, _RELAYS)), _START_S)

    def _start_relay(self, name: str) -> None:
        self._processes.start(name, [str(_BIN / "lisa-producer"), "outbox", "run", "--lease-s", "1"])

    def _serves(self, name: str) -> bool:
        return self._processes.said(name, "relay serves the outbox")

    def _trade(self, order: int) -> None:
        """Places an order, and pays an older one."""
        try:
            place(self._engine, order, sold_out=random.random() < 0.2)  # noqa: PLR2004
        except SoldOut:
            self._sold_out.add(order)
        older = order - _PAYS_AFTER
        if older > 0 and older not in self._sold_out and random.random() < 0.4:  # noqa: PLR2004
            try:
                pay(self._engine, older, declined=random.random() < 0.25)  # noqa: PLR2004
            except CardDeclined:
                self._declined.add(older)

    def _kill_at_random(self) -> None:
        """Now and then kills a relay, and starts it again. The other one serves: payments must not come too late."""
        name = random.choice(_RELAYS)
        if random.random() < _KILLS and all(map(self._serves, _RELAYS)):
            self._processes.kill(name)
            self._start_relay(name)
            self._kills += 1

    def _rows(self) -> int:
        with self._engine.connect() as connection:
            return connection.scalar(select(func.count()).select_from(ROWS)) or 0

    def _wait(self, is_done: Callable[[], bool], limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while not is_done():
            self._processes.check("manager", "worker", *_RELAYS)
            if time.monotonic() > deadline:
                raise DemoFailed(f"{limit_s:g} s were not enough: {self._rows()} rows, {self._server.alive()} messages")
            time.sleep(_PAUSE_S)

    def _ledger(self) -> Ledger:
        with self._engine.connect() as connection:
            orders = {row.id: row.paid for row in connection.execute(select(ORDERS))}
        deliveries: dict[str, Counter[int]] = {"orders": Counter(), "receipts": Counter()}
        for line in self._journal.read_text("utf-8").splitlines():
            topic, order = line.split()
            deliveries[topic][int(order)] += 1
        return Ledger(orders, self._sold_out, self._declined, deliveries["orders"], deliveries["receipts"], self._kills)


def _play(console: Console, place_: Place, database: Database, seconds: float) -> int:
    logs, journal = place_.directory / "logs", place_.directory / "journal"
    logs.mkdir()
    environment = {
        "LISA_REDIS_URL": place_.settings.redis_url.get_secret_value(),
        "LISA_PREFIX": place_.settings.prefix,
        "LISA_LOG_LEVEL": "info",
        "DATABASE_URL": database.url,
        "DEMO_JOURNAL": str(journal),
        "PYTHONPATH": str(_ROOT),
    }
    engine = create_engine(database.url)
    with Processes(logs, environment) as processes, Server(place_.settings) as server:
        try:
            return 0 if _Shop(server, engine, processes, journal).play(console, seconds) else 1
        except DemoFailed as failure:
            console.print(f"\nthe demo has failed: {failure}\n{processes.tails()}", markup=False)
            return 1
        finally:
            engine.dispose()


def main(arguments: Sequence[str] | None = None) -> int:
    """Plays the shop, prints the ledger, and says by its exit code whether it balances."""
    parser = argparse.ArgumentParser(prog="demo.outbox", description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0, help="how long it trades (default: %(default)g)")
    seconds = parser.parse_args(arguments).seconds
    if not 3 <= seconds <= 30:  # noqa: PLR2004 - said in the message
        parser.error("--seconds: from 3 to 30, so that the demo ends within a minute")
    console = Console(highlight=False, soft_wrap=True)

    try:
        with postgresql() as database:
            return run(console, lambda place_: _play(console, place_, database, seconds), shards=1)
    except NotInstalled as missing:
        sys.exit(f"demo.outbox: {missing}")


if __name__ == "__main__":
    sys.exit(main())
