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
    """The records of messages, None for each missing one; or the text of an error that concerns the whole topic."""
    decode = partial(_records, least=len(ids), most=len(ids))
    return command("HMGET", keys.of("messages"), *ids, decode=decode, takes_errors=True)


def fetch_within(keys: ShardKeys, ids: Sequence[str], *, most_bytes: int, least: int) -> Call[list[bytes | None] | str]:
    """As `fetch`, for the first messages only: `least` of them, and more while all fit in `most_bytes`."""
    decode = partial(_records, least=least, most=len(ids))
    call = script("fetch", keys, [(id,) for id in ids], decode=decode, most_bytes=most_bytes, least=least)
    return call._replace(takes_errors=True)


def _records(reply: Any, *, least: int, most: int) -> list[bytes | None] | str:
    if isinstance(reply, OF_THE_SERVER):
        raise reply
    if isinstance(reply, LisaError):
        return str(reply)
    return byte_values(reply, min(max(least, len(rows(reply))), most))
