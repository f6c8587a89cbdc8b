"""What both clients of a server do beside their callers' calls, without I/O: the first call, and scripts again."""

from collections.abc import Generator, Sequence
from typing import Any

from redis.exceptions import ResponseError

from lisa_common.client.options import CALL
from lisa_common.client.refusals import Refusals
from lisa_common.client.translation import is_command_refused
from lisa_common.client.wire import LOADS, as_texts, check_replies, forgotten, refused, script_loads, script_refused
from lisa_common.errors import LisaError
from lisa_common.model.needs import Optional
from lisa_common.protocol.call import PING, Call, command

__all__ = ["check_greeting", "greeting", "repeats"]


def greeting(channel: str) -> list[Call[Any]]:
    """Returns the first calls to a server: a PING, and a publication on the channel if there is one."""
    return [PING, command("PUBLISH", channel, CALL)] if channel else [PING]


def check_greeting(replies: Sequence[Any], refusals: Refusals) -> None:
    """Notes a refused publication. Raises the error of the PING, unless that is refused: such a server answers."""
    reply, *published = replies
    for refusal in published:
        if isinstance(refusal, ResponseError):
            refusals.note(Optional.PUBLISH, refusal)
    if isinstance(reply, Exception) and not is_command_refused(reply):
        raise reply


def repeats(
    calls: Sequence[Call[Any]], replies: list[Any], refusals: Refusals
) -> Generator[list[Call[Any]], list[Any], None]:
    """Repeats the calls whose scripts the server lacks or refuses to run by SHA, and puts in their new replies.

    Yields calls, and takes their replies, or a LisaError. That is the reply of these calls only: the others are done.
    """
    for _ in range(LOADS):
        positions = forgotten(calls, replies)
        if not positions:
            return
        left = [calls[at] for at in positions]
        try:
            again = yield from _repeat(left, [replies[at] for at in positions], refusals)
        except LisaError as error:
            again = [error] * len(left)
        if again is None:
            return
        for at, reply in zip(positions, again, strict=True):
            replies[at] = reply


def _repeat(
    calls: list[Call[Any]], replies: Sequence[Any], refusals: Refusals
) -> Generator[list[Call[Any]], list[Any], list[Any] | None]:
    """Loads the scripts first, or sends their texts if loading is refused. Returns new replies, None if refused too."""
    refusal, kind = script_refused(calls, replies), Optional.EVALSHA
    if refusal is None:
        loads = yield script_loads(calls)
        refusal, kind = refused(loads), Optional.LOAD
        if refusal is None:
            check_replies(loads)
            return (yield calls)
    again = yield as_texts(calls)
    if script_refused(calls, again):
        return None
    refusals.note(kind, refusal)
    return again
