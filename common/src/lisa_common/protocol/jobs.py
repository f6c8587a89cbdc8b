"""Calls about jobs that write from many processes: their shared rate, and what each part of them has written."""

from collections.abc import Mapping
from typing import Any

from lisa_common.model.keys import ShardKeys
from lisa_common.protocol.call import Call, Flow, command, script
from lisa_common.protocol.replies import number

__all__ = ["claim_part", "forget_written", "keep_written", "read_written", "reserve"]


def reserve(keys: ShardKeys, job: str, *, rate: float, count: int, now_ms: str = "") -> Call[int]:
    """Reserves a part of a job's rate, in messages per second. Returns how long to wait before sending, in ms."""
    return script("reserve", keys, decode=number, repeatable=False, now_ms=now_ms, job=job, rate=rate, count=count)


def read_written(keys: ShardKeys, job: str, part: str) -> Call[str | None]:
    """What is known of a part of a job."""
    return command("HGET", keys.query(job), part, decode=lambda reply: None if reply is None else reply.decode())


def keep_written(keys: ShardKeys, job: str, parts: Mapping[str, str], kept_ms: int) -> Flow[None]:
    """Stores what parts of a job have written, until the job has not written for `kept_ms`."""
    fields = [text for part in parts.items() for text in part]
    key = keys.query(job)
    # In one request: a program that dies between two would leave a key that does not expire.
    _, expires = yield command("HSET", key, *fields), command("PEXPIRE", key, kept_ms)
    if not expires:
        # The first call was refused at first, and repeated after the second.
        yield command("PEXPIRE", key, kept_ms)


def claim_part(keys: ShardKeys, job: str, part: str, owner: str, kept_ms: int) -> Flow[str]:
    """Claims a part of a job for an owner, unless it has one. Returns its owner."""
    key = keys.query(job)
    is_ours, held, expires = yield (
        command("HSETNX", key, part, owner),
        read_written(keys, job, part),
        command("PEXPIRE", key, kept_ms),
    )
    if not expires or not (is_ours or held):
        # The claim was refused at first, and repeated after the others.
        _, held = yield command("PEXPIRE", key, kept_ms), read_written(keys, job, part)
    return owner if is_ours else held or owner


def forget_written(keys: ShardKeys, job: str) -> Call[Any]:
    """Forgets all parts of a job."""
    return command("UNLINK", keys.query(job))
