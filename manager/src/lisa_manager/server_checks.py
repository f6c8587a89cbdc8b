"""What is wrong with a server, or the nodes of a Cluster, for a queue that must not lose messages."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import LisaError
from lisa_common.protocol.call import Call, command

__all__ = ["Health", "examine", "judge"]

_OLDEST = (7, 0)
_SLOTS = "16384"


@dataclass(frozen=True, slots=True)
class Health:
    """How a server is, or a Cluster."""

    findings: list[str]
    """What is wrong, one line each; nothing when all is well."""
    remarks: list[str] = field(default_factory=list)
    """What a Cluster is made of, and what it could do without; nothing of one server."""


async def examine(connection: AsyncConnection) -> Health:
    """Asks the server, or each node, how it is. Raises what `AsyncConnection.survey` raises."""
    told = await connection.survey(_QUESTIONS)
    if "" in told:
        return Health(judge(*_read(told[""], in_cluster=False)))
    infos: dict[str, dict[str, str]] = {}
    found: dict[str, list[str]] = defaultdict(list)
    for name, answer in told.items():
        try:
            infos[name], save = _read(answer, in_cluster=True)
        except LisaError as error:
            found[f"does not say how it is: {error}"].append(name)
        else:
            for finding in judge(infos[name], save):
                found[finding].append(name)
    return Health(
        [f"{_named(names, told)}: {finding}" for finding, names in found.items()],
        _remarks(infos, len(told) - len(infos)),
    )


def _fields(reply: bytes) -> dict[str, str]:
    lines = (line for line in reply.decode().splitlines() if ":" in line)
    return dict(line.split(":", 1) for line in lines)


_SECTIONS = ("server", "memory", "persistence", "replication")
_QUESTIONS: tuple[Call[Any], ...] = (
    *(command("INFO", section, decode=_fields) for section in _SECTIONS),
    command("CLUSTER", "INFO", decode=_fields),  # an error, where there is none
    command("CONFIG", "GET", "save"),
)


def _read(answer: list[Any] | LisaError, *, in_cluster: bool) -> tuple[dict[str, str], str]:
    """What INFO and CLUSTER INFO say, and the setting `save`; raises the error of what cannot be done without."""
    if isinstance(answer, LisaError):
        raise answer
    *sections, cluster, save = answer
    info: dict[str, str] = {}
    for section in [*sections, cluster] if in_cluster else sections:
        if isinstance(section, LisaError):
            raise section
        info |= section
    # Hosted servers forbid CONFIG; without it, snapshots cannot be told from none.
    return info, "unknown" if isinstance(save, LisaError) or not save else save[1].decode()


def judge(info: Mapping[str, str], save: str) -> list[str]:
    """Findings from what INFO and CLUSTER INFO say and the setting `save`."""
    found = []
    version = info.get("redis_version", "0")
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < _OLDEST:
        found.append(f"the server is too old: version {version}; 7.0 is the oldest that Lisa runs on")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy.startswith("allkeys"):
        found.append(f"maxmemory-policy is {policy}: a full server deletes messages in silence; set noeviction")
    if info.get("aof_enabled") == "0":
        if save:
            found.append("appendonly is off: a crash loses all since the last snapshot; set appendonly yes")
        else:
            found.append("no persistence: a restart loses every message; set appendonly yes")
    if info.get("aof_last_write_status", "ok") != "ok" or info.get("rdb_last_bgsave_status", "ok") != "ok":
        found.append("the server cannot write to its disk (see its log): it refuses sends until it can")
    assigned = info.get("cluster_slots_assigned", _SLOTS)
    if assigned != _SLOTS:
        found.append(f"{assigned} of {_SLOTS} slots have a node: topics in the others are refused; assign all")
    if failed := int(info.get("cluster_slots_fail", "0")):
        found.append(f"{failed} slots are of a node that has failed: their topics wait until it is back, or replaced")
    if info.get("cluster_state", "ok") != "ok":
        found.append(
            "cluster_state is not ok: the node refuses calls until it is (see the other findings, and its log)"
        )
    return found


def _named(names: list[str], told: Mapping[str, Any]) -> str:
    return "every node" if len(names) == len(told) else ", ".join(names)


def _remarks(infos: Mapping[str, Mapping[str, str]], silent: int) -> list[str]:
    masters = [name for name, info in infos.items() if info.get("role") == "master"]
    alone = [name for name in masters if infos[name].get("connected_slaves") == "0"]
    nodes = [f"{len(masters)} masters", f"{len(infos) - len(masters)} replicas"]
    nodes += [f"{silent} that cannot be asked"] if silent else []
    remarks = [f"a Cluster: {', '.join(nodes)}"]
    if alone:
        remarks.append(f"hint: while a master without a replica is away, so are its topics: {', '.join(alone)}")
    return remarks
