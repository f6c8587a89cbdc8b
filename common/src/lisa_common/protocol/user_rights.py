"""Which commands of a role the server refuses to the user, before any of them is needed."""

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Self

from lisa_common.errors import AccessDenied, ServerError
from lisa_common.model.keys import HISTORY, ShardKeys, beside_key, dropped_key, events_channel, wake_channel
from lisa_common.model.needs import LOSSES, NEEDED, Optional
from lisa_common.model.rights import ROLES, Role, RoleName
from lisa_common.protocol.call import Flow, script

__all__ = ["OPTIONAL", "Verdict", "commands_of", "find_refused"]

_SHA = "0" * 40

OPTIONAL = {
    "client|setname": Optional.NAME,
    "client|id": Optional.UNBLOCK,
    "client|unblock": Optional.UNBLOCK,
    **{each.lower().replace(" ", "|"): each for each in Optional},
}
"""What can be worked around, by commands as rules name them."""

_HARMLESS = ("client|setinfo", "cluster|info", "eval", "ping")
"""Commands without which nothing is lost."""

_OF_WORKERS = ("workers", "wishes")
"""Keys without which operators see no workers, and all else works."""

_UNCHECKED = (*_OF_WORKERS, "schedules")
"""Keys without which a role works all the same."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a role can do where some of its commands are refused."""

    role: RoleName
    needed: tuple[str, ...]
    """Refused commands without which the role cannot work."""
    lost: tuple[Optional, ...]
    """Refused commands that it works around."""
    failing: tuple[str, ...]
    """Other refused commands: calls that use them fail."""

    @classmethod
    def of(cls, role: RoleName, refused: Collection[str]) -> Self:
        """The verdict on a role."""
        needed = sorted(NEEDED[role].intersection(refused))
        lost = dict.fromkeys(OPTIONAL[name] for name in sorted(refused) if name in OPTIONAL)
        failing = sorted(set(refused).difference(needed, OPTIONAL, _HARMLESS))
        return cls(role, _shown(needed), tuple(lost), _shown(failing))

    @property
    def refusal(self) -> str:
        """Why the role cannot work, in one line; "" if it can."""
        if not self.needed:
            return ""
        commands = ", ".join(self.needed)
        return f"a {self.role} needs {commands}, which the server refuses; {_remedy(self.role)}"

    @property
    def partly(self) -> str:
        """What else fails, in one line; "" if nothing does."""
        if not self.failing:
            return ""
        commands = ", ".join(self.failing)
        return f"the server refuses {commands}: calls of a {self.role} that use them fail; {_remedy(self.role)}"

    def lines(self) -> list[str]:
        """What the role can do, for people."""
        if self.needed:
            return [f"as {self.role}: does not work: {self.refusal}"]
        losses = [LOSSES[each].line(each) for each in self.lost] + [self.partly] * bool(self.failing)
        return [f"as {self.role}: works, but {loss}" for loss in losses] or [f"as {self.role}: works"]


def _remedy(role: RoleName) -> str:
    return f"ask the provider to allow them (`lisa-manager acl {role}` prints the rules of such a user)"


def _shown(commands: Iterable[str]) -> tuple[str, ...]:
    return tuple(command.replace("|", " ").upper() for command in commands)


def find_refused(role: RoleName, keys: ShardKeys, *, in_cluster: bool) -> Flow[set[str]]:
    """Returns the commands that the server refuses, such as `xinfo|groups`; none where it does not tell.

    `keys` are those of a topic of the user. A user of other topics only is not checked for what topics need.
    """
    rights = ROLES[role]
    general, of_topic = list(_general(rights, keys.prefix, in_cluster=in_cluster)), list(_of_topic(rights, keys))
    # By names of their own, as users with the rules of earlier releases may not use these keys.
    marks = _on("hmget", dropped_key(keys.prefix))
    general = [(Optional.DROPPED.lower() if words == marks else name, words) for name, words in general]
    of_workers = ((name, command) for name in _OF_WORKERS for command in rights.beside.get(name, "").split())
    general += [(Optional.WORKERS.lower(), _on(command, beside_key(keys.prefix, name))) for name, command in of_workers]
    rows = [(json.dumps(words),) for _, words in (*general, *of_topic)]
    try:
        allowed: list[int] = yield script("check_rights", keys, rows)
    except AccessDenied:
        raise
    except ServerError:
        # Not all servers have the function.
        return set()
    if not any(allowed[len(general) :]):
        of_topic = []
    return {name for (name, _), may in zip((*general, *of_topic), allowed, strict=False) if not may}


def commands_of(role: RoleName) -> set[str]:
    """All commands that a role uses, as rules name them."""
    keys = ShardKeys("lisa", "any")
    rows = (*_general(ROLES[role], keys.prefix, in_cluster=False), *_of_topic(ROLES[role], keys))
    return {name for name, _ in rows}


def _general(rights: Role, prefix: str, *, in_cluster: bool) -> Iterator[tuple[str, list[str]]]:
    for command in f"{rights.keyless} {rights.in_cluster if in_cluster else ''}".split():
        yield command, [*_words(command), *["x"] * 2]
    for commands, place in (
        (rights.channel, wake_channel(prefix)),
        (rights.events, events_channel(prefix)),
        *((on, beside_key(prefix, name)) for name, on in rights.beside.items() if name not in _UNCHECKED),
    ):
        for command in commands.split():
            yield command, _on(command, place)


def _of_topic(rights: Role, keys: ShardKeys) -> Iterator[tuple[str, list[str]]]:
    for names, commands in rights.on.items():
        for name in names.split():
            # Keys that are named for a message are those of Spark and of gateways.
            if ":" not in name:
                is_named = "*" in name or name == HISTORY
                for command in f"{commands} {'' if is_named else rights.on_all}".split():
                    yield command, _on(command, keys.of(name.rstrip("*")))


def _on(command: str, key: str) -> list[str]:
    """The words of a command on a key, as far as the server looks at them."""
    if command == "evalsha":
        return ["evalsha", _SHA, "1", key]
    if command == "xreadgroup":
        return ["xreadgroup", "GROUP", "g", "c", "STREAMS", key, ">"]
    return [*_words(command), key]


def _words(command: str) -> list[str]:
    return command.split("|")
