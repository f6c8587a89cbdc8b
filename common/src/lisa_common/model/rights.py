"""Roles: the commands that each needs, and on which keys. Rules for users and checks of users are made from them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain

from lisa_common.model.keys import HISTORY

__all__ = ["ROLES", "Role", "RoleName"]


class RoleName(StrEnum):
    """The roles that need rights."""

    PRODUCER = "producer"
    CONSUMER = "consumer"
    MANAGER = "manager"
    READER = "reader"
    GATEWAY = "gateway"


@dataclass(frozen=True, slots=True)
class Role:
    """The commands of a role, separated by spaces; subcommands as in `xinfo|groups`."""

    keyless: str
    on: Mapping[str, str]
    """Commands by the names of the keys on which the role needs them."""
    on_all: str = "evalsha"
    """Commands on all of those keys at once."""
    beside: Mapping[str, str] = field(default_factory=dict)
    """Commands by the names of the keys that belong to no topic: what follows the prefix."""
    channel: str = ""
    """Commands on the wake channel."""
    events: str = ""
    """Commands on the channel of events."""
    in_cluster: str = "asking cluster|slots"
    """Further commands that a Cluster requires."""


_CONNECTED = "ping client|setname client|setinfo"
_SCRIPTING = "script|load time"
_PASSES_SLOTS = {
    "slots": "zadd zcard zlexcount zrem",
    "parked": "exists zcard zrange zrem",
}
"""Commands of all that may end a message with a key, and so pass its slot on."""

ROLES = {
    RoleName.PRODUCER: Role(
        keyless=f"{_CONNECTED} {_SCRIPTING} wait waitaof",
        channel="publish",
        beside={"topics": "evalsha hget hmget hsetnx", "dropped": "hmget", "managers": "zcard"},
        on={
            "waiting": "zadd zcount zrange zrem zscore",
            "ready": "exists xadd xdel xinfo|groups xpending xrange",
            "messages": "hdel hexists hget hlen hmget hset hsetnx hstrlen",
            "expiring": "exists zadd zrem",
            "finished": "zadd zmscore zscore",
            "owed": "hdel hexists hget hset",
            "retry": "zadd zrange zrem zscore",
            "failures": "hdel hget",
            "garbage": "zrem zscore",
            "closed": "del set",
            # A topic that it declares may have limits from the start. It cannot lift limits that are there.
            "door": "hget hmget hsetnx",
            "closed door": "exists",
            "expiring busy": "exists",
            "busy": "exists hdel hmget hsetnx",
            **_PASSES_SLOTS,
            "pace": "hget hset pexpire",
            "query:*": "hget hset hsetnx pexpire unlink",
        },
    ),
    RoleName.CONSUMER: Role(
        keyless=f"{_CONNECTED} {_SCRIPTING}",
        in_cluster="asking client|id client|unblock cluster|slots eval",
        channel="publish",
        beside={
            "topics": "hmget",
            "dropped": "hmget",
            "workers": "hdel hset",
            "wishes": "hmget",
            "managers": "zcard",
        },
        on={
            "waiting": "zadd zcount zrem zscore",
            "ready": "exists xack xadd xclaim xdel xgroup|create xgroup|delconsumer"
            " xinfo|groups xpending xrange xreadgroup xrevrange",
            "messages": "hdel hexists hget hlen hmget hset hstrlen",
            "expiring": "zadd zrem",
            "finished": "zadd zscore",
            "owed": "hdel hget hmget hset",
            "retry": "zadd zrange zrem zscore",
            "failures": "hdel hget hmget hset",
            "garbage": "zadd zrem zscore",
            "closed": "exists",
            "failures owed expiring busy": "exists",
            "busy": "hdel hexists hmget hsetnx",
            **_PASSES_SLOTS,
            "query:*": "evalsha get pexpire set unlink",
            "door": "exists hdel hget hmget hset",
            "schedules ticks": "hdel hget hset",
        },
    ),
    RoleName.MANAGER: Role(
        keyless=f"{_CONNECTED} {_SCRIPTING} script|exists info",
        in_cluster="asking cluster|info cluster|slots",
        channel="publish subscribe",
        events="publish subscribe",
        beside={
            "topics": "evalsha hdel hget hgetall hmget hset hsetnx",
            "dropped": "evalsha hdel hget hgetall hmget hset",
            "idle": "hdel hgetall hmget hset",
            "activity": "xadd xrevrange",
            "operations": "hdel hget hgetall hset",
            "managers": "pexpire zadd zcard zrange zremrangebyscore",
            "workers": "hdel hgetall",
            "wishes": "hdel hgetall hset",
            "schedules": "hdel hgetall",
        },
        on_all="evalsha exists memory|usage type unlink",
        on={
            "waiting": "zadd zcard zcount zrange zrem zremrangebyrank zscan zscore",
            "ready": "exists xack xadd xclaim xdel xgroup|create xgroup|delconsumer xgroup|destroy xgroup|setid"
            " xinfo|consumers xinfo|groups xinfo|stream xlen xpending xrange xread xtrim",
            "messages": "hdel hexists hget hlen hscan hset hsetnx hstrlen",
            "expiring": "zadd zrange zrem zscan zscore",
            "finished": "zadd zcount zmscore zrange zrem zremrangebyrank zscan zscore",
            "owed": "hdel hexists hget hmget hscan hset",
            "retry": "zadd zcard zcount zrange zrem zremrangebyrank zscan zscore",
            "failures": "hdel hget hmget hscan hset",
            "garbage": "zadd zcard zcount zmscore zrange zrem zscan zscore",
            "closed": "del exists get set",
            "door": "exists hdel hget hmget hset hsetnx",
            HISTORY: "memory|usage pexpire unlink xadd xrevrange",
            "ticks": "hdel hexists hget hgetall hset hsetnx",
            "schedules": "exists hdel hget hkeys hlen hmget hset hsetnx",
            "busy": "exists hdel hexists hget hlen hmget hscan hsetnx",
            "slots": "zadd zcard zcount zlexcount zrange zrem zremrangebyscore zscore",
            "parked": "zadd zcard zcount zlexcount zrange zrem zremrangebyscore",
        },
    ),
    RoleName.READER: Role(
        keyless=f"{_CONNECTED} script|load",
        beside={"topics": "hmget", "dropped": "hmget"},
        on={
            "waiting": "zcount zrange",
            # A pattern, as no script of a reader uses this key.
            "ready*": "xinfo|groups xlen xpending xrange xrevrange",
            "messages": "hget hstrlen",
            "retry": "zcount zrange",
            "failures": "hget",
            "garbage": "zcount zrange",
        },
    ),
}


_OF_SPARK = ("pace", "query:*")
"""Keys that only Spark's jobs use."""


def _union(*roles: Role, on: Mapping[str, str], events: str) -> Role:
    """A role that does the work of several, and more of its own."""
    of_topics = (rights.items() for rights in (*(role.on for role in roles), on))
    united = _united((name, verbs) for names, verbs in chain(*of_topics) for name in names.split())
    return Role(
        keyless=_distinct(role.keyless for role in roles),
        on={name: verbs for name, verbs in united.items() if name not in _OF_SPARK},
        on_all=_distinct(role.on_all for role in roles),
        beside=_united(chain(*(role.beside.items() for role in roles))),
        channel=_distinct(role.channel for role in roles),
        events=events,
        in_cluster=_distinct(role.in_cluster for role in roles),
    )


def _united(rights: Iterable[tuple[str, str]]) -> dict[str, str]:
    """All commands on each key."""
    by_name: dict[str, list[str]] = {}
    for name, verbs in rights:
        by_name.setdefault(name, []).append(verbs)
    return {name: _distinct(verbs) for name, verbs in by_name.items()}


def _distinct(verbs: Iterable[str]) -> str:
    return " ".join(dict.fromkeys(" ".join(verbs).split()))


# A gateway does for its clients what producers, consumers and operators do, and remembers what it lends to them. Of
# events it only hears.
ROLES[RoleName.GATEWAY] = _union(
    *(ROLES[role] for role in (RoleName.PRODUCER, RoleName.CONSUMER, RoleName.MANAGER)),
    on={"loan:*": "evalsha get pexpire set unlink", "note:*": "get set unlink"},
    events="subscribe",
)
