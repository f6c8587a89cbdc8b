"""Commands that each program needs of a server, and the losses where others are refused."""

from dataclasses import dataclass
from enum import StrEnum

from lisa_common.model.rights import RoleName

__all__ = ["LOSSES", "NEEDED", "Loss", "Optional"]


def _commands(names: str) -> frozenset[str]:
    return frozenset(names.split())


NEEDED = {
    RoleName.PRODUCER: _commands(
        "exists hdel hget hmget hsetnx hstrlen time xadd xinfo|groups zadd zcount zmscore zrem zscore"
    ),
    RoleName.CONSUMER: _commands(
        "exists hdel hget hlen hmget hstrlen time xack xadd xclaim xgroup|create xinfo|groups xpending xreadgroup"
        " zadd zrange zrem"
    ),
    RoleName.MANAGER: _commands(
        "exists hdel hget hgetall hstrlen time xack xadd xdel xinfo|consumers xinfo|groups xlen xpending xrange xtrim"
        " zadd zrange zrem zremrangebyrank"
    ),
}
"""Commands without which a program does not get a message through its life, and one of EVALSHA and EVAL."""


class Optional(StrEnum):
    """Commands without which all programs work."""

    NAME = "CLIENT SETNAME"
    UNBLOCK = "CLIENT UNBLOCK"
    LOAD = "SCRIPT LOAD"
    SCRIPTS = "SCRIPT EXISTS"
    EVALSHA = "EVALSHA"
    PUBLISH = "PUBLISH"
    SUBSCRIBE = "SUBSCRIBE"
    INFO = "INFO"
    MEMORY = "MEMORY USAGE"
    BLOCK = "XREADGROUP BLOCK"
    WAIT = "WAIT"
    WAITAOF = "WAITAOF"
    WORKERS = "WORKERS"
    """The hashes of workers."""
    DROPPED = "DROPPED"
    """The marks of dropped topics."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What is lost without a command."""

    loss: str
    ask: str = ""
    """What to ask the provider for, unless it is to allow the command."""
    said: str = ""
    """What the server does, unless it refuses the command."""

    def line(self, refused: Optional, reason: str = "") -> str:
        """The refusal, the loss and the remedy in one line."""
        refusal = self.said or f"the server refuses {refused}"
        return f"{refusal}{reason and f' ({reason})'}: {self.loss}; {self.remedy(refused)}"

    def remedy(self, refused: Optional) -> str:
        """What to ask the provider for."""
        return self.ask or f"ask the provider to allow {refused}"


_RULES = "ask the provider for the rules that `lisa-manager acl` prints"

LOSSES = {
    Optional.NAME: Loss("connections have no names, so CLIENT LIST does not tell programs apart"),
    Optional.UNBLOCK: Loss(
        "readers of a Cluster ask for messages ten times a second instead of waiting for them",
        "ask the provider to allow CLIENT ID and CLIENT UNBLOCK",
    ),
    Optional.LOAD: Loss("a script that the server lacks is sent as text with each call that needs it"),
    Optional.SCRIPTS: Loss("managers do not keep scripts loaded for users who may not load them"),
    Optional.EVALSHA: Loss("each call sends the text of its script, some kilobytes"),
    Optional.PUBLISH: Loss(
        "managers are not woken, so a message may become ready up to poll_s late",
        "ask the provider to allow PUBLISH on all channels (in rules of an ACL: &* +publish)",
    ),
    Optional.SUBSCRIBE: Loss(
        "managers are not woken, so a message may become ready up to poll_s late, and dashboards show no events",
        "ask the provider to allow SUBSCRIBE on all channels (in rules of an ACL: &* +subscribe)",
    ),
    Optional.INFO: Loss(
        "nobody checks the server's version, memory policy and persistence, by which messages may be lost"
    ),
    Optional.MEMORY: Loss("the dashboard does not tell how much memory each topic takes"),
    Optional.BLOCK: Loss(
        "readers ask for messages ten times a second instead of waiting for them",
        "ask the provider for a server that waits in XREADGROUP … BLOCK",
        "the server does not wait in XREADGROUP … BLOCK",
    ),
    Optional.WAIT: Loss("sends with `confirm=Confirm(replicas=…)` are written, but raise NotConfirmed"),
    Optional.WAITAOF: Loss(
        "sends with `confirm=Confirm(fsync=True)` are written, but raise NotConfirmed",
        "it needs Redis ≥ 7.2 or Valkey; there, ask the provider to allow it",
        "the server lacks or refuses WAITAOF",
    ),
    Optional.WORKERS: Loss(
        "operators do not see which workers there are, and cannot pause or drain one",
        _RULES,
        "the server refuses the hashes of workers",
    ),
    Optional.DROPPED: Loss(
        "a topic with several shards that is sent to within a minute after its drop gets one, and may refuse sends",
        _RULES,
        "the server refuses the marks of dropped topics",
    ),
}
