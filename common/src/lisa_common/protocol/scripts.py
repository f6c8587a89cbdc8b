"""The Lua scripts: their text with includes resolved, and what their headers declare.

A header names every key and argument of its script, in order:

    -- KEYS[1] messages   hash    message id -> record
    -- ARGV[1] now_ms     ms, empty for the server's clock
    -- ARGV[2...] id, due per message

The header is what `Script.bind` goes by, so a call cannot pass other keys or arguments than are written there.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from itertools import chain

from lisa_common.model.keys import ShardKeys

__all__ = ["SCRIPT_NAMES", "Arg", "Script", "load"]

Arg = str | bytes | int | float

SCRIPT_NAMES = (
    "ack",
    "cancel",
    "close_shard",
    "drop",
    "drop_group",
    "end_copies",
    "extend",
    "fetch",
    "find",
    "forget_drop",
    "inspect",
    "join",
    "list_messages",
    "list_pending",
    "nack",
    "promote",
    "purge",
    "reclaim",
    "release",
    "repair",
    "replay",
    "reschedule",
    "reset",
    "scan",
    "send",
    "set_policy",
    "skip",
    "sweep",
    "trim",
)

_INCLUDE = re.compile(r"^--@include (\w+)\n", re.MULTILINE)
_FUNCTION = re.compile(r"^local function (\w+)\(.*?^end\n", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"--.*")
_KEY = re.compile(r"^-- KEYS\[(\d+)\] (\w+)", re.MULTILINE)
_ARG = re.compile(r"^-- ARGV\[(\d+)\] (\w+)", re.MULTILINE)
_ROW = re.compile(r"^-- ARGV\[(\d+)\.\.\.\] (\w+(?:, \w+)*) per ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """One script. `keys` are names of `TOPIC_KEYS`; `row` names the values that repeat for each item of a batch."""

    name: str
    text: str
    sha: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    row: tuple[str, ...]
    _names: frozenset[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_names", frozenset(self.args))

    def bind(self, keys: ShardKeys, rows: Iterable[Sequence[Arg]] = (), /, **args: Arg) -> tuple[Arg, ...]:
        """What follows the SHA in an EVALSHA: number of keys, keys, arguments by name, rows flattened.

        Raises TypeError when the arguments are not those that the header declares.
        """
        if args.keys() != self._names:
            raise TypeError(f"{self.name} takes {self.args}, not {tuple(args)}")
        if rows and not self.row:
            raise TypeError(f"{self.name} takes no rows")
        return (
            len(self.keys),
            *keys.of_each(self.keys),
            *map(args.__getitem__, self.args),
            *chain.from_iterable(rows),
        )


@cache
def load(name: str) -> Script:
    """The script of that name, one of `SCRIPT_NAMES`."""
    text = _without_idle_functions(_INCLUDE.sub(lambda match: _read(f"include/{match[1]}"), _read(name)))
    row = _ROW.search(text)
    return Script(
        name=name,
        text=text,
        sha=hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(),
        keys=tuple(match[2] for match in _KEY.finditer(text)),
        args=tuple(match[2] for match in _ARG.finditer(text)),
        row=tuple(row[2].split(", ")) if row else (),
    )


def _without_idle_functions(text: str) -> str:
    """The script without the functions that nothing in it names: the server would make each anew in every call.

    A send of one message takes a tenth less of the server's time for it.
    """
    named = Counter(re.findall(r"\w+", _COMMENT.sub("", text)))
    idle = [match[0] for match in _FUNCTION.finditer(text) if named[match[1]] == 1]
    for function in idle:
        text = text.replace(function, "")
    return _without_idle_functions(text) if idle else text


def _read(path: str) -> str:
    # Through importlib, as the package may be imported from a zip file.
    return resources.files("lisa_common").joinpath("lua", f"{path}.lua").read_text("utf-8")
