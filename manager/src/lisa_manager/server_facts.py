"""Facts about a server, or each node of a Cluster, and about the managers that serve it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import LisaError
from lisa_common.model.keys import managers_key, text_of
from lisa_common.protocol.call import Flow, command
from lisa_common.protocol.consuming import server_time
from lisa_common.protocol.replies import pairs
from lisa_manager.server_checks import SECTIONS, read_info

__all__ = ["ManagerSign", "NodeFacts", "ServerFacts", "read_facts", "read_time"]


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One server, or one node of a Cluster. Numbers are 0 and texts empty where the server says nothing."""

    name: str
    """host:port of a node; empty for a single server."""
    version: str = ""
    role: str = ""
    uptime_s: int = 0
    used_bytes: int = 0
    """Memory in use."""
    most_bytes: int = 0
    """The limit of memory; 0 for none."""
    clients: int = 0
    commands_s: int = 0
    """Commands a second, lately."""
    error: str = ""
    """Why it could not be asked."""


@dataclass(frozen=True, slots=True)
class ManagerSign:
    """A manager that has lately said that it lives."""

    name: str
    """host:pid and release."""
    seen_ms: int
    """When, by the server's clock."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What there is to know of a server at one moment."""

    nodes: tuple[NodeFacts, ...]
    managers: tuple[ManagerSign, ...]
    now_ms: int
    """The server's clock."""


async def read_facts(connection: AsyncConnection, prefix: str) -> ServerFacts:
    """Asks the server, or each node. Raises what `AsyncConnection.survey` raises."""
    answers = await connection.survey(SECTIONS)
    nodes = []
    for name, answer in sorted(answers.items()):
        try:
            nodes.append(_facts(name, read_info(answer)))
        except LisaError as error:
            nodes.append(NodeFacts(name, error=str(error)))
    now: int = await connection.call(server_time())
    signs = pairs(await connection.call(command("ZRANGE", managers_key(prefix), 0, -1, "WITHSCORES")))
    managers = tuple(ManagerSign(text_of(name), int(float(seen))) for name, seen in signs)
    return ServerFacts(tuple(nodes), managers, now)


def read_time() -> Flow[datetime]:
    """Returns the server's clock, in whole ms."""
    now: int = yield server_time()
    return datetime.fromtimestamp(now / 1000, UTC)


def _facts(name: str, info: Mapping[str, str]) -> NodeFacts:
    def number(field: str) -> int:
        text = info.get(field, "")
        return int(text) if text.isdigit() else 0

    version = info.get("valkey_version") or info.get("redis_version", "")
    return NodeFacts(
        name,
        f"{info.get('server_name', 'redis')} {version}",
        info.get("role", ""),
        number("uptime_in_seconds"),
        number("used_memory"),
        number("maxmemory"),
        number("connected_clients"),
        number("instantaneous_ops_per_sec"),
    )
