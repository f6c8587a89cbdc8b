"""Requests to several nodes of a Cluster at once: an exchange, or a race, which ends with the first result."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from lisa_common.client.address import NodeName
from lisa_common.client.translation import is_command_refused
from lisa_common.errors import LisaError, OutcomeUnknown, Unreachable
from lisa_common.protocol.call import Call, command
from lisa_common.protocol.producing import SENDS

__all__ = [
    "CLIENT_ID",
    "STRAGGLE_S",
    "Answer",
    "Fanout",
    "Part",
    "awaited_reply",
    "first_error",
    "is_news",
    "may_abandon",
    "merge_reads",
    "no_reply",
    "silent",
    "unblock",
]

STRAGGLE_S = 1.0
"""How long a node may take to end its wait after a race: the result of the race is held back meanwhile."""


class Part(NamedTuple):
    """Calls to one node, in one pipeline."""

    node: NodeName
    calls: Sequence[Call[Any]]


class Fanout(NamedTuple):
    """Parts to send to several nodes at once.

    In a race each part blocks a connection of its own. Its first reply is the id of that client. Once any
    part has ended before its time was up, the other clients must be unblocked.
    """

    parts: Sequence[Part]
    race: bool = False


Answer = list[Any] | LisaError
"""The replies to a part, including errors; or the error that left it without replies."""

CLIENT_ID: Call[int] = command("CLIENT", "ID")


def unblock(*clients: int) -> list[Call[Any]]:
    """Calls that end the waits of other clients, as if their time were up.

    A script comes first, in the same packet: a paused server, as during an agreed fail-over, delays calls that might
    write, and all calls behind them. Without it, ending a wait that began in a pause would crash servers older than
    redis#14164 and valkey#2117 (mid-2025), and does nothing on others, as the client waits for the end of the pause. A
    transaction would be delayed as well, but a server without memory refuses it.
    """
    return [
        command("EVAL", "return 0", 0),
        *(command("CLIENT", "UNBLOCK", client, "TIMEOUT") for client in clients),
    ]


def is_news(answer: Answer) -> bool:
    """Whether a part of a race has ended before its time was up."""
    return awaited_reply(answer) is not None


def no_reply(node: NodeName) -> OutcomeUnknown:
    """The error of a node that was not awaited any longer."""
    return OutcomeUnknown("node {}:{} has not answered in time".format(*node))


def silent(node: NodeName) -> Unreachable:
    """The error of a node that hangs, and was not asked."""
    return Unreachable("node {}:{} does not answer".format(*node))


def may_abandon(calls: Sequence[Call[Any]]) -> bool:
    """Whether calls may be abandoned once their node is silent.

    The outcome of a send that must not be repeated has to be known. All other calls are fenced or repeatable.
    """
    return all(call.repeatable or call.script is None or call.script.name not in SENDS for call in calls)


def awaited_reply(answer: Answer) -> Any:
    """The reply for which a part of a race waited, or the error that came before it."""
    if isinstance(answer, LisaError):
        return answer
    if answer[-1] is not None:
        return answer[-1]
    error = first_error(answer)
    return None if is_command_refused(error) else error


def merge_reads(replies: Sequence[Any]) -> Any:
    """The streams of several reads as one reply; without streams the first error, or None."""
    if streams := [stream for reply in replies if isinstance(reply, list) for stream in reply]:
        return streams
    # Errors of a topic come first: the caller can act on them even while a node is away.
    topic_error = first_error(reply for reply in replies if not isinstance(reply, LisaError))
    error = topic_error or first_error(replies)
    if isinstance(error, LisaError):
        raise error
    return error


def first_error(replies: Iterable[Any]) -> Exception | None:
    """The first error among replies."""
    return next((reply for reply in replies if isinstance(reply, Exception)), None)
