"""What is wrong with a server for a queue that must not lose messages."""

from lisa_common.aio import AsyncConnection
from lisa_common.call import Call, command
from lisa_common.errors import LisaError

__all__ = ["findings", "judge"]

_OLDEST = (7, 0)


async def findings(connection: AsyncConnection) -> list[str]:
    """What is wrong, one line each; nothing when all is well."""
    info: dict[str, str] = {}
    for section in ("server", "memory", "persistence"):
        told = await connection.call(_info(section))
        info.update(told)
    try:
        reply: list[bytes] = await connection.call(command("CONFIG", "GET", "save"))
        save = reply[1].decode()
    except (LisaError, IndexError):
        # Hosted servers forbid CONFIG; without it, snapshots cannot be told from none.
        save = "unknown"
    return judge(info, save)


def _info(section: str) -> Call[dict[str, str]]:
    def decode(reply: bytes) -> dict[str, str]:
        lines = (line for line in reply.decode().splitlines() if ":" in line)
        return dict(line.split(":", 1) for line in lines)

    return command("INFO", section, decode=decode)


def judge(info: dict[str, str], save: str) -> list[str]:
    """Findings from what INFO says and the setting `save`."""
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
    return found
