"""Rights: the rules of an ACL user for each role, with only the commands and keys that the role needs.

The server checks each command that a script calls, with its keys, as if a client had sent it. So a role may load and
run any script: the commands below limit it, each on the keys on which that role's own scripts use it. But a script can
still block the server for ever. Where managers have `preloaded` the scripts, other roles can run no others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from lisa_common.errors import InvalidInput
from lisa_common.model.keys import (
    ABSENT,
    HISTORY,
    ShardKeys,
    activity_key,
    dropped_key,
    events_channel,
    idle_key,
    managers_key,
    operations_key,
    schedules_key,
    topics_key,
    wake_channel,
)
from lisa_common.validation import check_name

__all__ = ["ANY_TOPIC", "RoleName", "rules"]

ANY_TOPIC = "*"


class RoleName(StrEnum):
    """The roles that need rights."""

    PRODUCER = "producer"
    CONSUMER = "consumer"
    MANAGER = "manager"
    READER = "reader"
    GATEWAY = "gateway"


@dataclass(frozen=True, slots=True)
class _Role:
    """Commands, separated by spaces; subcommands as in `xinfo|groups`."""

    keyless: str
    on: Mapping[str, str]
    """Commands by the names of the keys on which the role needs them."""
    on_all: str = "evalsha"
    """Commands on all of those keys at once."""
    registry: str = ""
    dropped: str = ""
    idle: str = ""
    """Commands on the hash of unused topics."""
    activity: str = ""
    operations: str = ""
    managers: str = ""
    schedules: str = ""
    """Commands on the hash of schedules of a development version."""
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

_LATER = "client|setinfo waitaof"
"""Commands that Redis has since 7.2. Older servers refuse rules about them."""

_ROLES = {
    RoleName.PRODUCER: _Role(
        keyless=f"{_CONNECTED} {_SCRIPTING} wait waitaof",
        channel="publish",
        registry="hmget hsetnx",
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
            "door": "hget hmget",
            "closed door": "exists",
            "expiring busy": "exists",
            "busy": "exists hdel hmget hsetnx",
            **_PASSES_SLOTS,
            "pace": "hget hset pexpire",
            "query:*": "hdel hget hset hsetnx pexpire unlink",
        },
    ),
    RoleName.CONSUMER: _Role(
        keyless=f"{_CONNECTED} {_SCRIPTING}",
        in_cluster="asking client|id client|unblock cluster|slots eval",
        channel="publish",
        registry="hmget",
        on={
            "waiting": "zadd zcount zrem zscore",
            "ready": "exists xack xadd xclaim xdel xgroup|create xgroup|delconsumer"
            " xinfo|groups xpending xrange xreadgroup xrevrange",
            "messages": "hdel hexists hget hlen hmget hset hstrlen",
            "expiring": "zadd zrem",
            "finished": "zadd zscore",
            "owed": "hdel hget hmget hset",
            "retry": "zadd zrange zrem zscore",
            "failures": "hdel hget hset",
            "garbage": "zadd zrem zscore",
            "closed": "exists",
            "failures owed expiring busy": "exists",
            "busy": "hdel hexists hmget hsetnx",
            **_PASSES_SLOTS,
            "query:*": "get set unlink",
            "door": "exists hdel hget hmget hset",
            "schedules ticks": "hdel hget hset",
        },
    ),
    RoleName.MANAGER: _Role(
        keyless=f"{_CONNECTED} {_SCRIPTING} script|exists info",
        in_cluster="asking cluster|info cluster|slots",
        channel="publish subscribe",
        events="publish subscribe",
        registry="evalsha hdel hget hgetall hmget hset hsetnx",
        dropped="evalsha hdel hget hgetall hset",
        idle="hdel hgetall hmget hset",
        activity="xadd xrevrange",
        operations="hdel hget hgetall hset",
        managers="pexpire zadd zrange zremrangebyrank zremrangebyscore",
        schedules="hdel hgetall",
        on_all="evalsha exists type unlink",
        on={
            "waiting": "zadd zcard zcount zrange zrem zremrangebyrank zscan zscore",
            "ready": "exists xack xadd xclaim xdel xgroup|create xgroup|delconsumer xgroup|destroy xgroup|setid"
            " xinfo|consumers xinfo|groups xinfo|stream xlen xpending xrange xtrim",
            "messages": "hdel hexists hget hlen hscan hset hsetnx hstrlen",
            "expiring": "zadd zrange zrem zscan zscore",
            "finished": "zadd zcount zmscore zrange zrem zremrangebyrank zscan zscore",
            "owed": "hdel hexists hget hmget hscan hset",
            "retry": "zadd zcard zcount zrange zrem zremrangebyrank zscan zscore",
            "failures": "hdel hget hmget hscan hset",
            "garbage": "zadd zcard zcount zmscore zrange zrem zscan zscore",
            "closed": "del exists set",
            "door": "exists hdel hget hmget hset",
            HISTORY: "pexpire unlink xadd xrevrange",
            "ticks": "hdel hexists hget hgetall hset hsetnx",
            "schedules": "exists hdel hget hkeys hlen hmget hset hsetnx",
            "busy": "exists hdel hexists hget hlen hmget hscan hsetnx",
            "slots": "zadd zcard zcount zlexcount zrange zrem zremrangebyscore zscore",
            "parked": "zadd zcard zcount zlexcount zrange zrem zremrangebyscore",
        },
    ),
    RoleName.READER: _Role(
        keyless=f"{_CONNECTED} script|load",
        registry="hmget",
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


_MERGED = (
    *("keyless", "on_all", "registry", "dropped", "schedules", "activity", "operations", "managers"),
    *("channel", "in_cluster"),
)
"""Rights that belong to no topic, and are united."""

_OF_SPARK = ("pace", "query:*")
"""Keys that only Spark's jobs use."""


def _union(*roles: _Role, on: Mapping[str, str], events: str) -> _Role:
    """A role that does the work of several, and more of its own."""
    commands: dict[str, list[str]] = {}
    for rights in (*(role.on for role in roles), on):
        for names, verbs in rights.items():
            for name in (name for name in names.split() if name not in _OF_SPARK):
                commands.setdefault(name, []).extend(verbs.split())

    def every(field: str) -> str:
        return " ".join(dict.fromkeys(verb for role in roles for verb in getattr(role, field).split()))

    return _Role(
        events=events,
        on={name: " ".join(dict.fromkeys(verbs)) for name, verbs in commands.items()},
        **{name: every(name) for name in _MERGED},
    )


# A gateway does for its clients what producers, consumers and operators do, and remembers what it lends to them. Of
# events it only hears.
_ROLES[RoleName.GATEWAY] = _union(
    *(_ROLES[role] for role in (RoleName.PRODUCER, RoleName.CONSUMER, RoleName.MANAGER)),
    on={"loan:* note:*": "get set unlink"},
    events="subscribe",
)


def rules(
    role: RoleName,
    prefix: str,
    topics: Sequence[str] = (ANY_TOPIC,),
    *,
    before_7_2: bool = False,
    select: bool = False,
    cluster: bool = False,
    preloaded: bool = False,
) -> list[str]:
    """The rules of a user of that role, for `ACL SETUSER`. They leave the passwords of an existing user.

    A topic may end in `*`, for all topics that begin so. `before_7_2` leaves out commands that came with Redis 7.2.
    `select` is for a URL with a database number, `cluster` for one of a Cluster. With `preloaded`, only managers may
    load scripts; other roles run the loaded ones only. Raises InvalidInput.
    """
    if preloaded and cluster:
        # Consumers of a Cluster send a script to end a wait safely.
        raise InvalidInput("preloaded", preloaded, "False with a Cluster, where consumers need EVAL")
    keys = [ShardKeys(prefix, *place) for topic in topics for place in _places(_check_pattern(topic))]
    left_out = _LATER.split() * before_7_2 + ["script|load"] * (preloaded and role is not RoleName.MANAGER)
    rights = _ROLES[role]
    keyless = [command for command in rights.keyless.split() if command not in left_out]
    keyless += ["select"] * select + rights.in_cluster.split() * cluster
    names_of_keys = dict.fromkeys(name for names in rights.on for name in names.split())
    # Scripts get neither keys that are named for a message, nor the history.
    together = [*(name for name in names_of_keys if "*" not in name and name != HISTORY), *[ABSENT] * cluster]
    selectors = [
        _selector(rights.channel, [f"&{wake_channel(prefix)}"]),
        _selector(rights.events, [f"&{events_channel(prefix)}"]),
        _selector(rights.registry, [f"~{topics_key(prefix)}"]),
        *(_selector(on, [f"~{key}"]) for on, key in _of_some(rights, prefix)),
        _selector(rights.on_all, [f"~{topic.of(name)}" for topic in keys for name in together]),
        *(
            _selector(commands, [f"~{topic.of(name)}" for topic in keys for name in names.split()])
            for names, commands in rights.on.items()
        ),
    ]
    return [
        *("on", "resetkeys", "resetchannels", "clearselectors", "nocommands"),
        *(f"+{command}" for command in keyless),
        *filter(None, selectors),
    ]


def _of_some(rights: _Role, prefix: str) -> list[tuple[str, str]]:
    return [
        (rights.dropped, dropped_key(prefix)),
        (rights.idle, idle_key(prefix)),
        (rights.activity, activity_key(prefix)),
        (rights.operations, operations_key(prefix)),
        (rights.managers, managers_key(prefix)),
        (rights.schedules, schedules_key(prefix)),
    ]


def _places(topic: str) -> list[tuple[str, str]]:
    """Topic and shard, as patterns. A star matches slashes as well."""
    return [(topic, "")] if topic.endswith("*") else [(topic, ""), (topic, "*")]


def _selector(commands: str, patterns: Sequence[str]) -> str:
    return f"({' '.join([*(f'+{command}' for command in commands.split()), *patterns])})" if commands else ""


def _check_pattern(topic: str) -> str:
    try:
        check_name("topic", topic.removesuffix("*") or "any")
    except InvalidInput as error:
        raise InvalidInput("topic", topic, f"{error.expected}, and may end in * for all topics that begin so") from None
    return topic
