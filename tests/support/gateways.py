"""A gateway and a manager as real processes, and a client of HTTP."""

import itertools
import os
import re
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from support.processes import Process
from support.waiting import wait_until

__all__ = ["Gateways", "wait_for_state"]

_LISTENS = re.compile(r'gateway listens on ([^\s"]+)')


class Gateways:
    """Starts gateways, pushers and managers on one server and prefix; ends them, and fails on a traceback of theirs."""

    def __init__(self, url: str, directory: Path, prefix: str = "") -> None:
        self.url = url
        self.prefix = prefix or f"g{secrets.token_hex(4)}"
        self._directory = directory
        self._numbers = itertools.count()
        self._started: list[Process] = []

    def manager(self, *options: str) -> Process:
        """A manager that serves."""
        manager = self.start("lisa-manager", "run", "--housekeeping-s", "0.1", "--discover-s", "0.2", *options)
        wait_until(lambda: "manager serves" in manager.log or not manager.runs, 90, what="the manager serves")
        return manager

    def gateway(self, *options: str, host: str = "127.0.0.1", **settings: str) -> tuple[Process, str]:
        """A gateway on a free port, and its base URL. `settings` go to the environment."""
        process = self.start("lisa-gateway", "run", "--listen", f"{host}:0", *options, **settings)
        # Longer than `wait_for` waits: it imports much, and machines of tests are busy.
        wait_until(lambda: "gateway listens on" in process.log or not process.runs, 90, what="the gateway listens")
        address = _LISTENS.search(process.log)
        assert address, process.log
        return process, f"http://{address[1]}"

    def start(self, *command: str, url: str | None = None, **settings: str) -> Process:
        """Starts a program of this environment."""
        environment: Mapping[str, str] = {
            **os.environ,
            "LISA_REDIS_URL": url or self.url,
            "LISA_PREFIX": self.prefix,
            **{f"LISA_{name.upper()}": value for name, value in settings.items()},
        }
        log = self._directory / f"{next(self._numbers)}-{command[0]}.log"
        program = str(Path(sys.executable).parent / command[0])
        self._started.append(Process([program, *command[1:]], dict(environment), log))
        return self._started[-1]

    def close(self) -> None:
        """Ends all; raises AssertionError if one of them met what it did not expect."""
        for process in self._started:
            if process.runs:
                process.stop(40)
        for process in self._started:
            assert "Traceback" not in process.log, process.log


def wait_for_state(client: httpx.Client, topic: str, id: str, state: str) -> dict[str, Any]:
    """Waits until a message is in a state; returns what is known of it."""
    found: dict[str, Any] = {}

    def arrived() -> bool:
        found.clear()
        found.update(client.get(f"/v1/topics/{topic}/messages/{id}").json())
        return found.get("state") == state

    wait_until(arrived, 30, what=f"{id} is {state}")
    return found
