"""What the nodes of a Cluster are asked at once: an exchange, or a race, which the first news ends for all."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from lisa_common.client.address import NodeName
from lisa_common.errors import LisaError, OutcomeUnknown
from lisa_common.protocol.call import Call, command

__all__ = [
    "CLIENT_ID",
    "STRAGGLE_S",
    "Answer",
    "Part",
    "Round",
    "first_error",
    "is_news",
    "last",
    "may_be_left",
    "merged",
    "stray",
    "unblock",
]

STRAGGLE_S = 1.0
"""How long a node may take to answer that was told that the race is over: its reply would keep back what has come."""


class Part(NamedTuple):
    """Calls that one node is to be asked, in one pipeline."""

    node: NodeName
    calls: Sequence[Call[Any]]


class Round(NamedTuple):
    """What is asked at once, of several nodes.

    In a race each part blocks a connection of its own: its first reply is the id of that client, and once the last
    reply of any part is news, the other clients are to be unblocked.
    """

    parts: Sequence[Part]
    race: bool = False


Answer = list[Any] | LisaError
"""The replies to a part, errors among them; or why there are none."""

CLIENT_ID: Call[int] = command("CLIENT", "ID")


def unblock(*clients: int) -> list[Call[Any]]:
    """Ends the waits of other clients, as if their time were up.

    Behind a script, in one packet: a server that is paused, as it is during a fail-over by agreement, holds back
    whatever might write, and what comes behind it. To end a wait that began in a pause crashes servers older than
    redis#14164 and valkey#2117, of mid-2025, and does nothing at others: what such a client waits for is the end of the
    pause. A transaction would hold it back as well, but a server without memory refuses those.
    """
    return [
        command("EVAL", "return 0", 0),
        *(command("CLIENT", "UNBLOCK", client, "TIMEOUT") for client in clients),
    ]


def is_news(answer: Answer) -> bool:
    """Whether a part of a race has ended otherwise than by its time."""
    return last(answer) is not None


def stray(node: NodeName) -> OutcomeUnknown:
    """The error of a node that was not waited for any longer."""
    return OutcomeUnknown("node {}:{} has not answered in time".format(*node))


def may_be_left(calls: Sequence[Call[Any]]) -> bool:
    """Whether calls are not waited for any longer once their node is silent.

    Whoever sends what must not be sent again has to know what became of it. All else is fenced, or made again.
    """
    return all(call.repeatable or call.script is None or call.script.name != "send" for call in calls)


def last(answer: Answer) -> Any:
    """The reply that a part of a race waited for, or what went wrong before."""
    if isinstance(answer, LisaError):
        return answer
    return first_error(answer) if answer[-1] is None else answer[-1]


def merged(replies: Sequence[Any]) -> Any:
    """The streams of several reads as one reply; without any the first error, if there was one, else None."""
    if streams := [stream for reply in replies if isinstance(reply, list) for stream in reply]:
        return streams
    # What is wrong with a topic can be mended, also while a node is away.
    of_topics = first_error(reply for reply in replies if not isinstance(reply, LisaError))
    error = of_topics or first_error(replies)
    if isinstance(error, LisaError):
        raise error
    return error


def first_error(replies: Iterable[Any]) -> Exception | None:
    """The first error among replies."""
    return next((reply for reply in replies if isinstance(reply, Exception)), None)
