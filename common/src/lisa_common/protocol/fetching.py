"""Calls that fetch the records of messages."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from lisa_common.errors import OF_THE_SERVER, LisaError
from lisa_common.model.keys import ShardKeys
from lisa_common.protocol.call import Call, command, script
from lisa_common.protocol.replies import byte_values, rows

__all__ = ["fetch", "fetch_within"]


def fetch(keys: ShardKeys, ids: Sequence[str]) -> Call[list[bytes | None] | str]:
    """The records of messages, None for each that has none; or, as text, what is wrong with all of this topic's."""
    decode = partial(_records, least=len(ids), most=len(ids))
    return command("HMGET", keys.of("messages"), *ids, decode=decode, takes_errors=True)


def fetch_within(keys: ShardKeys, ids: Sequence[str], *, most_bytes: int, least: int) -> Call[list[bytes | None] | str]:
    """The same of the first messages only: of `least`, and of more while all are not larger than `most_bytes`."""
    decode = partial(_records, least=least, most=len(ids))
    call = script("fetch", keys, [(id,) for id in ids], decode=decode, most_bytes=most_bytes, least=least)
    return call._replace(takes_errors=True)


def _records(reply: Any, *, least: int, most: int) -> list[bytes | None] | str:
    if isinstance(reply, OF_THE_SERVER):
        raise reply
    if isinstance(reply, LisaError):
        return str(reply)
    return byte_values(reply, min(max(least, len(rows(reply))), most))
