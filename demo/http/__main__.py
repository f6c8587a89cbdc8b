"""Plays the day over HTTP: `python -m demo.http`. Exit code 0 only if the ledger balances at the end."""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from demo.flights import AIRPORTS
from demo.http.ledger import audit
from demo.http.wire import Wire
from demo.processes import DemoFailed, Processes
from demo.running import Day, Place, options_of, run
from lisa_common.client.embedded.server import free_port

_HERE = Path(__file__).parent
_BIN = Path(sys.executable).parent
_START_S = 30.0
_SPARE_S = 60.0
_TICK_S = 0.1
_KILL_AT = 0.5
_GATES = 3
"""Clients of each airport."""


class _Stage:
    """All programs of the day; one of the gateways is killed half-way, and started again."""

    def __init__(self, place: Place, day: Day, processes: Processes) -> None:
        self._day = day
        self._processes = processes
        self._journals = place.directory / "journals"
        self._journals.mkdir()
        self._ports = [free_port(), free_port()]
        self._gateways = [f"127.0.0.1:{port}" for port in self._ports]
        self._wire = Wire(self._gateways)
        self._gates: list[str] = []

    def play(self, console: Console) -> bool:
        """Plays the day, and prints the ledger. Returns whether it balances."""
        self._start()
        console.print(f"New York, {self._day}: two gateways, gates in Python, curl and Node where there is one")
        console.print(f"look at http://{self._gateways[1]}/dashboard/ while it lasts")
        began, killed, restarted = time.monotonic(), False, False
        while not (self._processes.done("airline") and self._alive() == 0):
            share = (time.monotonic() - began) / self._day.seconds
            if share > _KILL_AT and not killed:
                self._processes.kill("gateway-1")
                killed = True
                console.print("gateway-1 is killed; the clients go on with gateway-2")
            elif share > _KILL_AT + 0.1 and killed and not restarted:
                self._start_gateway(1)
                restarted = True
            if time.monotonic() - began > self._day.seconds + _SPARE_S:
                raise DemoFailed(f"{self._alive()} messages have not ended in time")
            time.sleep(_TICK_S)
        ledger = audit(self._notes(), self._status_of)
        for name in self._gates:
            self._processes.kill(name)
        self._processes.stop()
        console.print(f"\nThe ledger of {self._day}")
        for line in ledger.lines():
            console.print(line, markup=False)
        return not ledger.problems

    def _start(self) -> None:
        # The day is short, so charts show seconds.
        self._processes.start("manager", [str(_BIN / "lisa-manager"), "run", "--history-s", "1"])
        for number in (1, 2):
            self._start_gateway(number)
        self._wait_for("manager", "manager serves")
        for number in (1, 2):
            self._wait_for(f"gateway-{number}", "gateway listens")
        for airport, command in zip(AIRPORTS, _gate_commands(), strict=True):
            for number in range(_GATES):
                name = f"gate-{airport}-{number + 1}"
                journal = str(self._journals / f"{name}.jsonl")
                self._processes.start(name, [*command, journal, airport, *self._gateways])
                self._gates.append(name)
        airline = [sys.executable, "-m", "demo.http.airline", str(self._journals / "airline.jsonl")]
        self._processes.start("airline", [*airline, str(self._day.date), str(self._day.seconds), *self._gateways])

    def _start_gateway(self, number: int) -> None:
        listen = self._gateways[number - 1]
        command = [str(_BIN / "lisa-gateway"), "run", "--dashboard", "--listen", listen]
        self._processes.start(f"gateway-{number}", command)

    def _wait_for(self, name: str, text: str) -> None:
        deadline = time.monotonic() + _START_S
        while not self._processes.said(name, text):
            self._processes.check(name)
            if time.monotonic() > deadline:
                raise DemoFailed(f"{name} is not ready in time")
            time.sleep(_TICK_S)

    def _alive(self) -> int:
        infos = [self._wire.get("getTopicInfo", topic=airport)["data"] for airport in AIRPORTS]
        return sum(info[f"{name}QueueSize"] for info in infos for name in ("waiting", "ready", "ack"))

    def _status_of(self, topic: str, id: str) -> int:
        answer = self._wire.call("getMsg", topic=topic, msgId=id)
        return int(answer["delayMsg"]["status"]) if "delayMsg" in answer else int(answer["code"])

    def _notes(self) -> Iterator[dict[str, object]]:
        for journal in self._journals.glob("*.jsonl"):
            for line in journal.read_text("utf-8").splitlines():
                yield json.loads(line)


def _gate_commands() -> list[list[str]]:
    python = [sys.executable, "-m", "demo.http.gate"]
    curl = ["bash", str(_HERE / "gate.sh")] if shutil.which("curl") and shutil.which("bash") else python
    node = ["node", str(_HERE / "gate.mjs")] if shutil.which("node") else python
    return [python, curl, node]


def main(arguments: Sequence[str] | None = None) -> int:
    """Plays the day, prints the ledger, and says by its exit code whether it balances."""
    parser = argparse.ArgumentParser(prog="demo.http", description=__doc__)
    options, day = options_of(parser, arguments)
    console = Console(highlight=False, soft_wrap=True)

    def play(place: Place) -> int:
        logs = place.directory / "logs"
        logs.mkdir()
        environment = {
            "LISA_REDIS_URL": place.settings.redis_url.get_secret_value(),
            "LISA_PREFIX": place.settings.prefix,
            "PYTHONPATH": str(_HERE.parents[1]),
        }
        with Processes(logs, environment) as processes:
            try:
                return 0 if _Stage(place, day, processes).play(console) else 1
            except DemoFailed as failure:
                console.print(f"\nthe demo has failed: {failure}\n{processes.tails()}", markup=False)
                return 1

    return run(console, play, shards=options.shards)


if __name__ == "__main__":
    sys.exit(main())
