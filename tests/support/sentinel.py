"""A master, two replicas and three sentinels, as real processes."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import redis

from support.server import Server
from support.waiting import wait_until

__all__ = ["SERVICE", "Sentinel", "SentinelGroup", "sentinel_group"]

SERVICE = "lisa-master"


class Sentinel(Server):
    """A sentinel: it keeps its state in its file of settings."""

    def __init__(self, binary: Path, directory: Path, settings: list[str], config: Mapping[str, str]) -> None:
        super().__init__(binary, directory, config=config)
        self._file = directory / "sentinel.conf"
        directory.mkdir(parents=True)
        self._file.write_text("".join(f"sentinel {line}\n" for line in settings), "utf-8")

    def _command(self) -> list[str]:
        program, *options = super()._command()
        return [program, str(self._file), "--sentinel", *options]


@dataclass(frozen=True, slots=True)
class SentinelGroup:
    """Its processes, to kill and freeze."""

    servers: list[Server]
    sentinels: list[Server]

    @property
    def url(self) -> str:
        """Of the service."""
        return self.url_of(SERVICE)

    def url_of(self, service: str, login: str = "", options: str = "") -> str:
        """Of any service, with `user:password@` and `?options`."""
        nodes = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{login}{nodes}/{service}{options}"

    @property
    def master(self) -> Server:
        """The master by the majority of sentinels."""
        told = [port for sentinel in self.sentinels if (port := self._master_by(sentinel))]
        return next(server for server in self.servers if server.port == max(told, key=told.count))

    def state(self, sentinel: Server) -> dict[str, Any]:
        """The facts that a sentinel has about the service."""
        with sentinel.client() as client:
            state: dict[str, Any] = client.sentinel_master(SERVICE)
            return state

    def _master_by(self, sentinel: Server) -> int:
        try:
            return int(self.state(sentinel)["port"])
        except redis.RedisError:
            return 0

    def wait_until_complete(self) -> None:
        """Waits until all replicas follow, and all sentinels know each other and them."""
        master = self.servers[0]
        with master.client() as client:
            wait_until(lambda: _online(client) == len(self.servers) - 1, 30, what="the replicas")
        for sentinel in self.sentinels:
            sentinel.start()
        for sentinel in self.sentinels:
            wait_until(partial(self._knows_all, sentinel), 90, what="the sentinels")

    def _knows_all(self, sentinel: Server) -> bool:
        state = self.state(sentinel)
        known = int(state["num-slaves"]), int(state["num-other-sentinels"])
        return known == (len(self.servers) - 1, len(self.sentinels) - 1)

    def wait_for_another_master(self, than: Server) -> Server:
        """Waits until all sentinels agree on another master, and returns it."""
        others = {server.port for server in self.servers if server is not than}

        def agreed() -> bool:
            told = {self._master_by(sentinel) for sentinel in self.sentinels}
            return len(told) == 1 and told <= others

        wait_until(agreed, 60, what="another master")
        return self.master


def _online(client: "redis.Redis") -> int:
    info = client.info("replication")
    return sum(info[f"slave{n}"]["state"] == "online" for n in range(info["connected_slaves"]))


@contextmanager
def sentinel_group(
    binary: Path,
    directory: Path,
    *,
    password: str = "",
    sentinel_password: str = "",
    down_after_ms: int = 1_000,
) -> Iterator[SentinelGroup]:
    """Runs a group; the servers and the sentinels may each want a password of the default user."""
    config = {"repl-diskless-sync-delay": "0"}
    if password:
        config |= {"requirepass": password, "masterauth": password}
    with ExitStack() as stack:
        master = Server(binary, directory / "server-0", config=config)
        follow = config | {"replicaof": f"127.0.0.1 {master.port}"}
        servers = [master, *(Server(binary, directory / f"server-{n}", config=follow) for n in (1, 2))]
        settings = [
            f"monitor {SERVICE} 127.0.0.1 {master.port} 2",
            f"down-after-milliseconds {SERVICE} {down_after_ms}",
            f"failover-timeout {SERVICE} 5000",
            *([f"auth-pass {SERVICE} {password}"] if password else []),
        ]
        guard = {"requirepass": sentinel_password} if sentinel_password else {}
        sentinels: list[Server] = [Sentinel(binary, directory / f"sentinel-{n}", settings, guard) for n in range(3)]
        for server in servers:
            stack.enter_context(closing(server)).start()
        group = SentinelGroup(servers, [stack.enter_context(closing(sentinel)) for sentinel in sentinels])
        group.wait_until_complete()
        yield group
