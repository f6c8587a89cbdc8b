"""Rights: the rules of an ACL user for each role, with only the commands and keys that the role needs.

The server checks each command that a script calls, with its keys, as if a client had sent it. So a role may load and
run any script: the commands below limit it, each on the keys on which that role's own scripts use it. But a script can
still block the server for ever. Where managers have `preloaded` the scripts, other roles can run no others.
"""

from collections.abc import Sequence

from lisa_common.errors import InvalidInput
from lisa_common.model.keys import ABSENT, HISTORY, ShardKeys, beside_key, events_channel, topics_key, wake_channel
from lisa_common.model.rights import ROLES, RoleName
from lisa_common.validation import check_name

__all__ = ["ANY_TOPIC", "RoleName", "rules"]

ANY_TOPIC = "*"


_LATER = "client|setinfo waitaof"
"""Commands that Redis has since 7.2. Older servers refuse rules about them."""


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
    rights = ROLES[role]
    keyless = [command for command in rights.keyless.split() if command not in left_out]
    keyless += ["select"] * select + rights.in_cluster.split() * cluster
    names_of_keys = dict.fromkeys(name for names in rights.on for name in names.split())
    # Scripts get neither keys that are named for a message, nor the history.
    together = [*(name for name in names_of_keys if "*" not in name and name != HISTORY), *[ABSENT] * cluster]
    looks_for_topics = role is RoleName.CONSUMER and any(topic.endswith("*") for topic in topics)
    selectors = [
        _selector(rights.channel, [f"&{wake_channel(prefix)}"]),
        _selector(rights.events, [f"&{events_channel(prefix)}"]),
        *(_selector(commands, [f"~{beside_key(prefix, name)}"]) for name, commands in rights.beside.items()),
        # Workers of a pattern look for its topics.
        _selector("hgetall" * looks_for_topics, [f"~{topics_key(prefix)}"]),
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


def _places(topic: str) -> list[tuple[str, str]]:
    """Topic and shard, as patterns. A star matches slashes as well."""
    return [(topic, "")] if topic.endswith("*") else [(topic, ""), (topic, "*")]


def _selector(commands: str, patterns: Sequence[str]) -> str:
    return f"({' '.join([*(f'+{command}' for command in commands.split()), *patterns])})" if commands else ""


def _check_pattern(topic: str) -> str:
    try:
        check_name("topic", "any" if topic == ANY_TOPIC else topic.removesuffix("*"))
    except InvalidInput as error:
        raise InvalidInput("topic", topic, f"{error.expected}, and may end in * for all topics that begin so") from None
    return topic
