"""A topic used by ACL users, each call by the user of its role; and a watch on their commands and rights."""

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lisa_common.client.connection import Connection
from lisa_common.model.keys import (
    HISTORY,
    TOPIC_KEYS,
    activity_key,
    dropped_key,
    events_channel,
    idle_key,
    managers_key,
    operations_key,
    schedules_key,
    topics_key,
    wake_channel,
    wishes_key,
    workers_key,
)
from lisa_common.protocol.call import Call, command
from lisa_manager.admin.rights import RoleName, rules
from support.server import Server

__all__ = ["OURS", "PASSWORD", "Deed", "Rights", "Roles", "is_old", "key_name", "make_users", "user_url", "watched"]

PASSWORD = "pass"  # noqa: S105 - of users on a server of the test's own
OURS = "orders"
"""The topic that the users may work on."""

_PRODUCERS = ("send", "replace", "cancel", "reschedule", "find")
_CONSUMERS = (
    "join",
    "deregister",
    "list_pending",
    "ack",
    "follow",
    "nack",
    "release",
    "shut_door",
    "extend",
    "discard",
    "XREADGROUP",
    "HMGET",
    "XREVRANGE",
    "TIME",
)


def is_old(admin: Connection) -> bool:
    """Whether the server is older than Redis 7.2."""
    return admin.call(command("COMMAND", "INFO", "WAITAOF")) == [None]


def user_url(server: Server, role: RoleName, prefix: str) -> str:
    """The URL for the user of a role."""
    return f"redis://{prefix}-{role}:{PASSWORD}@127.0.0.1:{server.port}"


def make_users(admin: Connection, prefix: str) -> None:
    """Creates the users that `lisa-manager acl` prints."""
    for role in RoleName:
        topics = ["*"] if role is RoleName.MANAGER else [OURS]
        made = rules(role, prefix, topics, before_7_2=is_old(admin))
        admin.call(command("ACL", "SETUSER", f"{prefix}-{role}", f">{PASSWORD}", *made))


class Roles:
    """Stands in for a connection: each call is made by the user whose work it is."""

    def __init__(self, server: Server, prefix: str) -> None:
        self._admin = Connection(server.url, name="admin")
        self._of = {role: Connection(user_url(server, role, prefix), name=role) for role in RoleName}

    def call(self, call: Call[Any]) -> Any:
        """Makes one call."""
        name = call.script.name if call.script else str(call.args[0])
        if name in _PRODUCERS:
            return self._of[RoleName.PRODUCER].call(call)
        if name in _CONSUMERS:
            return self._of[RoleName.CONSUMER].call(call)
        if name == "list_messages":
            return self._of[RoleName.READER].call(call)
        return (self._of[RoleName.MANAGER] if call.script else self._admin).call(call)

    def execute(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Looks at keys, as the tests do."""
        return self._admin.execute(calls)

    def close(self) -> None:
        """Closes all connections."""
        for connection in (self._admin, *self._of.values()):
            connection.close()


Deed = tuple[RoleName, str, str]
"""A command of a user on a key; see `key_name`."""

_CONTAINERS = {"client", "cluster", "memory", "script", "xinfo", "xgroup"}
_NAMES = {
    "lisa-producer": RoleName.PRODUCER,
    "lisa-consumer": RoleName.CONSUMER,
    "lisa-manager": RoleName.MANAGER,
    "lisa-operator": RoleName.MANAGER,
    "lisa-lender": RoleName.GATEWAY,
    **{str(role): role for role in RoleName},
}
_LINE = re.compile(r"\S+ \[\d+ (\S+)\] (.*)$", re.DOTALL)
_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"')


def key_name(prefix: str, key: str) -> str:
    """The name of a key, or of the channel, in `lisa_common.model.keys`, for any topic; empty for none of these."""
    shared = {topics_key(prefix): "topics", dropped_key(prefix): "dropped", idle_key(prefix): "idle"}
    shared[schedules_key(prefix)] = "old schedules"
    shared |= {wake_channel(prefix): "wake", events_channel(prefix): "events"}
    shared |= {activity_key(prefix): "activity", operations_key(prefix): "operations", managers_key(prefix): "managers"}
    shared |= {workers_key(prefix): "workers", wishes_key(prefix): "wishes"}
    of_topic = re.fullmatch(rf"{prefix}:{{[^}}]+}}:(\w+)(:.*)?", key)
    known = of_topic and of_topic[1] in (("loan", "note", "query") if of_topic[2] else (*TOPIC_KEYS, HISTORY, "pace"))
    return of_topic[1] if of_topic and known else shared.get(key, "")


@dataclass
class _Watcher:
    prefix: str
    deeds: set[Deed] = field(default_factory=set)
    undeclared: set[tuple[str, str]] = field(default_factory=set)
    """Commands of scripts on keys that the call does not name, which some servers refuse."""
    _roles: dict[str, RoleName | None] = field(default_factory=dict)
    _last: RoleName | None = None
    _declared: set[str] = field(default_factory=set)

    def see(self, line: str) -> None:
        """Takes in a line of MONITOR; what a script calls follows the call of the script."""
        found = _LINE.match(line)
        if not found:
            return
        verb, *words = _WORD.findall(found[2])
        verb = verb.lower()
        if verb in _CONTAINERS:
            verb += f"|{words[0].lower()}"
        if verb == "auth":
            # A new connection, perhaps from the port of one that has ended.
            self._roles.pop(found[1], None)
        if verb == "client|setname":
            self._roles[found[1]] = _NAMES.get(words[1])
        if found[1] != "lua":
            self._last = self._roles.get(found[1])
            self._declared = set(words[2 : 2 + int(words[1])]) if verb in ("eval", "evalsha") else set()
        elif not verb.endswith("publish"):
            keys = {word for word in words if key_name(self.prefix, word) not in ("", "wake", "events")}
            self.undeclared |= {(verb, key) for key in keys - self._declared}
        # Who may run a script on some keys may run it on none.
        if self._last and not (verb == "evalsha" and words[1] == "0"):
            names = {key_name(self.prefix, word) for word in words} - {""}
            if not verb.endswith(("publish", "subscribe")):
                names -= {"wake", "events"}  # arguments
            self.deeds |= {(self._last, verb, name) for name in names or {""}}


@contextmanager
def watched(server: Server, prefix: str) -> Iterator[set[Deed]]:
    """Watches the commands of users on the keys of our topic; all are known when the block has ended."""
    watcher = _Watcher(prefix)
    with server.client() as client, client.monitor() as monitor:

        def listen() -> None:
            while "the end of the watch" not in (line := monitor.connection.read_response().decode("utf-8", "replace")):
                watcher.see(line)

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield watcher.deeds
        finally:
            with server.client() as other:
                other.echo("the end of the watch")
            thread.join()
    assert not watcher.undeclared


class Rights:
    """Asks the server of a user's rights: each of its commands, on each of some keys."""

    def __init__(self, admin: Connection, keys: Iterable[str]) -> None:
        self._admin = admin
        found: list[Any] = admin.call(command("COMMAND"))
        self._probes = [probe for info in found for probe in _probes_of(info, list(keys))]

    def of(self, user: str) -> set[tuple[str, str]]:
        """Pairs of command and key that the user may use; an empty key for commands without."""
        replies = self._admin.execute([command("ACL", "DRYRUN", user, *probe.words) for probe in self._probes])
        return {probe[:2] for probe, reply in zip(self._probes, replies, strict=True) if reply == b"OK"}


class Probe(NamedTuple):
    """A command as it may be sent, and the one key that it is about."""

    command: str
    key: str
    words: list[str]


# Commands whose keys stand behind a number or a word.
_MOVABLE: dict[str, Callable[[str], list[str]]] = {
    **dict.fromkeys(("eval", "eval_ro", "evalsha", "evalsha_ro", "fcall", "fcall_ro"), lambda key: ["x", "1", key]),
    **dict.fromkeys(("zunion", "zinter", "zdiff", "zintercard", "sintercard"), lambda key: ["1", key]),
    **dict.fromkeys(("lmpop",), lambda key: ["1", key, "LEFT"]),
    **dict.fromkeys(("zmpop",), lambda key: ["1", key, "MIN"]),
    **dict.fromkeys(("blmpop",), lambda key: ["1", "1", key, "LEFT"]),
    **dict.fromkeys(("bzmpop",), lambda key: ["1", "1", key, "MIN"]),
    "xread": lambda key: ["STREAMS", key, "0"],
    "xreadgroup": lambda key: ["GROUP", "g", "c", "STREAMS", key, ">"],
    "migrate": lambda key: ["h", "1", key, "0", "1"],
    **dict.fromkeys(("publish", "spublish"), lambda channel: [channel, "x"]),
    **dict.fromkeys(("subscribe", "ssubscribe", "psubscribe"), lambda channel: [channel]),
}


def _probes_of(info: list[Any], keys: list[str]) -> Iterator[Probe]:
    name, arity, flags, first, last, step = info[:6]
    name = name.decode()
    if subcommands := info[9] if len(info) > 9 else []:
        for subcommand in subcommands:
            yield from _probes_of(subcommand, keys)
        return
    if b"no_auth" in flags:
        return  # no rule can forbid AUTH
    words = name.split("|")
    if template := _MOVABLE.get(name):
        yield from (Probe(name, key, [name, *template(key)]) for key in keys)
    elif first == 0:
        yield Probe(name, "", [*words, *["x"] * (abs(arity) - len(words))])
    else:
        length = max(abs(arity), first + 1, last + 1)
        for key in keys:
            filled = [*words, *["1"] * (length - len(words))]
            for at in range(first, (length if last < 0 else last + 1), step or 1):
                filled[at] = key
            yield Probe(name, key, filled)
