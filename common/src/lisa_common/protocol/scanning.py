"""Reading a whole hash or sorted set page by page, so that no other client waits long."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lisa_common.model.keys import KEY_TYPES, ShardKeys, bytes_of
from lisa_common.protocol.call import Call, Flow, command
from lisa_common.protocol.replies import pairs, rows
from lisa_common.protocol.scripts import Arg

__all__ = ["Scan", "literal", "scan"]

_FIRST = b"0"
_SPECIAL = re.compile(rb"([\\*?\[\]^-])")


def literal(text: str) -> bytes:
    """A pattern that matches this text alone, as part of a `match`."""
    return _SPECIAL.sub(rb"\\\1", bytes_of(text))


@dataclass(slots=True)
class Scan:
    """A scan by a cursor. Members that stay are met at least once; others may be met or not."""

    call: Callable[[bytes], Call[Any]]
    """Makes the call for the page at a cursor; its reply is the next cursor and a flat list."""
    done: bool = False
    _cursor: bytes = _FIRST

    def next_page(self) -> Flow[list[tuple[bytes, bytes]]]:
        """The next members with their values or scores, which may be none. Sets `done` after the last page."""
        self._cursor, flat = rows((yield self.call(self._cursor)), 2)
        self.done = self._cursor == _FIRST
        return list(pairs(flat))


def scan(keys: ShardKeys, name: str, *, count: int, match: bytes | None = None) -> Scan:
    """A scan of one key of a shard, a hash or a sorted set, about `count` members a page."""
    verb = "HSCAN" if KEY_TYPES[name] == "hash" else "ZSCAN"
    pattern: tuple[Arg, ...] = () if match is None else ("MATCH", match)
    return Scan(lambda cursor: command(verb, keys.of(name), cursor, *pattern, "COUNT", count))
