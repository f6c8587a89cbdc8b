"""Checks whether a server, or each node of a Cluster, is fit for a queue that must not lose messages."""

from collections import defaultdict
from collections.abc import Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.user_check import judge_user
from lisa_common.errors import AccessDenied, LisaError
from lisa_common.model.keys import ShardKeys, wake_channel
from lisa_common.model.needs import Optional
from lisa_common.model.rights import RoleName
from lisa_common.protocol.call import Call, command
from lisa_common.protocol.replies import pairs

__all__ = ["SECTIONS", "Health", "examine", "judge", "judge_roles", "read_info", "read_version"]

_OLDEST = (7, 0)
_MIB = 1024 * 1024
_SLOTS = "16384"
_NEARLY_FULL = 0.8
"""As for the alert LisaServerMemory."""


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a server or a Cluster."""

    findings: list[str]
    """Problems, one line each."""
    remarks: list[str] = field(default_factory=list)
    """The nodes of a Cluster, and hints; empty for a single server."""
    roles: list[str] = field(default_factory=list)
    """What producers, consumers and managers can do as this user; one line, or more, for each."""
    hints: list[str] = field(default_factory=list)
    """What to do before the first topic is declared."""


async def examine(connection: AsyncConnection) -> Health:
    """Checks the server, or each node. Raises what `AsyncConnection.survey` raises."""
    answers = await connection.survey(_QUESTIONS)
    if "" in answers:
        return Health(judge(*_read(answers[""], in_cluster=False)))
    infos: dict[str, dict[str, str]] = {}
    nodes_by_finding: dict[str, list[str]] = defaultdict(list)
    for name, answer in answers.items():
        try:
            infos[name], save = _read(answer, in_cluster=True)
        except LisaError as error:
            nodes_by_finding[f"cannot be checked: {error}"].append(name)
        else:
            for finding in judge(infos[name], save):
                nodes_by_finding[finding].append(name)
    return Health(
        [f"{_join(names, len(answers))}: {finding}" for finding, names in nodes_by_finding.items()],
        _remarks(infos, len(answers) - len(infos)),
    )


ANY_TOPIC = "any"
"""A name for the check of what a user may do with topics; there need not be one yet."""

_ROLES = (RoleName.PRODUCER, RoleName.CONSUMER, RoleName.MANAGER)
_OPTIONAL: Mapping[Optional, Call[Any]] = {
    Optional.NAME: command("CLIENT", "SETNAME", "lisa-doctor"),
    Optional.LOAD: command("SCRIPT", "LOAD", "return 0"),
    Optional.SCRIPTS: command("SCRIPT", "EXISTS", "0" * 40),
    Optional.INFO: command("INFO", "server"),
    Optional.WAIT: command("WAIT", "0", "1"),
    Optional.WAITAOF: command("WAITAOF", "0", "0", "1"),
}
"""Calls that change nothing, by what a proxy may refuse. Connections find out the rest by themselves."""


async def judge_roles(connection: AsyncConnection, prefix: str) -> list[str]:
    """What producers, consumers and managers can do as this user. Raises LisaError."""
    with suppress(AccessDenied):
        async with aclosing(connection.listen(wake_channel(prefix))) as messages:
            # The first one comes before the server has answered.
            await anext(messages)
            await anext(messages)
    results = await connection.execute_each(list(_OPTIONAL.values()))
    refused = {
        optional for optional, result in zip(_OPTIONAL, results, strict=True) if isinstance(result, AccessDenied)
    }
    lines = []
    for role in _ROLES:
        try:
            verdict = await judge_user(connection, role, ShardKeys(prefix, ANY_TOPIC), refused)
        except AccessDenied as error:
            lines.append(f"as {role}: does not work: {error}")
        else:
            lines += verdict.lines()
    return lines


async def read_version(connection: AsyncConnection) -> tuple[int, ...]:
    """The version of Redis that the server, or the oldest node, is or stands in for, as in (7, 0).

    Raises what `AsyncConnection.survey` raises, and the error of the nodes where none answers.
    """
    answers = await connection.survey([command("INFO", "server", decode=_fields)])
    results = [answer if isinstance(answer, LisaError) else answer[0] for answer in answers.values()]
    versions = [_version(result) for result in results if not isinstance(result, LisaError)]
    if not versions:
        raise next(result for result in results if isinstance(result, LisaError))
    return min(versions)


def _version(info: Mapping[str, str]) -> tuple[int, ...]:
    return tuple(int(part) for part in info.get("redis_version", "0").split(".")[:2] if part.isdigit())


def _fields(reply: bytes) -> dict[str, str]:
    lines = (line for line in reply.decode().splitlines() if ":" in line)
    return dict(line.split(":", 1) for line in lines)


SECTIONS: tuple[Call[Any], ...] = tuple(
    command("INFO", section, decode=_fields)
    for section in ("server", "memory", "persistence", "replication", "clients", "stats")
)
"""Asks for what `read_info` reads."""

_QUESTIONS: tuple[Call[Any], ...] = (
    *SECTIONS,
    command("CLUSTER", "INFO", decode=_fields),  # an error without a Cluster
    command("CONFIG", "GET", "save", "min-replicas-to-write"),
)


def _read(answer: list[Any] | LisaError, *, in_cluster: bool) -> tuple[dict[str, str], str]:
    """The fields of INFO and CLUSTER INFO with `min_replicas_to_write`; `save`. Raises LisaError if INFO is refused."""
    if isinstance(answer, LisaError):
        raise answer
    *sections, cluster, config = answer
    info = read_info([*sections, cluster] if in_cluster else sections)
    if not in_cluster and not isinstance(cluster, LisaError):
        info["nodes"] = cluster.get("cluster_size", "1")
    # Hosted servers forbid CONFIG; then assume that snapshots are on.
    settings = {} if isinstance(config, LisaError) else {name: value.decode() for name, value in pairs(config)}
    info["min_replicas_to_write"] = settings.get(b"min-replicas-to-write", "0")
    return info, settings.get(b"save", "unknown")


def read_info(answer: list[Any] | LisaError) -> dict[str, str]:
    """The fields of several sections of INFO. Raises LisaError where the server refuses one."""
    if isinstance(answer, LisaError):
        raise answer
    info: dict[str, str] = {}
    for section in answer:
        if isinstance(section, LisaError):
            raise section
        info |= section
    return info


def judge(info: Mapping[str, str], save: str) -> list[str]:
    """Findings from the fields of INFO and CLUSTER INFO and the setting `save`."""
    findings = [*_find_wrong_address(info), *_find_missing_replicas(info)]
    version = info.get("redis_version", "0")
    if _version(info) < _OLDEST:
        findings.append(f"the server is too old: version {version}; Lisa needs 7.0 or later")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy.startswith("allkeys"):
        findings.append(f"maxmemory-policy is {policy}: a full server silently deletes messages; set noeviction")
    used, most = int(info.get("used_memory", "0")), int(info.get("maxmemory", "0"))
    if most and used > _NEARLY_FULL * most:
        share = f"{used / most:.0%} of maxmemory, {used / _MIB:,.0f} of {most / _MIB:,.0f} MiB"
        findings.append(
            f"the memory is nearly full ({share}): a full server refuses sends; raise maxmemory, or remove messages"
        )
    if info.get("aof_enabled") == "0":
        if save:
            findings.append("appendonly is off: a crash loses everything since the last snapshot; set appendonly yes")
        else:
            findings.append("no persistence: a restart loses every message; set appendonly yes")
    if info.get("aof_last_write_status", "ok") != "ok" or info.get("rdb_last_bgsave_status", "ok") != "ok":
        findings.append("the server cannot write to its disk (see its log): it refuses sends until it can")
    assigned = info.get("cluster_slots_assigned", _SLOTS)
    if assigned != _SLOTS:
        findings.append(f"{assigned} of {_SLOTS} slots have a node: calls for topics in the others fail; assign all")
    if failed := int(info.get("cluster_slots_fail", "0")):
        findings.append(f"{failed} slots have a failed node: their topics wait until it is back or replaced")
    if info.get("cluster_state", "ok") != "ok":
        findings.append(
            "cluster_state is not ok: the node refuses calls until it is (see the other findings and its log)"
        )
    return findings


def _find_wrong_address(info: Mapping[str, str]) -> list[str]:
    if int(info.get("nodes", "1")) > 1:
        return ["the server is one node of a Cluster, so calls for most topics fail: use redis+cluster://"]
    if info.get("role") == "slave" and "cluster_state" not in info:
        return ["the server is a replica: it refuses or loses what programs write; use its master's address"]
    return []


def _find_missing_replicas(info: Mapping[str, str]) -> list[str]:
    wanted = int(info.get("min_replicas_to_write", "0"))
    # Servers that do not ask for replicas do not say how many keep up.
    good = int(info.get("min_slaves_good_slaves", wanted))
    if good >= wanted or info.get("role") != "master":
        return []
    refused = "the server refuses sends and acks until more do; start replicas, or lower it"
    return [f"min-replicas-to-write is {wanted}, and {good} replicas keep up: {refused}"]


def _join(names: list[str], nodes: int) -> str:
    return "every node" if len(names) == nodes else ", ".join(names)


def _remarks(infos: Mapping[str, Mapping[str, str]], unchecked: int) -> list[str]:
    masters = [name for name, info in infos.items() if info.get("role") == "master"]
    alone = [name for name in masters if infos[name].get("connected_slaves") == "0"]
    nodes = [f"{len(masters)} masters", f"{len(infos) - len(masters)} replicas"]
    nodes += [f"{unchecked} unchecked"] if unchecked else []
    remarks = [f"a Cluster: {', '.join(nodes)}"]
    if alone:
        remarks.append(f"hint: topics of a master without a replica wait while it is away: {', '.join(alone)}")
    return remarks
