"""Lets time pass on a server, without waiting: what is stored becomes older, and the clocks stay as they are.

So every program and script runs as it is, and Python's clock agrees with the server's. A message that is due in two
hours is due now after `age(keys, 7_200_000)`, and was sent two hours ago.
"""

import hashlib
from functools import cache
from importlib import resources

from lisa_common.model.keys import ShardKeys
from lisa_common.protocol.call import Call
from lisa_common.protocol.rendering import read_header, render
from lisa_common.protocol.scripts import Script

__all__ = ["age"]

_NAME = "age"


def age(keys: ShardKeys, by_ms: int) -> Call[int]:
    """Lets time pass for a shard. Returns how many records became older."""
    script = _script()
    return Call(script.bind(keys, by_ms=by_ms), int, script, repeatable=False)


@cache
def _script() -> Script:
    header, text = read_header(_read(_NAME)), render(_NAME, _read)
    sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return Script(name=_NAME, text=text, sha=sha, keys=header.keys, args=header.args, row=header.row)


def _read(path: str) -> str:
    own = resources.files("lisa_testing").joinpath(f"{path}.lua")
    # Includes are those of Lisa's own scripts.
    source = own if path == _NAME else resources.files("lisa_common").joinpath("lua", f"{path}.lua")
    return source.read_text("utf-8")
