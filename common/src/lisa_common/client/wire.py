"""The parts of a client without I/O: packed calls, results of replies, greetings, and scripts to call again."""

import struct
from collections.abc import Generator, Sequence
from typing import Any

import hiredis
import redis.exceptions as redis_errors

from lisa_common.client.options import CALL
from lisa_common.client.refusals import Refusals
from lisa_common.client.translation import first_line, is_command_refused, lisa_error
from lisa_common.errors import LisaError, UnreadableReply
from lisa_common.model.message import RepeatedDue
from lisa_common.model.needs import Optional
from lisa_common.protocol.call import PING, Call, command, units
from lisa_common.protocol.scripts import Arg

__all__ = [
    "check_greeting",
    "check_replies",
    "forgotten",
    "greeting",
    "has_errors",
    "merge_waits",
    "pack",
    "read_reply",
    "refused",
    "repeats",
]


def has_errors(results: Sequence[Any]) -> bool:
    """Whether there are errors among replies or results."""
    for result in results:  # noqa: SIM110 - runs for every call, and `any` takes three times as long
        if isinstance(result, Exception):
            return True
    return False


def check_replies(replies: Sequence[Any]) -> None:
    """Raises the first error among replies, as a LisaError."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise lisa_error(reply) from reply


def pack(calls: Sequence[Call[Any]], *, with_texts: bool = False) -> bytes:
    """Packs calls for the wire, `with_texts` of scripts in place of their SHAs.

    Lisa packs and sends by itself: the Redis client's commands, with their retries, metrics, callbacks and packing,
    would take a third of the time of a send.
    """
    if with_texts:
        calls = _as_texts(calls)
    if len(calls) == 1:
        packed: bytes = hiredis.pack_command(_texts(calls[0].args))  # type: ignore[arg-type] # declared for one item
        return packed
    return b"".join([hiredis.pack_command(_texts(call.args)) for call in calls])  # type: ignore[arg-type] # declared for one item


def _as_texts(calls: Sequence[Call[Any]]) -> list[Call[Any]]:
    """The same calls, with the text of each script in place of its SHA."""
    return [call._replace(args=("EVAL", call.script.text, *call.args[2:])) if call.script else call for call in calls]


_CONVERTED = frozenset((int, float, bool, RepeatedDue))


def _texts(args: tuple[Arg, ...]) -> tuple[Arg, ...]:
    """The arguments as text.

    hiredis has Python convert them, and crashes where a signal handler raises meanwhile, as for Ctrl-C.
    """
    if _CONVERTED.isdisjoint(map(type, args)):
        return args
    return tuple([str(arg) if type(arg) in _CONVERTED else arg for arg in args])


_WAITS = ("WAIT", "WAITAOF")
_FEWEST_WITH_WAITS = 4
"""Two calls with a wait behind each: most pipelines are shorter, and need no look."""


def merge_waits(calls: Sequence[Call[Any]]) -> tuple[Sequence[Call[Any]], Sequence[int] | None]:
    """Leaves out each WAIT that a later, equal one of the pipeline covers: each would wait for a disk of its own.

    Returns the calls to make, and for each given call the position of its reply; None if all calls are made.
    """
    if len(calls) < _FEWEST_WITH_WAITS:
        return calls, None
    waits = [at for at, call in enumerate(calls) if call.args[0] in _WAITS]
    last = {calls[at].args: at for at in waits}
    if len(last) == len(waits):
        return calls, None
    made = [at for at, call in enumerate(calls) if call.args[0] not in _WAITS or last[call.args] == at]
    places = {at: place for place, at in enumerate(made)}
    return [calls[at] for at in made], [
        places[at] if at in places else places[last[call.args]] for at, call in enumerate(calls)
    ]


_LOADS = 3
"""Most times that scripts are loaded for one request: a proxy in front of several servers may never keep them."""


def forgotten(calls: Sequence[Call[Any]], replies: Sequence[Any]) -> list[int]:
    """Positions of the calls whose scripts the server forgot, or runs by text only, and of the keyless calls behind."""
    missing = {
        at
        for at, (call, reply) in enumerate(zip(calls, replies, strict=True))
        if isinstance(reply, redis_errors.NoScriptError) or (call.script and is_command_refused(reply))
    }
    return [at for unit in units(calls) if missing.intersection(unit) for at in unit] if missing else []


def refused(replies: Sequence[Any]) -> Exception | None:
    """The first reply that refuses a command; nothing was done."""
    return next((reply for reply in replies if is_command_refused(reply)), None)


def _script_refused(calls: Sequence[Call[Any]], replies: Sequence[Any]) -> Exception | None:
    """The first reply that refuses a script. The server may not know a call that follows one, such as WAITAOF."""
    return refused([reply for call, reply in zip(calls, replies, strict=True) if call.script])


def _script_loads(calls: Sequence[Call[Any]]) -> list[Call[Any]]:
    """Calls that load the scripts of these calls."""
    return [command("SCRIPT", "LOAD", script.text) for script in {call.script for call in calls if call.script}]


_OF_DATA = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)
"""What decoding raises on data that others wrote."""


def read_reply(call: Call[Any], reply: Any) -> Any:
    """The result of a call, or its LisaError.

    What `decode` raises on damaged data is an error of this call alone. Anything else is not about the reply: a signal
    handler may raise at any moment, as for a time limit.
    """
    if isinstance(reply, LisaError):
        return reply
    if isinstance(reply, Exception):
        reply = lisa_error(reply)
        if not call.takes_errors:
            return reply
    try:
        return call.decode(reply)
    except LisaError as error:
        return error
    except _OF_DATA as error:
        name = call.script.name if call.script else str(call.args[0])
        return UnreadableReply(f"the reply to {name} cannot be read: {first_line(error)}; got {_excerpt(reply)}")


_MOST_ITEMS, _MOST_TEXT = 6, 60


def _excerpt(reply: Any, depth: int = 2) -> str:
    """The beginning of a reply, in printable characters."""
    if isinstance(reply, list):
        if not depth:
            return "[…]"
        items = [_excerpt(item, depth - 1) for item in reply[:_MOST_ITEMS]]
        return f"[{', '.join(items)}{', …' if len(reply) > _MOST_ITEMS else ''}]"
    if isinstance(reply, bytes | str):
        return repr(reply[:_MOST_TEXT]) + ("…" if len(reply) > _MOST_TEXT else "")
    return ascii(reply)[:_MOST_TEXT]


def greeting(channel: str) -> list[Call[Any]]:
    """Returns the first calls to a server: a PING, and a publication on the channel if there is one."""
    return [PING, command("PUBLISH", channel, CALL)] if channel else [PING]


def check_greeting(replies: Sequence[Any], refusals: Refusals) -> None:
    """Notes a refused publication. Raises the error of the PING, unless that is refused: such a server answers."""
    reply, *published = replies
    for refusal in published:
        if isinstance(refusal, redis_errors.ResponseError):
            refusals.note(Optional.PUBLISH, refusal)
    if isinstance(reply, Exception) and not is_command_refused(reply):
        raise reply


def repeats(
    calls: Sequence[Call[Any]], replies: list[Any], refusals: Refusals
) -> Generator[list[Call[Any]], list[Any], None]:
    """Repeats the calls whose scripts the server lacks or refuses to run by SHA, and puts in their new replies.

    Yields calls, and takes their replies, or a LisaError. That is the reply of these calls only: the others are done.
    """
    for _ in range(_LOADS):
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
    refusal, kind = _script_refused(calls, replies), Optional.EVALSHA
    if refusal is None:
        loads = yield _script_loads(calls)
        refusal, kind = refused(loads), Optional.LOAD
        if refusal is None:
            check_replies(loads)
            return (yield calls)
    again = yield _as_texts(calls)
    if _script_refused(calls, again):
        return None
    refusals.note(kind, refusal)
    return again
