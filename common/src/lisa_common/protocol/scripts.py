"""The Lua scripts: their text, and what their headers declare.

A header names every key and argument of its script, in order; `lisa_common.protocol.rendering` says how.
`Script.bind` follows the header, so a call can pass only the keys and arguments that the header names.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from itertools import chain

from lisa_common.model.keys import ShardKeys, wake_channel
from lisa_common.protocol.rendering import read_header, render

__all__ = ["READS", "SCRIPT_NAMES", "Arg", "Script", "load"]

Arg = str | bytes | int | float

# Through importlib, as the package may be imported from a zip file.
_LUA = resources.files("lisa_common").joinpath("lua")

SCRIPT_NAMES = tuple(sorted(file.name.removesuffix(".lua") for file in _LUA.iterdir() if file.name.endswith(".lua")))


READS = frozenset(
    (
        *("ACL", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "DBSIZE", "EXISTS", "GET", "HEXISTS"),
        *("HGET", "HGETALL", "HKEYS", "HLEN", "HMGET", "HSCAN", "HSTRLEN", "INFO", "MEMORY"),
        *("OBJECT", "PING", "PUBLISH", "SCAN", "SCRIPT", "TIME", "TYPE", "WAIT", "WAITAOF", "XINFO"),
        *("XLEN", "XPENDING", "XRANGE", "XREAD", "XREVRANGE", "ZCARD", "ZCOUNT", "ZLEXCOUNT"),
        *("ZMSCORE", "ZRANGE", "ZSCAN", "ZSCORE"),
    )
)
"""Commands that change no key. Whatever is not named here counts as a write."""

_COMMAND = re.compile(r"redis\.p?call\(\s*'([A-Z]+)")


@dataclass(frozen=True, slots=True)
class Script:
    """One script. `keys` are names of `TOPIC_KEYS`; `row` names the values that repeat for each item of a batch."""

    name: str
    text: str
    sha: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    row: tuple[str, ...]
    writes: bool = field(init=False)
    _names: frozenset[str] = field(init=False, repr=False)
    _key_count: str = field(init=False, repr=False)
    _wakes: bool = field(init=False, repr=False)
    """True if it may wake managers: it publishes the tag of its shard on their channel."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_names", frozenset(self.args))
        object.__setattr__(self, "_wakes", self._names.issuperset(("channel", "topic")))
        object.__setattr__(self, "_key_count", str(len(self.keys)))
        object.__setattr__(self, "writes", not READS.issuperset(_COMMAND.findall(self.text)))

    def bind(self, keys: ShardKeys, rows: Iterable[Sequence[Arg]] = (), /, **args: Arg) -> tuple[Arg, ...]:
        """The command: EVALSHA, SHA, number of keys, keys, arguments by name, rows or columns flattened.

        Raises TypeError when the arguments are not those that the header declares.
        """
        if rows and not self.row:
            raise TypeError(f"{self.name} takes no rows")
        return (*self.head(keys, **args), *chain.from_iterable(rows))

    def head(self, keys: ShardKeys, **args: Arg) -> tuple[Arg, ...]:
        """The command without its rows; raises TypeError as `bind` does.

        What a script needs to wake managers, `channel` and `topic`, need not be given.
        """
        if self._wakes:
            args = {"channel": wake_channel(keys.prefix), "topic": keys.tag} | args
        if args.keys() != self._names:
            raise TypeError(f"arguments of {self.name} must be {self.args}; got {tuple(args)}")
        # Numbers as text: a command whose arguments hold none is packed more quickly.
        values = [str(arg) if isinstance(arg, int | float) else arg for arg in map(args.__getitem__, self.args)]
        return ("EVALSHA", self.sha, self._key_count, *keys.of_each(self.keys), *values)


@cache
def load(name: str) -> Script:
    """The script of that name, one of `SCRIPT_NAMES`."""
    header, text = read_header(_read(name)), render(name, _read)
    return Script(
        name=name,
        text=text,
        sha=hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(),
        keys=header.keys,
        args=header.args,
        row=header.row,
    )


@cache
def _read(path: str) -> str:
    return _LUA.joinpath(f"{path}.lua").read_text("utf-8")
