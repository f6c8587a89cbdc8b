"""A Redis or Valkey server of our own, which can be stopped, killed, frozen and restarted."""

import os
import resource
import signal
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.ports import reserved_port
from support.waiting import wait_until

NO_RETRY = Retry(NoBackoff(), 0)  # redis-py tries again by itself otherwise
_LOG_TAIL = 2000


class Server:
    """One server process on one port of the loopback interface, with one data directory.

    Port and directory stay its own until it is closed, so that after a restart clients find it again and
    persisted data comes back. Nothing is persisted unless `config` says so, for example
    `{"appendonly": "yes"}`; its names are those of redis.conf. `environment` adds to ours.
    """

    def __init__(
        self,
        binary: Path,
        directory: Path,
        *,
        config: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.binary = binary
        self.directory = directory
        self._reservation = ExitStack()
        self.port = self._reservation.enter_context(reserved_port())
        self.config = {"save": "", **(config or {})}
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where the server is, or will be again."""
        return f"redis://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process id; only a running server has one."""
        return self._running().pid

    def start(self, timeout: float = 20.0) -> "Server":
        """Start the process and return once it answers PING, which it refuses while loading."""
        if self._process is not None:
            message = "the server runs already"
            raise RuntimeError(message)
        self.directory.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            # Signals stay as Python has them: SIGXFSZ, which ends a server on a full disk of RLIMIT_FSIZE, is ignored.
            self._process = subprocess.Popen(
                self._command(), env=self._environment, stdout=log, stderr=log, restore_signals=False
            )
        try:
            wait_until(self._answers, timeout, what=f"{self.binary.name} on port {self.port}")
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """Stop it as an operator does (SIGTERM): what is persisted is written out first."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Stop it as a crash does (SIGKILL): nothing is written out, clients see a reset."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop it by SIGTERM and start it again on the same port and data."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Stop answering without closing a connection, as a hung server does (SIGSTOP)."""
        self._running().send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Go on after `freeze`."""
        self._running().send_signal(signal.SIGCONT)

    def fill_disk(self) -> None:
        """Let no file of the server grow any more (RLIMIT_FSIZE), as on a full disk: Redis answers MISCONF."""
        # The limit stops its log, too, which does not matter; the append-only file is larger than the limit.
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))

    def free_disk(self) -> None:
        """Go on after `fill_disk`."""
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def close(self) -> None:
        """Make sure that nothing runs any more, whatever was done before, and give up the port."""
        if self._process is not None:
            self.kill()
        self._reservation.close()

    def client(self) -> "redis.Redis":
        """Return a new client of this server; the caller closes it."""
        return redis.Redis(port=self.port, password=self._password, protocol=2, socket_timeout=10)

    @property
    def _password(self) -> str | None:
        return self.config.get("requirepass")

    @property
    def _log(self) -> Path:
        return self.directory / "server.log"

    def _command(self) -> list[str]:
        options = {"port": str(self.port), "bind": "127.0.0.1", "dir": str(self.directory)}
        options |= self.config
        return [str(self.binary), *(word for k, v in options.items() for word in (f"--{k}", v))]

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            message = "the server does not run"
            raise RuntimeError(message)
        return self._process

    def _answers(self) -> bool:
        if self._running().poll() is not None:
            tail = self._log.read_text(errors="replace")[-_LOG_TAIL:]
            message = f"{self.binary.name} ended by itself:\n{tail}"
            raise RuntimeError(message)
        try:
            with redis.Redis(port=self.port, password=self._password, socket_timeout=1, retry=NO_RETRY) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def _end(self, how: signal.Signals) -> None:
        process = self._running()
        process.send_signal(how)
        process.send_signal(signal.SIGCONT)  # a frozen process ends only after SIGCONT
        process.wait(timeout=60)
        self._process = None


def count_calls(client: "redis.Redis", command: str) -> int:
    """Return how often clients of a server have made a command, `client|id` for example."""
    return int(client.info("commandstats").get(f"cmdstat_{command}", {}).get("calls", 0))


def lease_ages_ms(client: "redis.Redis", ready: str, group: str = "billing") -> list[int]:
    """Return how long ago the lease of each delivery was given or renewed, in ms.

    One that was renewed last within its length is held, however often this process or the server has stalled before.
    """
    return [int(each["time_since_delivered"]) for each in client.xpending_range(ready, group, "-", "+", 1_000)]


def reads_wait(client: "redis.Redis") -> bool:
    """Return whether a client waits for messages in a read of a group."""
    return any(each["cmd"] == "xreadgroup" and "b" in each["flags"] for each in client.client_list())
